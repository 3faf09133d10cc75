"""What is made of the processes and accounts that devices show."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from stoker.core.device import Account, Process, Reading, Snapshot
from stoker.core.job import Ended, Job, Running
from stoker.core.learning import MeasuredUse
from stoker.core.spec import JobSpec, Resources
from stoker.runner.processes import stopped
from stoker.sites.machine.allocations import Allocation
from stoker.sites.machine.observation import REFRESH_INTERVAL
from stoker.sites.machine.telemetry import Telemetry, WatchedAttempt, _note_idleness
from support.build import GIB, a_job, simulated
from support.wait import PATIENCE_SECONDS, ending, wait_until

GPUS = simulated(40, 40)


class Stage:
    """The attempts that an engine has, as far as somebody who measures asks about them."""

    def __init__(self) -> None:
        self.allocations: dict[str, Allocation] = {}
        self.roots: dict[str, int] = {}
        self.born: dict[str, int] = {}
        self.jobs: dict[int, Job] = {}
        self.written: dict[int, dict[int, MeasuredUse]] = {}
        anybody: Any = self
        self.telemetry = Telemetry(anybody, anybody, self.jobs.get, self.uses)
        self.at = 100.0

    def __iter__(self) -> Iterator[Allocation]:
        return iter(self.allocations.values())

    def __getitem__(self, worker: str) -> Allocation:
        return self.allocations[worker]

    def root_of(self, worker: str) -> int | None:
        return self.roots.get(worker)

    def process_of(self, worker: str, attempt: str) -> int | None:
        return self.born.get(worker)

    def uses(self, job_id: int) -> Mapping[int, MeasuredUse]:
        return self.written.get(job_id, {})

    def begin(self, job_id: int, root: int = 0, born: int = 0, gpus: int = 1) -> Job:
        """An attempt starts, under a worker with this process."""
        worker = f"k{job_id}"
        state = Running(1, worker, tuple(device.id for device in GPUS[:gpus]), self.at)
        job = a_job(job_id, spec=JobSpec(resources=Resources(gpus=gpus, auto=True)), state=state)
        self.jobs[job_id] = Job(**{name: getattr(job, name) for name in job.__struct_fields__} | {"attempts": 1})
        self.allocations[worker] = Allocation(worker, job.spec.resources, GPUS[:gpus])
        self.allocations[worker].take(job_id, self.at)
        self.roots |= {worker: root} if root else {}
        self.born |= {worker: born} if born else {}
        return self.jobs[job_id]

    def refresh(self, *readings: Reading, at: float | None = None) -> Snapshot:
        """The devices show this now."""
        self.at = self.at + 1 if at is None else at
        snapshot = Snapshot(self.at, GPUS, {device.id: shown for device, shown in zip(GPUS, readings, strict=False)})
        self.telemetry.refresh(snapshot, self.at)
        return snapshot

    def end(self, job: Job) -> None:
        """An attempt is over."""
        self.at += 0.5
        ended = a_job(job.id, state=Ended("done", self.at, 0))
        self.telemetry.end(job, ended, shared=False, now=self.at)
        del self.allocations[f"k{job.id}"], self.jobs[job.id]

    def finished(self, *readings: Reading) -> WatchedAttempt:
        """What is told of the one attempt that is over."""
        (attempt,) = self.telemetry.finished(self.refresh(*readings), self.at)
        return attempt


def reading(
    *processes: Process, used: int | None = None, accounts: tuple[Account, ...] | None = None, busy: int | None = None
) -> Reading:
    """A device with these processes."""
    return Reading(used, busy, processes=processes, accounts=accounts)


def process(pid: int, gib: float | None) -> Process:
    """A process with so much memory."""
    return Process(pid, None if gib is None else int(gib * GIB), "somebody")


def account(pid: int, gib: float, *, running: bool = False) -> Account:
    """What the driver keeps of a process."""
    return Account(pid, int(gib * GIB), None, running)


@pytest.fixture
def stage() -> Stage:
    """No attempts yet."""
    return Stage()


@contextlib.contextmanager
def a_child() -> Iterator[int]:
    """A process of ours."""
    with ending(subprocess.Popen(["sleep", "60"])) as sleeping:
        yield sleeping.pid
        sleeping.kill()


@pytest.fixture
def child() -> Iterator[int]:
    with a_child() as pid:
        yield pid


class TestNumbersThatComeAgain:
    """A process number says little about whose process it is."""

    def test_an_earlier_account(self, stage: Stage, child: int) -> None:
        """What was kept of a process that ended before an attempt began is not the attempt's."""
        earlier = reading(accounts=(account(child, 30),))
        stage.refresh(earlier)
        job = stage.begin(1, os.getpid(), child)
        stage.refresh(earlier)
        assert stage.telemetry.peak(job) is None
        stage.end(job)
        assert stage.finished(earlier).use.peak == 0

    def test_its_own_account(self, stage: Stage, child: int) -> None:
        """When the number has an account of another process, that is the one that counts."""
        stage.refresh(reading(accounts=(account(child, 30),)))
        job = stage.begin(1, os.getpid(), child)
        stage.refresh(reading(process(child, 4), accounts=(account(child, 5, running=True),)))
        stage.end(job)
        assert stage.finished(reading(accounts=(account(child, 6),))).use.peak == 6 * GIB

    def test_a_number_that_went_to_a_stranger(self, stage: Stage, child: int) -> None:
        """What he holds is his own."""
        job = stage.begin(1, os.getpid())
        stage.refresh(reading(process(child, 4), accounts=(account(child, 4, running=True),)))
        assert stage.telemetry.processes(job) == {child}
        stage.refresh(reading(accounts=(account(child, 4),)))
        stage.roots["k1"] = 2**22  # as if it were not below the worker
        stage.refresh(reading(process(child, 30), accounts=(account(child, 30, running=True),)))
        assert stage.telemetry.peak(job) == 4 * GIB
        assert stage.telemetry.processes(job) == set()

    def test_a_worker_that_is_known_late(self, stage: Stage, child: int) -> None:
        """Who was taken for a stranger is ours once it is known from which process all of ours come."""
        job = stage.begin(1)
        stage.refresh(reading(process(child, 4)))
        assert stage.telemetry.peak(job) is None
        stage.roots["k1"] = os.getpid()
        stage.refresh(reading(process(child, 4)))
        assert stage.telemetry.peak(job) == 4 * GIB


