"""A pilot as a process, here without Slurm, on simulated GPUs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stoker.core.errors import StokerError
from stoker.core.job import Assigned, Displaced, Event, Exited, Job, Returned, Started, Waiting
from stoker.core.planner import displacement
from stoker.core.spec import Command, JobSpec, Resources, digest_of
from stoker.devices.detect import simulate
from stoker.features.slurm.pilot import runtime
from stoker.features.slurm.pilot.files import (
    Alive,
    AttemptReport,
    GiveWay,
    Leave,
    Leaving,
    PilotEvent,
    PilotFolder,
    PilotOrder,
    PilotPlan,
    PilotReady,
    Ping,
    Recall,
    RunJob,
    Stop,
)
from stoker.features.slurm.pilot.runtime import PilotRuntime
from support.cli import until
from support.wait import PATIENCE_SECONDS, wait_until

ENVIRONMENT = {"PATH": os.environ["PATH"]}
OUT_OF_MEMORY = (
    "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of"
    " 8.00 GiB of which 0.50 GiB is free. Including non-PyTorch memory, this process has 2.00 GiB memory in use.'"
)


class Head:
    """Plays the head of one pilot with one GPU."""

    def __init__(self, directory: Path, plan: PilotPlan) -> None:
        self.directory = directory
        self.folder = PilotFolder(directory / "pilot")
        self.folder.make_pilot(replace(plan, reports=str(directory), ledger=str(directory / "ledger")))
        words = [sys.executable, "-P", "-m", "stoker.features.slurm.pilot.runtime", self.folder.path]
        self.process = subprocess.Popen(words, env={**os.environ, "SLURMD_NODENAME": "n7", "CUDA_VISIBLE_DEVICES": "0"})

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)

    def run_order(self, job_id: int, line: str) -> RunJob:
        spec = JobSpec(
            cwd=str(self.directory), environment=digest_of(ENVIRONMENT), out=str(self.directory / "%j.log"), grace=5.0
        )
        return RunJob(Job(job_id, 1, Command((line,), "/bin/sh"), spec, Waiting(0.0), 0.0), ENVIRONMENT)

    def give(self, *orders: PilotOrder) -> None:
        self.folder.give([*orders])

    def events(self, job_id: int) -> list[Event]:
        reports = (event for event in self.folder.read_events(0)[0] if isinstance(event, AttemptReport))
        return [report.event for report in reports if report.attempt == f"{job_id}.1"]

    def wait_event(self, job_id: int, kind: type[Event]) -> None:
        wait_until(lambda: any(isinstance(event, kind) for event in self.events(job_id)))


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    with contextlib.closing(Head(tmp_path, PilotPlan("lab", "", 60.0, simulated_gpus="1x8G"))) as head:
        yield head


def test_a_pilot_runs_attempts(head: Head) -> None:
    """It claims them, says that it may have begun before it does, and leaves when it is told to."""
    head.give(head.run_order(3, "exit 4"), Ping())
    head.wait_event(3, Exited)
    assigned, started, exited = head.events(3)
    assert isinstance(assigned, Assigned)
    assert isinstance(started, Started)
    assert started.devices == ("lab:n7 0",)
    assert isinstance(exited, Exited)
    assert exited.code == 4
    assert not head.folder.claim_as("3.1")
    head.give(Leave())
    assert head.process.wait(PATIENCE_SECONDS) == 0
    events = head.folder.read_events(0)[0]
    assert (events[0], events[-1]) == (PilotReady("n7", 1), Leaving())
    assert Alive() in events


def test_orders_about_attempts(head: Head) -> None:
    """What waits is given back, what runs is stopped; an attempt that the head has claimed is not taken."""
    assert head.folder.claim_as("5.1")
    head.give(head.run_order(3, until("gate")), head.run_order(4, "true"), head.run_order(5, "touch ran"))
    head.wait_event(3, Started)
    head.give(Recall(4), Recall(3), Stop(3, "why", 5.0, signal.SIGTERM))
    head.wait_event(3, Exited)
    assert isinstance(head.events(4)[-1], Returned)
    assert [getattr(event, "why", "") for event in head.events(3)][-1] == "stopped"
    assert head.events(5) == []


def test_slurm_ends_the_pilot(head: Head) -> None:
    """It reports no end of what TERM ends, also if it sees that before TERM: what Slurm says of the pilot counts."""
    head.give(head.run_order(3, f"{until('gate')}; exit 143"))
    head.wait_event(3, Started)
    head.process.terminate()
    (head.directory / "gate").touch()
    assert head.process.wait(PATIENCE_SECONDS) == 0
    assert not any(isinstance(event, Exited) for event in head.events(3))


def test_a_node_with_too_few_gpus(tmp_path: Path) -> None:
    """The pilot leaves words that the head can show."""
    with contextlib.closing(Head(tmp_path, PilotPlan("lab", "", 60.0, simulated_gpus="1x8G", gpus=2))) as head:
        assert head.process.wait(PATIENCE_SECONDS) == 1
        assert head.folder.error(0).startswith("a pilot on n7 found 1 GPU, and a job needs 2; ")


class AnswersAtOnce(PilotFolder):
    """The folder of a head that orders the next attempt while the pilot still reports the end of the last one."""

    def __init__(self, path: Path, job: Job) -> None:
        super().__init__(path)
        self._job = job
        self._late_at = time.monotonic() + PATIENCE_SECONDS
        self.reported: list[tuple[str, type[Event]]] = []

    def report(self, events: list[PilotEvent]) -> None:
        super().report(events)
        for event in events:
            if isinstance(event, AttemptReport) and event.attempt.startswith(f"{self._job.id}."):
                self.reported.append((event.attempt, type(event.event)))
                if isinstance(event.event, Exited):
                    self._answer(event.event)

    def _answer(self, exited: Exited) -> None:
        if self._job.attempts:
            self._open_gate()
            self.give([Leave()])
        else:
            self._job = replace(self._job, attempts=1, shared_failures=1, floor=exited.floor)
            self.give([RunJob(self._job)])

    def _open_gate(self) -> None:
        (Path(self._job.spec.cwd) / "gate").touch()

    def read_orders(self, offset: int) -> tuple[list[PilotOrder], int]:
        if time.monotonic() >= self._late_at:
            self._open_gate()
            pytest.fail(f"the pilot only reported {self.reported}")
        return super().read_orders(offset)


def test_the_head_answers_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of a pilot does not run a job once more by itself: the next attempt is the head's."""
    for pace in ("FASTEST_LOOK", "SLOWEST_LOOK", "LOOK_SHARE"):  # the pilot sees the answer at once, too
        monkeypatch.setattr(runtime, pace, 0.0)
    spec = JobSpec(
        Resources(memory=2 << 30), cwd=str(tmp_path), environment=digest_of(ENVIRONMENT), out=str(tmp_path / "%j.log")
    )
    beside = Job(3, 1, Command((until("gate"),), "/bin/sh"), spec, Waiting(0.0), 0.0)
    line = f"echo $STOKER_JOB_ID >> ran; {OUT_OF_MEMORY}; exit 1"
    failing = replace(beside, id=5, command=Command((line,), "/bin/sh"), kind="failing")
    folder = AnswersAtOnce(tmp_path / "pilot", failing)
    plan = PilotPlan("lab", str(tmp_path), 60.0, simulated_gpus="2x8G", ledger=str(tmp_path / "ledger"))
    folder.make_pilot(plan)
    state = tmp_path / "state"
    state.mkdir()
    (state / "reports").symlink_to(tmp_path)
    folder.give([RunJob(beside, ENVIRONMENT), RunJob(replace(beside, id=4)), RunJob(failing)])
    with (
        contextlib.closing(simulate(plan.simulated_gpus, str(tmp_path / "simulator"), [], time.time())) as devices,
        contextlib.closing(PilotRuntime(folder, plan, state, devices, "n7")) as pilot,
    ):
        pilot.run()
    once = [Assigned, Started, Exited]
    assert folder.reported == [(f"5.{number}", kind) for number in (1, 2) for kind in once]
    assert (tmp_path / "ran").read_text() == "5\n5\n"


