"""Assignments on their way to workers, above all those that wait for MPS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.core.device import Reading, Snapshot
from stoker.core.job import Ended, Exited, Running, Starting
from stoker.core.spec import Resources
from stoker.devices.mps.daemon import MpsTrouble
from stoker.sites.interface import RETRY_INTERVAL
from stoker.sites.machine.context import MachineContext
from stoker.sites.machine.mps import POLL_INTERVAL, Served
from stoker.sites.machine.worker_events import REFUSED
from support.build import GIB, simulated
from support.fakes import EngineOnFakeRunner, FakeDevices

CLIENT = Resources(memory=4 * GIB, mps=50)


class FakeMps:
    """MPS clients whose daemon is what a test says: still starting, ready, or in trouble."""

    def __init__(self) -> None:
        self.exclusive = False
        self.trouble = ""
        self.answer: Served | MpsTrouble | None = None
        self.waiting: set[int] = set()

    @property
    def busy(self) -> bool:
        return bool(self.waiting)

    def news(self) -> str:
        return "MPS was started"

    def serve(self, job: object, *_: object) -> Served | None:
        self.waiting.add(job.id)  # type: ignore[attr-defined]
        if self.answer is not None:
            self.forget(job)
        if isinstance(self.answer, MpsTrouble):
            raise self.answer
        return self.answer

    def forget(self, job: object) -> None:
        self.waiting.discard(job.id)  # type: ignore[attr-defined]

    def close(self) -> None:
        self.waiting.clear()


class World(EngineOnFakeRunner):
    """An engine with one GPU and a fake MPS."""

    def __init__(self, directory: Path) -> None:
        devices = FakeDevices(*simulated(24))
        devices.shown = Snapshot(0.0, devices.shown.devices, {"0": Reading(used=0)})
        self.mps = FakeMps()
        super().__init__(directory, devices)

    def make_parts(self, parts: MachineContext) -> MachineContext:
        return replace(parts, mps_clients=self.mps)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_orders_of_a_turn_are_sent_together(world: World) -> None:
    """With one flush, after all of them are recorded."""
    ids = world.add(2, resources=Resources(memory=GIB))
    world.turn()
    assert [attempt for _, attempt in world.runner.called("start")] == [f"{job}.1" for job in ids]


def test_a_retry_has_a_log_of_its_own(world: World, tmp_path: Path) -> None:
    """The first log stays."""
    (job,) = world.add(retries=1)
    key = world.run(job)
    world.runner.exited(key, 1)
    world.turn()
    world.clock.pass_seconds(1)  # a GPU counts as free once it was seen after the end
    world.turn()
    assert [world.runner.orders[f"{job}.{number}"].out for number in (1, 2)] == [
        str(tmp_path / f"{job}.log"),
        str(tmp_path / f"{job}.log.1"),
    ]


def test_environments_are_read_once(world: World) -> None:
    """However many jobs have the same."""
    reads: list[str] = []
    read = world.store.environment

    def counting(digest: str) -> dict[str, str]:
        reads.append(digest)
        return read(digest)

    world.store.environment = counting  # type: ignore[method-assign]
    world.add(3, resources=Resources(memory=GIB))
    world.turn()
    assert len(reads) == 1


class TestMps:
    """A client of MPS is sent when its daemon is ready."""

    def test_it_waits_and_is_sent(self, world: World) -> None:
        """The site needs turns meanwhile; the user hears of the daemon."""
        (job,) = world.add(resources=CLIENT)
        world.turn()
        assert not world.runner.called("start")
        assert world.site.due_in(world.clock(), placing=True) == pytest.approx(POLL_INTERVAL)
        world.mps.answer = Served({"CUDA_MPS_PIPE_DIRECTORY": "/pipe"}, ("end-it",))
        world.turn()
        order = world.runner.orders[f"{job}.1"]
        assert (order.extra["CUDA_MPS_PIPE_DIRECTORY"], order.mps_terminate) == ("/pipe", ("end-it",))
        assert world.engine.trouble == "MPS was started"

    def test_it_can_be_cancelled_while_it_waits(self, world: World) -> None:
        """No worker ever hears of it."""
        (job,) = world.add(resources=CLIENT)
        world.turn()
        world.engine.cancel(job, None, "not wanted")
        world.turn(2)
        assert isinstance(world.job(job).state, Ended)
        assert world.kinds(job) == ["Assigned", "Cancelled", "Returned"]
        assert (world.mps.busy, world.runner.called("start")) == (False, [])

    def test_without_a_daemon_it_has_failed(self, world: World) -> None:
        """With the reason, and without a retry."""
        world.mps.answer = MpsTrouble("no MPS here", "install it")
        (job,) = world.add(resources=CLIENT, retries=3)
        world.turn(2)
        exited = world.store.events(job)[-1]
        assert isinstance(exited, Exited)
        assert (exited.code, exited.why, exited.note) == (REFUSED, "refused", "no MPS here; install it")
        assert world.ended(job).result == "failed"
        assert world.ledger.live().leases == {}

    def test_it_may_run_without_a_daemon_if_that_is_allowed(self, world: World) -> None:
        """The user is told."""
        world.mps.answer = MpsTrouble("no MPS here", "install it")
        (job,) = world.add(resources=CLIENT, mps_optional=True)
        world.turn()
        assert world.runner.orders[f"{job}.1"].mps_terminate == ()
        assert world.engine.trouble == "MPS is not used: no MPS here"


def test_an_assignment_that_came_back_meanwhile_is_not_sent(world: World) -> None:
    """Its worker died while the store could not be written; the next attempt is sent once."""
    (job,) = world.add()
    with world.full_disk():
        world.turn()
        world.runner.lost("w1")
        world.turn()
    world.clock.pass_seconds(RETRY_INTERVAL)
    world.turn()
    world.clock.pass_seconds(RETRY_INTERVAL)
    world.turn(2)
    assert world.runner.called("start") == [["w2", f"{job}.2"]]
    assert isinstance(world.job(job).state, Starting | Running)