class TestAccounts:
    """The driver's own peaks."""

    def test_together(self, stage: Stage, child: int) -> None:
        """Processes that had the device at the same time count together, also by what is told after their end."""
        with a_child() as other:
            job = stage.begin(1, os.getpid())
            running = (account(child, 3, running=True), account(other, 4, running=True))
            stage.refresh(reading(process(child, 1), process(other, 1), accounts=running))
            assert stage.telemetry.peak(job) == 7 * GIB
        stage.end(job)
        assert stage.telemetry.waits is True
        assert stage.finished(reading(accounts=(account(child, 5), account(other, 6)))).use.peak == 11 * GIB
        assert stage.telemetry.waits is False

    def test_one_after_the_other(self, stage: Stage, child: int) -> None:
        """Of others the largest counts."""
        job = stage.begin(1, os.getpid())
        stage.refresh(reading(process(child, 1), accounts=(account(child, 3, running=True),)))
        with a_child() as other:
            stage.refresh(reading(process(other, 1), accounts=(account(child, 3), account(other, 2, running=True))))
        assert stage.telemetry.peak(job) == 3 * GIB

    def test_nobody_saw_it(self, stage: Stage, child: int) -> None:
        """Its first process is known, and so is what the driver kept of it."""
        job = stage.begin(1, os.getpid(), child)
        stage.end(job)
        attempt = stage.finished(reading(accounts=(account(child, 2),)))
        assert (attempt.use.looks, attempt.use.peak) == (0, 2 * GIB)

    def test_an_account_that_does_not_come(self, stage: Stage, child: int) -> None:
        """It is not waited for any longer than a moment; where no accounts are kept, not at all."""
        stage.refresh(reading(accounts=()))
        job = stage.begin(1, os.getpid(), child)
        before = stage.refresh(reading(accounts=()))
        stage.end(job)
        assert list(stage.telemetry.finished(before, stage.at)) == []
        assert len(list(stage.telemetry.finished(before, stage.at + 5))) == 1
        job = stage.begin(2, os.getpid(), child)
        without = stage.refresh(reading())
        stage.end(job)
        assert len(list(stage.telemetry.finished(without, stage.at))) == 1


