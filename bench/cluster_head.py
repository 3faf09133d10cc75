"""What the head engine of a cluster costs: submits, recovery, idle time, many pilots; and a private Slurm."""

from __future__ import annotations

import contextlib
import cProfile
import gc
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bars import Bar, bars_shown, table
from cluster import queue, wait_for
from machine import parser, say, workshop

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from features.slurm.cluster import NAME, ClusterQueue
from features.slurm.worlds import PilotCrowd
from stoker.cli import LOADED_OBJECTS
from stoker.store.engine_lock import engine_of
from support.shared_directory import counted_calls
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
PILOTS = (50, 100, 200)
JOBS = (1_000, 10_000, 100_000)
"""Jobs that wait while turns of a head with pilots are measured."""
PAPER = 1_000
"""Pilots for which the costs are calculated."""
TURNS = 20
PAUSE = 0.5
"""Seconds between two turns by the clock of the fake world: the longest between two looks at pilots."""
BURST = 0.2
"""The same while pilots end all that they are given; a shorter time would not tell how fast they are."""
FULL = 6
"""Bursts after which a pilot is given as much as it ever is, if there are as many jobs."""


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


# -- many pilots: a scripted Slurm, a plain directory as the shared one, and pilots that the benchmark plays -------


class HeadCost(NamedTuple):
    """CPU milliseconds of a head, and its calls on the shared directory (paths and fsyncs)."""

    pilots: int
    jobs: int
    quiet: float
    """Of a turn in which no pilot has news."""
    one: float
    """Of a turn in which one pilot has ended a job, and gets another."""
    wave: float
    """For each job of a turn in which every pilot has ended one."""
    burst: float
    """For each job while pilots end all that they are given at once, until no job is left."""
    full: float
    """Of a turn without news while pilots have as much to do as they are ever given."""
    delegated: int
    """Attempts in pilots then."""
    answer: float
    """Of all turns that an answer of squeue takes."""
    status: float
    """Of the status for screens, once a second."""
    quiet_calls: int
    one_calls: int
    answer_calls: int


def many_pilots(directory: Path, pilots: Sequence[int], jobs: Sequence[int]) -> None:
    gc.freeze()
    gc.set_threshold(LOADED_OBJECTS)
    costs = []
    for number, (count, waiting) in enumerate((count, waiting) for count in pilots for waiting in jobs):
        say(f"{count} pilots, {waiting:,} waiting jobs")
        costs.append(cost_of_head(directory / f"crowd{number}", count, waiting))
    print(table(["pilots", "jobs", *HEADINGS], [_row(cost) for cost in costs]), end="\n\n")
    if len(pilots) > 1 and len(jobs) > 1:
        print_slopes(costs)


HEADINGS = (
    "quiet",
    "one end",
    "wave/job",
    "burst/job",
    "full",
    "(in pilots)",
    "answer",
    "status",
    "calls: quiet",
    "one",
    "answer",
)


def cost_of_head(directory: Path, pilots: int, waiting: int) -> HeadCost:
    directory.mkdir()
    with contextlib.closing(PilotCrowd(directory, pilots, waiting)) as crowd:
        shared = Path(crowd.settings.shared)

        def turn_cost(prepare: Callable[[], int], turns: int = 1, pause: float = PAUSE) -> float:
            """CPU milliseconds of some turns, per job that `prepare` has ended, or in all."""
            crowd.clock.pass_seconds(pause)
            ended = prepare()
            return milliseconds_of(lambda: crowd.turn(turns)) / (ended or 1)

        def calls_of(prepare: Callable[[], int], turns: int = 1, pause: float = PAUSE) -> int:
            crowd.clock.pass_seconds(pause)
            prepare()
            with counted_calls(shared) as calls:
                crowd.turn(turns)
            return calls.total()

        places = iter(crowd.pilots * (2 * TURNS))

        def one_end() -> int:
            return crowd.end([next(places)])

        def wave() -> int:
            return crowd.end(crowd.pilots)

        poll = 2 * crowd.settings.poll
        quiet = median(turn_cost(int) for _ in range(TURNS))
        one = median(turn_cost(one_end) for _ in range(TURNS))
        answer = median(turn_cost(int, 6, poll) for _ in range(5))
        calls = calls_of(int), calls_of(one_end), calls_of(int, 6, poll)
        status = median(milliseconds_of(crowd.site.status) for _ in range(TURNS))
        waves = median(turn_cost(wave) for _ in range(3))
        burst, full, delegated = burst_cost(crowd)
    return HeadCost(pilots, waiting, quiet, one, waves, burst, full, delegated, answer, status, *calls)


