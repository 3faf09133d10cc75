"""What the head engine of a cluster costs: submits, recovery, idle time; and a private Slurm of one's own."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from bars import Bar, bars_shown, table
from cluster import queue, wait_for
from machine import parser, say, workshop

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from features.slurm.cluster import NAME, ClusterQueue
from stoker.store.engine_lock import engine_of
from support.slurm import PATH, Slurm, running_slurm
from support.sshd import Login, logged_in
from support.users import made_users

MANY = 10_000
WAITING = 1_000
"""Jobs in Slurm while an idle head is watched."""
SETTLE = 65.0
"""Seconds after a submit in which Slurm is asked more often."""
WATCHED = 60.0
_TICK = os.sysconf("SC_CLK_TCK")


def count_calls(lab: ClusterQueue, name: str) -> Path:
    """Let every call of one of Slurm's commands append a line to a file."""
    place = lab.home / "counted"
    place.mkdir()
    script, calls = place / name, place / "calls"
    script.write_text(f'#!/bin/sh\necho >> {calls}\nPATH={PATH} exec {name} "$@"\n')
    script.chmod(0o700)
    calls.touch()
    lab.environment["PATH"] = f"{place}:{lab.environment['PATH']}"
    return calls


def status_text(lab: ClusterQueue) -> str:
    """What the engine publishes."""
    path = lab.paths.status_file(engine_of(NAME))
    return path.read_text() if path.exists() else ""


def hold_in_slurm(slurm: Slurm, lab: ClusterQueue, count: int) -> float:
    """Seconds that the submit of so many jobs took, all of which Slurm holds then."""
    began = time.perf_counter()
    lab.submit("true", count=f"0-{count - 1}")
    seconds = time.perf_counter() - began
    say(f"submitted {count:,} jobs in {seconds:.2f} s")
    wait_for(lambda: len(slurm.run("squeue", "-h", "-r", "-o", "%i").splitlines()) >= count, "Slurm", 0.5)
    return seconds


def submit_and_recover(slurm: Slurm) -> list[Bar]:
    """Submit many jobs, kill the head when Slurm has them all, and type the next command."""
    with queue(slurm, queued_max=MANY, options=["--hold"]) as lab:
        calls = count_calls(lab, "squeue")
        submitted = hold_in_slurm(slurm, lab, MANY)
        lab.kill_engine()
        lab.paths.status_file(engine_of(NAME)).unlink()
        calls.write_text("")
        began = time.perf_counter()
        lab("status", "--json")
        wait_for(lambda: f"{MANY} waiting in Slurm, which answered" in status_text(lab), "the new head")
        recovered = time.perf_counter() - began
        asked = len(calls.read_bytes())
    return [
        Bar(f"seconds to submit {MANY:,} jobs", submitted, 1.0, at_most=True),
        Bar(f"seconds until a new head has {MANY:,} jobs", recovered, 3.0, at_most=True),
        Bar("calls of squeue until then", asked, 1, at_most=True),
    ]


def idle_heads(slurm: Slurm) -> list[Bar]:
    """Watch two heads for a minute: one whose jobs wait in Slurm, and one without any job."""
    with queue(slurm, options=["--hold"]) as busy, queue(slurm) as free:
        free.wait(free.submit("true"))
        hold_in_slurm(slurm, busy, WAITING)
        say(f"waiting {SETTLE:g} s, then watching two idle heads for {WATCHED:g} s")
        time.sleep(SETTLE)
        heads = {f"{WAITING:,} jobs in Slurm": busy.engine, "no job": free.engine}
        before = {name: cpu_of(pid) for name, pid in heads.items()}
        began = time.monotonic()
        time.sleep(WATCHED)
        passed = time.monotonic() - began
        shares = {name: 100 * (cpu_of(pid) - before[name]) / passed for name, pid in heads.items()}
        rows = [[name, f"{share:.2f}", f"{megabytes(heads[name]):.0f}"] for name, share in shares.items()]
    print(table(["idle head", "% of a core", "MB resident"], rows), end="\n\n")
    return [Bar(f"idle head, {name}, % of a core", share, 0.3, at_most=True) for name, share in shares.items()]


def cpu_of(pid: int | None) -> float:
    """CPU seconds of a process and the commands that it has run."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICK


def megabytes(pid: int | None) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def private_slurm() -> list[Bar]:
    """Make a cluster of three servers, stop it, and start it again."""
    if os.geteuid() != 0:
        say("a private Slurm is measured as root, which can make a user with an sshd of its own")
        return []
    with made_users(1) as [user], logged_in(user) as login:
        type_in(login, f"stoker cluster make gpus 'gpu[1-3]' --gpus 4 --ssh 'ssh -F {login.config}'")
        type_in(login, "stoker cluster down gpus")
        began = time.perf_counter()
        type_in(login, "stoker cluster up gpus")
        seconds = time.perf_counter() - began
        listed = login("ps -u $(id -u) -o rss=,args=").out.splitlines()
        resident = sum(int(line.split()[0]) for line in listed if re.search("slurm(ctl|script)?d|munged", line))
        type_in(login, "stoker cluster down gpus")
    return [
        Bar("seconds to start a private Slurm on 3 nodes", seconds, 2.0, at_most=True),
        Bar("its MB resident", resident / 1000, 40.0, at_most=True),
    ]


def type_in(login: Login, line: str) -> None:
    done = login(line)
    assert done.code == 0, done.err


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--only", choices=("recovery", "idle", "private"), help="leave the others out")
    chosen = options.parse_args()
    bars: list[Bar] = []
    with workshop(chosen.directory):
        if chosen.only in (None, "private"):
            bars += private_slurm()
        with running_slurm(lines=(f"MaxJobCount={3 * MANY}",)) as slurm:
            bars += submit_and_recover(slurm) if chosen.only in (None, "recovery") else []
            bars += idle_heads(slurm) if chosen.only in (None, "idle") else []
        print(bars_shown(bars))


if __name__ == "__main__":
    main()