class TestSilence:
    """What is made of a driver that says little."""

    @pytest.mark.parametrize(("others", "peak"), [((), 10), ((4,), 6), ((None,), 0)])
    def test_not_available(self, stage: Stage, child: int, others: tuple[float | None, ...], peak: int) -> None:
        """What a stranger holds is taken off, and where that is not known either, nothing is."""
        job = stage.begin(1, os.getpid())
        shown = (process(child, None), *(process(1, size) for size in others))
        stage.refresh(reading(*shown, used=10 * GIB))
        assert (stage.telemetry.peak(job) or 0) == peak * GIB

    def test_no_list(self, stage: Stage) -> None:
        """Where nobody is listed, all that is in use is the attempt's, unless it has company."""
        job = stage.begin(1, os.getpid())
        stage.refresh(reading(used=3 * GIB))
        assert stage.telemetry.peak(job) == 3 * GIB
        stage.allocations["k1"].shared = True
        stage.refresh(reading(used=9 * GIB))
        assert stage.telemetry.peak(job) == 3 * GIB

    def test_a_load_of_others(self, stage: Stage, child: int) -> None:
        """How busy a device is says nothing of an attempt while somebody else computes there."""
        stage.begin(1, os.getpid())
        stage.refresh(reading(process(child, 1), busy=5))
        stage.refresh(reading(process(child, 1), busy=20))
        stage.refresh(reading(process(child, 1), process(1, 1), busy=90))
        drawing = Process(1, GIB, "somebody", graphics=True)
        stage.refresh(reading(process(child, 1), drawing, busy=40))
        assert stage.telemetry.live()[1].utilisation == 30

    @pytest.mark.parametrize(
        ("loads", "is_idle"), [((0, 90), True), ((5, 90), False), ((0, None), True), ((None, None), False)]
    )
    def test_idle_beside_a_busy_one(
        self, stage: Stage, child: int, loads: tuple[int | None, int | None], is_idle: bool
    ) -> None:
        """Who computes is told by the load of each process, if the driver knows it; else the device counts as used."""
        stage.begin(1, os.getpid())
        ours, theirs = (replace(process(pid, 1), load=load) for pid, load in zip((child, 1), loads, strict=True))
        stage.refresh(reading(ours, theirs, busy=90))
        assert (stage.telemetry.idle_since()[1] is not None) == is_idle

    def test_a_job_without_others_is_idle_if_its_device_is(self, stage: Stage, child: int) -> None:
        """The driver rounds the load of a process to 0 before that of a device."""
        stage.begin(1, os.getpid())
        stage.refresh(reading(replace(process(child, 1), load=0), busy=1))
        assert stage.telemetry.idle_since()[1] is None

    def test_when_it_began_to_compute(self, stage: Stage, child: int) -> None:
        """At the first look at which its GPU is busy; the first look with memory may show an earlier program."""
        stage.begin(1, os.getpid())
        for memory, busy in ((0, 90), (1, 90), (1, 0), (1, 0), (1, 30), (1, 30)):
            stage.refresh(reading(*[process(child, memory)] * bool(memory), busy=busy))
        assert stage.telemetry.running()[0].use.began == 5.0

    def test_when_it_began_is_unknown_if_no_engine_looked(self, stage: Stage, child: int) -> None:
        """As after an engine that was away for an hour."""
        stage.begin(1, os.getpid())
        stage.at += 3600.0
        for _ in range(3):
            stage.refresh(reading(process(child, 1), busy=30))
        assert stage.telemetry.running()[0].use.began == 0.0

    @pytest.mark.parametrize("trouble", [(), (Reading(problem="lost"),)])
    def test_a_device_in_trouble(self, stage: Stage, child: int, trouble: tuple[Reading, ...]) -> None:
        """While a device has vanished or is in trouble nothing is known, and what was known stays."""
        job = stage.begin(1, os.getpid())
        stage.refresh(reading(process(child, 4)))
        stage.refresh(*trouble)
        assert stage.telemetry.live()[1].memory == 4 * GIB
        assert stage.telemetry.peak(job) == 4 * GIB
        assert stage.telemetry.running()[0].use.looks == 1

    def test_a_clock_that_was_set_back(self, stage: Stage, child: int) -> None:
        """Looks go on; one and the same look counts once."""
        stage.begin(1, os.getpid())
        stage.refresh(reading(process(child, 4)))
        stage.refresh(reading(process(child, 5)), at=50.0)
        stage.refresh(reading(process(child, 6)), at=50.0)
        assert stage.telemetry.running()[0].use.looks == 2
        assert stage.telemetry.live()[1].memory == 5 * GIB


def test_an_adopted_attempt(stage: Stage, child: int) -> None:
    """What another engine wrote down is where it goes on from."""
    job = stage.begin(1, os.getpid())
    stage.allocations["k1"].adopted = True
    stage.written[1] = {1: MeasuredUse(peak=9 * GIB, looks=7)}
    stage.refresh(reading(process(child, 4)))
    assert stage.telemetry.peak(job) == 9 * GIB
    assert stage.telemetry.running()[0].use.looks == 8