def burst_cost(crowd: PilotCrowd) -> tuple[float, float, int]:
    """The cost of each job until none waits, that of a quiet turn in between, and the attempts in pilots then."""
    spent, ended, full, delegated, bursts = 0.0, 0, 0.0, 0, 0
    while crowd.jobs.waiting:
        crowd.clock.pass_seconds(BURST)
        ended += sum(pilot.end_all(crowd.clock()) for pilot in crowd.pilots)
        spent += milliseconds_of(crowd.turn)
        bursts += 1
        if bursts == FULL:
            crowd.settle(2.0)  # so that all of it has waited for long
            delegated = len(crowd.engine.active_jobs)
            full = median(_quiet_turn(crowd) for _ in range(5))
    return spent / max(1, ended), full, delegated


def _quiet_turn(crowd: PilotCrowd) -> float:
    crowd.clock.pass_seconds(PAUSE)
    return milliseconds_of(crowd.turn)


def milliseconds_of(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return 1000 * (time.process_time() - began)


def _row(cost: HeadCost) -> list[str]:
    cells = [f"{value:.3f}" if isinstance(value, float) else f"{value:,}" for value in cost]
    return [cell if float(value) else "-" for cell, value in zip(cells, cost, strict=True)]


def print_slopes(costs: Sequence[HeadCost]) -> None:
    """Print what a pilot and a waiting job add, and the costs for more pilots that follow from that."""
    by_size = {(cost.pilots, cost.jobs): cost for cost in costs}
    fewest, most = min(by_size), max(by_size)
    last, few_pilots, few_jobs = by_size[most], by_size[fewest[0], most[1]], by_size[most[0], fewest[1]]
    rows = []
    for name, field in zip(HEADINGS, HeadCost._fields[2:], strict=True):
        value, first, little = (float(getattr(cost, field)) for cost in (last, few_pilots, few_jobs))
        per_pilot = (value - first) / (most[0] - fewest[0])
        per_job = (value - little) / (most[1] - fewest[1])
        paper = value + max(0.0, per_pilot) * (PAPER - most[0])
        rows.append([name, f"{1000 * per_pilot:,.2f}", f"{1e6 * per_job:,.2f}" if little else "-", f"{paper:,.2f}"])
    head = ["", "per 1,000 pilots", "per 1,000,000 waiting jobs", f"at {PAPER:,} pilots (calculated, not measured)"]
    print(f"Slopes between {fewest} and {most} pilots and jobs; milliseconds and calls:\n")
    print(table(head, rows), end="\n\n")


def type_in(login: Login, line: str) -> None:
    done = login(line)
    assert done.code == 0, done.err


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--only", choices=("recovery", "idle", "private", "pilots"), help="leave the others out")
    options.add_argument("--pilots", type=int, nargs="*", default=PILOTS, help="numbers of pilots")
    options.add_argument("--jobs", type=int, nargs="*", default=JOBS, help="numbers of jobs that wait for them")
    options.add_argument("--profile", help="write a profile of the part with many pilots to this file")
    chosen = options.parse_args()
    bars: list[Bar] = []
    with workshop(chosen.directory) as directory:
        if chosen.only in (None, "pilots"):
            with cProfile.Profile() if chosen.profile else contextlib.nullcontext() as profile:
                many_pilots(directory, chosen.pilots, chosen.jobs)
            if profile is not None:
                profile.dump_stats(chosen.profile)
        if chosen.only == "pilots":
            return
        if chosen.only in (None, "private"):
            bars += private_slurm()
        with running_slurm(lines=(f"MaxJobCount={3 * MANY}",)) as slurm:
            bars += submit_and_recover(slurm) if chosen.only in (None, "recovery") else []
            bars += idle_heads(slurm) if chosen.only in (None, "idle") else []
        print(bars_shown(bars))


if __name__ == "__main__":
    main()