def test_a_job_gives_way_to_another(head: Head) -> None:
    """The head is told who gets the GPU and how the attempt ended; the other job runs before the first comes back."""
    saves = head.run_order(3, f"trap 'exit 75' USR1; touch ready; {until('gate')}")
    job = replace(saves.job, spec=replace(saves.job.spec, preemptible="save"))
    head.give(replace(saves, job=job), head.run_order(4, "true"))
    wait_until((head.directory / "ready").exists)
    head.wait_event(3, Started)
    head.give(GiveWay(3, 4, "why"))
    head.wait_event(4, Exited)
    displaced, exited = head.events(3)[-2:]
    assert (type(displaced), getattr(displaced, "to", 0), getattr(displaced, "note", "")) == (Displaced, 4, "why")
    assert (type(exited), getattr(exited, "why", ""), getattr(exited, "code", 0)) == (Exited, "preempted", 75)


def job_here(directory: Path, number: int, line: str, *, gpus: int = 1, **spec: Any) -> Job:
    usual = {"cwd": str(directory), "environment": digest_of(ENVIRONMENT), "out": str(directory / "%j.log")}
    whole = JobSpec(Resources(gpus=gpus), **{**usual, **spec})
    return Job(number, 1, Command((line,), "/bin/sh"), whole, Waiting(0.0), 0.0)


