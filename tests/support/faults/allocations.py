"""Processes between Slurm and a job are killed: the pilot, the program of a task, their parent, Slurm's own process.

A job stays for long at its first run and ends at once at the next, so that a first run that was left alive is still
there when the second one begins; the lock of the job tells.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from support.cluster import NAME
from support.faults.clusters import WITNESS, Heads, heads
from support.faults.table import fault
from support.reaper import descendants, is_alive
from support.slurm import Slurm, running_slurm
from support.storm.background import QueueStorm
from support.storm.jobs import Work
from support.wait import wait_until

TASKS = 2
"""Fewer than the GPUs of a node, so that jobs which were left alive do not keep the next ones from starting."""
FIRST_SECONDS = 20
WORK = f"[ -e first.$STOKER_JOB_ID ] || {{ touch first.$STOKER_JOB_ID; sleep {FIRST_SECONDS}; }}"
LONGEST_PAUSE = 1.5
"""Seconds at most between the start of a job and the kill."""
ROLES = ("program", "parent", "step", "all but the jobs")
PILOT = {
    "parent": "stoker.sites.slurm.guard\0pilot",
    "program": "stoker\0engine\0pilot",
    "workers": "runner.forkserver",
}
TASK = "stoker.sites.slurm.node"


def victims(slurm: Slurm, role: str, *, pilots: bool) -> list[int]:
    """Processes of one allocation that are in the way of the kill, Slurm's first."""
    below = descendants(slurm.process)
    guards = [pid for pid in below if _is_guard(pid, below, pilots=pilots)]
    if not guards:
        return []
    guard = min(guards)
    ours = [pid for pid in (guard, *sorted(descendants(guard))) if _is_ours(pid, pilots=pilots)]
    found = {"parent": ours[:1], "program": ours[1:2], "step": [_parent(guard)], "all but the jobs": ours}
    return found[role]


def _is_guard(pid: int, below: Iterable[int], *, pilots: bool) -> bool:
    if pilots:
        return PILOT["parent"] in _words(pid)
    return TASK in _words(pid) and TASK not in _words(_parent(pid)) and _parent(pid) in below


def _is_ours(pid: int, *, pilots: bool) -> bool:
    return any(words in _words(pid) for words in (PILOT.values() if pilots else (TASK,)))


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def kill(pids: list[int]) -> None:
    """All at once: stopped first, so that none sees another die."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    wait_until(lambda: not any(map(is_alive, pids)))


def strike(queue: Heads, role: str, pause: float, *, pilots: bool) -> None:
    """Submit jobs, and kill what is above them as soon as all of them run."""
    slurm, before = queue.lab.slurm, len(queue.lab.lines("began"))
    words = ["submit", "-M", NAME, "--parsable", "-a", f"0-{TASKS - 1}", "-G", "1", "--"]
    done = queue.lab(*words, "sh", "-c", WITNESS.format(work=WORK, code=0))
    assert done.code == 0, done
    queue.jobs |= dict.fromkeys(range(int(done.out), int(done.out) + TASKS), 0)
    wait_until(lambda: len(queue.lab.lines("began")) >= before + TASKS)
    time.sleep(pause)
    found = victims(slurm, role, pilots=pilots)
    assert found, f"no {role} to kill"
    kill(found)
    queue.kills[f"{role} of a {'pilot' if pilots else 'task'}"] += 1


@fault(
    "kill-allocation",
    "no job runs beside a process of its last attempt, whoever is killed between Slurm and the job",
    needs=("slurm",),
)
def kill_allocation(trial: QueueStorm) -> None:
    """In a campaign everyone, else one of them by chance; with and without pilots."""
    trial.submit([Work(trial.next_number)])
    pilots = trial.dice.random() < 0.5
    ways = [(role, way) for role in ROLES for way in (False, True)]
    chosen = ways if trial.thorough else [(trial.dice.choice(ROLES), pilots)]
    with running_slurm(nodes=2, kill_wait=1) as slurm:
        for way in sorted({way for _, way in chosen}):
            with heads(trial.home / f"cluster-{way:d}", slurm, pilots=way) as queue:
                for role in [role for role, its_way in chosen if its_way == way]:
                    strike(queue, role, trial.dice.uniform(0.0, LONGEST_PAUSE), pilots=way)
                    queue.wait_jobs(lambda: _resume(slurm))
                trial.broken += queue.findings(losses=True)
                trial.blows.update(Counter(queue.kills))
                trial.blows["cluster job"] += len(queue.jobs)


def _resume(slurm: Slurm) -> None:
    """A person resumes a node that Slurm drained."""
    slurm.attempt("scontrol", "update", "nodename=ALL", "state=resume")
