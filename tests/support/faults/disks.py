"""Disks without space or without inodes, and directories that are deleted."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from stoker.core.errors import StokerError
from support.disk import fill, small_disk
from support.faults.table import fault
from support.storm.background import QueueStorm
from support.storm.checker import faulty_rows
from support.storm.jobs import Work
from support.storm.record import open_jobs, read_record
from support.wait import wait_until

FULL_SECONDS = 2.0
"""How long there is no space."""
PAGE = 4096
FEW_INODES = "nr_inodes=400"
KEPT = "exit codes of running jobs are kept, nothing fails, and all goes on by itself when there is space again"


@fault("full-state", KEPT, needs=("root",), devices="declared", noisy=True)
def full_state(trial: QueueStorm) -> None:
    """No byte is free in the state directory."""
    disk = trial.closing.enter_context(small_disk(trial.home / "state", "size=24m,mode=700"))
    trial.feed(10)
    trial.wait_running()
    ballast = fill(disk)
    _live_with_it(trial)
    ballast.unlink()


@fault(
    "full-state-at-split",
    "tasks and lines get rows of their own all or none, and all goes on by itself when there is space again",
    needs=("root",),
    devices="declared",
    noisy=True,
)
def full_state_at_split(trial: QueueStorm) -> None:
    """The space ends while the engine records what was asked of parts of an array, and while tasks of it start."""
    disk = trial.closing.enter_context(small_disk(trial.home / "state", "size=24m,mode=700"))
    trial.submit([Work(trial.next_number, at_once=4)] * 30, array=True, alike=True)
    trial.submit([Work(trial.next_number + at) for at in range(30)], alike=True)
    trial.wait_running()
    for _ in range(3):
        trial.at_work().wait_ready()
        ballast = fill(disk, spare=trial.dice.randint(4, 60) * PAGE)
        with contextlib.suppress(StokerError):
            for _ in range(20):
                trial.client.change_tasks()
        trial.disruptions["full disk"] += 1
        time.sleep(FULL_SECONDS / 2)
        trial.broken += faulty_rows(read_record(trial.killer.state))
        if trial.dice.random() < 0.5:
            trial.disruptions["engine"] += trial.at_work().kill()
        ballast.unlink()
        trial.client.note_answers()


@fault("no-inodes-in-state", KEPT, needs=("root",), devices="declared", noisy=True)
def no_inodes_in_state(trial: QueueStorm) -> None:
    """No file can be made in the state directory, such as those of a new worker."""
    disk = trial.closing.enter_context(small_disk(trial.home / "state", f"{FEW_INODES},mode=700"))
    trial.feed(10)
    trial.wait_running()
    with no_inodes(disk):
        _live_with_it(trial)


@fault("no-inodes-for-logs", "a job whose log cannot be created waits, and is not failed", needs=("root",), noisy=True)
def no_inodes_for_logs(trial: QueueStorm) -> None:
    """No file can be made where the logs of jobs go."""
    disk = trial.closing.enter_context(small_disk(trial.work / "logs", FEW_INODES))
    trial.feed(4)
    with no_inodes(disk):
        trial.submit([Work(trial.next_number + at, gpus=at % 2, out="logs/%j.log") for at in range(8)])
        _live_with_it(trial)


@fault("full-ledger", "jobs without a GPU run, the others wait until there is space again", needs=("root",), noisy=True)
def full_ledger(trial: QueueStorm) -> None:
    """No file can be made in the ledger."""
    disk = trial.closing.enter_context(small_disk(trial.ledger, FEW_INODES))
    trial.feed(6)
    trial.wait_running()
    with no_inodes(disk):
        trial.disruptions["full disk"] += 1
        trial.submit([Work(trial.next_number + at, seconds=0.2) for at in range(4)])
        expect_end(trial, trial.submit([Work(trial.next_number, gpus=0)]), "with a full ledger")


@fault("no-ledger", "leases are claimed again; no GPU is given twice")
def no_ledger(trial: QueueStorm) -> None:
    """The ledger is emptied, or deleted, under running jobs."""
    trial.feed(10)
    trial.wait_running(2)
    if trial.dice.random() < 0.5:
        shutil.rmtree(trial.ledger)
    else:
        for path in trial.ledger.iterdir():
            path.unlink(missing_ok=True)
    trial.disruptions["ledger deleted"] += 1
    trial.feed(trial.next_number + 6)
    trial.disruptions["engine"] += trial.dice.random() < 0.5 and trial.at_work().kill()


@fault("no-state", "jobs go on, their GPUs stay theirs, and a new queue serves at once", noisy=True, losses_known=False)
def no_state(trial: QueueStorm) -> None:
    """The state directory is deleted under a running engine; what ran is known to nobody, but has its GPUs."""
    trial.submit([Work(trial.next_number + at, seconds=1.5) for at in range(4)])
    trial.wait_running(2)
    shutil.rmtree(trial.paths.state)
    trial.begin_again()
    trial.disruptions["state deleted"] += 1
    trial.submit([Work(trial.next_number + at, seconds=0.1) for at in range(8)])
    trial.at_work()


def expect_end(trial: QueueStorm, jobs: list[int], when: str, seconds: float = 60.0) -> None:
    """Jobs must end while the fault lasts."""

    def ended() -> bool:
        trial.at_work()
        return not set(jobs) & set(open_jobs(trial.killer.state))

    try:
        wait_until(ended, seconds)
    except AssertionError:
        trial.broken.append(f"stuck: jobs {jobs} did not end in {seconds:g} s {when}")


def _live_with_it(trial: QueueStorm) -> None:
    """Submit more, which may be refused, and every second time kill the engine meanwhile."""
    trial.disruptions["full disk"] += 1
    trial.feed(trial.next_number + 4)
    time.sleep(FULL_SECONDS / 2)
    trial.disruptions["engine"] += trial.dice.random() < 0.5 and trial.at_work().kill()
    with contextlib.suppress(OSError):  # its log may have no place
        trial.at_work()
    time.sleep(FULL_SECONDS / 2)


@contextlib.contextmanager
def no_inodes(disk: Path) -> Iterator[None]:
    """A disk on which no file can be made during the block."""
    made: list[Path] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                path = disk / f"ballast{len(made)}"
                path.touch()
                made.append(path)
        yield
    finally:
        for path in made:
            path.unlink()