@contextlib.contextmanager
def pilot_here(directory: Path) -> Iterator[PilotRuntime]:
    """A pilot in this process, with two GPUs."""
    folder = PilotFolder(directory / "pilot")
    plan = PilotPlan("lab", str(directory), 60.0, simulated_gpus="2x8G", ledger=str(directory / "ledger"))
    folder.make_pilot(plan)
    state = directory / "state"
    state.mkdir()
    (state / "reports").symlink_to(directory)
    with (
        contextlib.closing(simulate(plan.simulated_gpus, str(directory / "simulator"), [], time.time())) as devices,
        contextlib.closing(PilotRuntime(folder, plan, state, devices, "n7")) as pilot,
    ):
        yield pilot


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[PilotRuntime]:
    """A pilot in this process that has three jobs, of which two run."""
    line = f"touch began$STOKER_JOB_ID; {until('gate')}; exit 143"
    with pilot_here(tmp_path) as pilot:
        pilot._folder.give([RunJob(job_here(tmp_path, number, line), ENVIRONMENT) for number in (3, 4, 5)])
        pilot._take_orders()
        turns(pilot, lambda: all((tmp_path / f"began{number}").exists() for number in (3, 4)))
        yield pilot
        (tmp_path / "gate").touch()


def turns(pilot: PilotRuntime, condition: Callable[[], object]) -> None:
    def turned() -> object:
        pilot._runtime.engine.turn(0.01)
        return condition()

    wait_until(turned)


def kinds(pilot: PilotRuntime) -> dict[str, list[type[Event]]]:
    pilot.flush()
    found: dict[str, list[type[Event]]] = {}
    for report in pilot._folder.read_events(0)[0]:
        if isinstance(report, AttemptReport):
            found.setdefault(report.attempt, []).append(type(report.event))
    return found


RAN_ONCE = [Assigned, Started, Exited]


def test_the_warning_of_the_end_comes_while_jobs_end(
    inside: PilotRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's USR1 is seen while the pilot waits for its TERM: what has ended is not given back, so it runs once."""

    def warned() -> bool:
        inside._leave()
        return False

    monkeypatch.setattr(inside, "_is_terminated", warned)
    (tmp_path / "gate").touch()
    turns(inside, lambda: not inside._taken)
    found = kinds(inside)
    assert (found["3.1"], found["4.1"]) == (RAN_ONCE, RAN_ONCE)
    assert (found["5.1"][-1], Started in found["5.1"]) == (Returned, False)


def test_a_recall_while_the_store_of_the_node_cannot_be_written(
    inside: PilotRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt whose end is not recorded yet has run, and is not given back."""

    def full() -> None:
        raise StokerError("no space left on device")

    engine = inside._runtime.engine
    with monkeypatch.context() as broken:
        broken.setattr(engine, "_write", full)
        (tmp_path / "gate").touch()
        turns(inside, lambda: {3, 4}.isdisjoint(job.id for job in engine.active_jobs))
        inside._folder.give([Recall(3), Recall(4)])
        inside._take_orders()
    turns(inside, lambda: {3, 4}.isdisjoint(inside._taken))
    assert (kinds(inside)["3.1"], kinds(inside)["4.1"]) == (RAN_ONCE, RAN_ONCE)


def test_a_short_job_gets_the_gpus_of_a_long_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine of the pilot decides so by itself, once the long one has run long enough."""
    monkeypatch.setattr(displacement, "LEAST_RUN_SECONDS", 0.0)
    monkeypatch.setattr(displacement, "SWITCHES_PER_RUN", 0.0)
    with pilot_here(tmp_path) as pilot:
        saves = job_here(tmp_path, 3, f"trap 'exit 75' USR1; touch ready; {until('gate')}", gpus=2, preemptible="save")
        pilot._folder.give([RunJob(saves, ENVIRONMENT)])
        pilot._take_orders()
        turns(pilot, (tmp_path / "ready").exists)
        pilot._folder.give([RunJob(job_here(tmp_path, 4, "true", gpus=2, limit=60.0))])
        pilot._take_orders()
        turns(pilot, lambda: not pilot._taken)
        found = kinds(pilot)
    assert (found["3.1"], found["4.1"]) == ([Assigned, Started, Displaced, Exited], RAN_ONCE)