def test_nothing_is_left_of_what_is_over(stage: Stage, child: int) -> None:
    """Thousands of attempts leave nothing behind, whatever became of them."""
    for number in range(1, 3001):
        job = stage.begin(number, os.getpid(), child)
        busy = reading(process(child, 1), accounts=(account(child, 1, running=True),))
        stage.refresh(busy)
        if number % 3:
            stage.end(job)
            stage.finished(reading(accounts=()))
        else:  # lost with its worker
            del stage.allocations[f"k{number}"], stage.jobs[number]
        stage.roots.clear()
    stage.refresh(reading(accounts=()))
    kept = [value for value in vars(stage.telemetry).values() if isinstance(value, dict | list | frozenset)]
    assert sum(map(len, kept)) == 0


def test_many_processes_of_one_attempt(stage: Stage, child: int) -> None:
    """The numbers of those that are gone are forgotten at last."""
    job = stage.begin(1, os.getpid(), child)
    snapshot = stage.refresh(reading(process(child, 1)))
    stage.telemetry.running()[0].pids.update(range(10**6, 10**6 + 5000))
    stage.refresh(*snapshot.readings.values())
    assert stage.telemetry.processes(job) == {child}


def test_cost(stage: Stage) -> None:
    """Sixteen attempts with four processes each, and as many strangers, take far less than the time between looks."""
    trees = [
        subprocess.Popen(["sh", "-c", "for i in 1 2 3; do sleep 60 & done; wait"], start_new_session=True)
        for _ in range(16)
    ]
    try:
        for number, tree in enumerate(trees, 1):
            stage.begin(number, tree.pid, tree.pid)
        wait_until(lambda: all(len(children(tree.pid)) == 3 for tree in trees))
        pids = [pid for tree in trees for pid in (tree.pid, *children(tree.pid))]
        shown = [process(pid, 1) for pid in [*pids, *strangers(64)]]
        accounts = tuple(account(process.pid, 1, running=True) for process in shown)
        busy = reading(*shown, used=40 * GIB, accounts=accounts, busy=50)
        stage.refresh(busy)
        took = []
        for _ in range(20):
            began = time.process_time()
            stage.refresh(busy)
            took.append(time.process_time() - began)
        assert min(took) < 0.1 * REFRESH_INTERVAL
    finally:
        for tree in trees:
            os.killpg(tree.pid, signal.SIGKILL)
            tree.wait(PATIENCE_SECONDS)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def strangers(count: int) -> list[int]:
    """Processes that are not ours."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()][:count]


class TestIdleness:
    """GPUs that a job holds and nobody uses."""

    def attempt(self) -> WatchedAttempt:
        return WatchedAttempt(a_job(1), 1, (), MeasuredUse())

    def look(self, attempt: WatchedAttempt, now: float, *loads: int | None) -> float | None:
        _note_idleness(attempt, loads, now)
        return attempt.idle_since

    def test_all_of_them_count(self) -> None:
        """One that is used is enough."""
        attempt = self.attempt()
        assert [self.look(attempt, 100.0 + now, 0, load) for now, load in enumerate((1, 0, 0, 2, 0))] == [
            *(None, 101.0, 101.0),
            *(None, 104.0),
        ]

    def test_what_is_not_known_changes_nothing(self) -> None:
        """A driver that does not tell the utilisation never makes a job idle."""
        attempt = self.attempt()
        assert self.look(attempt, 100.0, None) is None
        assert self.look(attempt, 101.0, 0) == 101.0
        assert self.look(attempt, 102.0, None) == 101.0
        assert self.look(attempt, 103.0) == 101.0

    def test_a_gap_begins_anew(self) -> None:
        """While the machine slept nobody looked."""
        attempt = self.attempt()
        self.look(attempt, 100.0, 0)
        assert self.look(attempt, 130.0, 0) == 100.0
        assert self.look(attempt, 8000.0, 0) == 8000.0

    def test_a_stopped_job_is_not_idle(self) -> None:
        attempt = self.attempt()
        process = subprocess.Popen(["sleep", "1000"])
        try:
            attempt.pids = {process.pid}
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: stopped(process.pid))
            assert self.look(attempt, 100.0, 0) is None
        finally:
            process.kill()
            process.wait(PATIENCE_SECONDS)
