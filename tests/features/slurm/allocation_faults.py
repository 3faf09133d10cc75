"""Processes between Slurm and a job are killed: the pilot, the program of a task, their parent, Slurm's own process.

The first run of a job takes long and the next one ends at once, so that a first run that was left alive is still there
when the second one begins; the lock of the job tells.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from features.slurm.cluster_faults import Heads, heads, resume_nodes
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
    "parent": "stoker.features.slurm.guard\0pilot",
    "program": "stoker\0engine\0pilot",
    "workers": "runner.forkserver",
}
TASK = "stoker.features.slurm.node"


def victims(slurm: Slurm, role: str, *, pilots: bool) -> list[int]:
    """The processes of one allocation that a role means, parents first."""
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
    """Kill all at once: they are stopped first, so that none sees another die."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    wait_until(lambda: not any(map(is_alive, pids)))


def strike(queue: Heads, role: str, pause: float, *, pilots: bool) -> None:
    """Submit jobs, wait until all run, and kill the processes above them after a pause."""
    before = len(queue.lab.lines("began"))
    queue.submit(WORK, "-G", "1", code=0, tasks=TASKS)
    wait_until(lambda: len(queue.lab.lines("began")) >= before + TASKS)
    time.sleep(pause)
    found = victims(queue.lab.slurm, role, pilots=pilots)
    assert found, f"no {role} to kill"
    kill(found)
    queue.kills[f"{role} of a {'pilot' if pilots else 'task'}"] += 1


@fault(
    "kill-allocation",
    "no job runs beside a process of its last attempt, whichever process between Slurm and the job is killed",
    needs=("slurm",),
)
def kill_allocation(trial: QueueStorm) -> None:
    """With and without pilots; in a campaign each process in turn, else one by chance."""
    trial.submit([Work(trial.next_number)])
    ways = [False, True] if trial.thorough else [trial.dice.random() < 0.5]
    roles = ROLES if trial.thorough else [trial.dice.choice(ROLES)]
    with running_slurm(nodes=2, kill_wait=1) as slurm:
        for pilots in ways:
            with heads(trial.home / f"cluster-{pilots:d}", slurm, pilots=pilots) as queue:
                for role in roles:
                    strike(queue, role, trial.dice.uniform(0.0, LONGEST_PAUSE), pilots=pilots)
                    queue.wait_jobs(lambda: resume_nodes(slurm))
                queue.report(trial, losses=True)
