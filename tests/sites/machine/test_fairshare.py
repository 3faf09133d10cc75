"""GPU time used lately, and engines that yield to each other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.job import Assigned, Event, Exited, Job, Started, advance
from stoker.core.lease import Claim
from stoker.core.planner.fairshare import HALF_LIFE, YIELD_SECONDS
from stoker.core.planner.reasons import Leased, Yields
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.ledger import HeldLease, Ledger, prepare_ledger
from stoker.sites.machine.fairshare import MEMORY, PUBLISH_INTERVAL, READ_INTERVAL, REFRESH_INTERVAL, OwnUsage
from stoker.sites.machine.observation import LEASE_INTERVAL
from stoker.sites.machine.ref import WorkerRef
from stoker.store.schema import Change
from stoker.store.writer import Store
from support.fakes import EngineOnFakeRunner

NOW = 1_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty queue."""
    made = Store(tmp_path / "queue.db")
    yield made
    made.close()


def ran(store: Store, began: float, ended: float, *devices: str, engine: str = "mine", ref: str = "k") -> None:
    """Record a job that ran on the devices."""
    batch = store.add_batch("test", began)
    (job_id,) = store.add_jobs(batch, engine, [NewJob(Command(("true",)), JobSpec())], began)
    job = store.job(job_id)
    assert job is not None
    events: list[tuple[int, Event]] = []
    for event in (Assigned(ref, devices, "/log", began), Started(1, began), Exited(1, 0, 0, ended)):
        job = _after(job, event)
        events.append((1, event))
    store.record([Change(job, events)])


def _after(job: Job, event: Event) -> Job:
    return advance(job, event)


def test_what_the_store_knows_counts(store: Store) -> None:
    """GPUs times seconds of all engines, older ones less, without slots that have no GPU."""
    ran(store, NOW - 10, NOW, "0", "1")
    ran(store, NOW - 10, NOW, "none", "none#2", engine="another")
    ran(store, NOW - 100, NOW, engine="another")
    ran(store, NOW - HALF_LIFE - 10, NOW - HALF_LIFE, "0", engine="another")
    assert OwnUsage(store, "mine").until(NOW, []) == pytest.approx(25.0, rel=0.01)


def test_jobs_inside_jobs_do_not_count(store: Store) -> None:
    """The job around them has the same GPUs for longer."""
    ran(store, NOW - 10, NOW, "0")
    ran(store, NOW - 9, NOW - 1, "0", engine="another", ref=WorkerRef("w-2", "w-1/0.ab.lease").text)
    assert OwnUsage(store, "mine").until(NOW, []) == pytest.approx(10.0, rel=0.01)


def test_long_ago_is_forgotten(store: Store) -> None:
    """What ended long ago is not even read."""
    ran(store, NOW - MEMORY - 500, NOW - MEMORY - 1, "0")
    assert OwnUsage(store, "mine").until(NOW, []) == 0.0


def test_what_runs_counts(store: Store) -> None:
    """Attempts that run count up to now."""
    assert OwnUsage(store, "mine").until(NOW, [(("0", "1"), NOW - 5.0)]) == pytest.approx(10.0, rel=0.01)


def test_own_attempts_count_once(store: Store) -> None:
    """What this engine adds is not counted again when it is found in the store, before or after."""
    usage = OwnUsage(store, "mine")
    ran(store, NOW - 10, NOW, "0")
    usage.spent(("0",), NOW - 10, NOW)
    assert usage.until(NOW, []) == pytest.approx(10.0, rel=0.01)
    ran(store, NOW, NOW + 10, "0")
    usage.spent(("0",), NOW, NOW + 10)
    assert usage.until(NOW + 20, []) == pytest.approx(20.0, rel=0.01)


def test_other_engines_of_the_user_count_soon(store: Store) -> None:
    """What another engine of the same user has recorded is added after a few seconds, and once."""
    usage = OwnUsage(store, "mine")
    assert usage.until(NOW, []) == 0.0
    ran(store, NOW, NOW + 1, "0", engine="another")
    for later in range(1, 4):
        assert usage.until(NOW + later * READ_INTERVAL, []) == pytest.approx(1.0, rel=0.05)


class Rivals:
    """Two engines of one user on the same two devices, with one clock."""

    def __init__(self, directory: Path) -> None:
        self.ledger = Ledger(prepare_ledger(directory / "ledger"))
        self.first, self.second = (self._open(directory / name) for name in ("first", "second"))
        self.second.clock = self.second.jobs.clock = self.first.clock

    def _open(self, directory: Path) -> EngineOnFakeRunner:
        directory.mkdir()
        return EngineOnFakeRunner(directory, ledger=self.ledger)

    def both_taken(self) -> HeldLease:
        """A lease of another engine on both devices."""
        held = self.ledger.claim((Claim("name:0"), Claim("name:1")), "work", self.first.clock())
        assert held is not None
        return held

    def wait(self, world: EngineOnFakeRunner, count: int = 1) -> int:
        """Let jobs of an engine wait, with its demand published."""
        job = world.add(count)[0]
        self.later(PUBLISH_INTERVAL, world)
        return job

    def later(self, seconds: float, *worlds: EngineOnFakeRunner) -> None:
        """Let time pass, and the engines turn."""
        self.first.clock.pass_seconds(seconds)
        for world in worlds:
            world.turn(2)

    @property
    def demands(self) -> int:
        return len(self.ledger.live().demands)


@pytest.fixture
def rivals(tmp_path: Path) -> Iterator[Rivals]:
    made = Rivals(tmp_path)
    yield made
    made.first.close()
    made.second.close()


class TestDemand:
    """What an engine publishes while it waits for others."""

    def test_it_is_there_while_jobs_wait_for_others(self, rivals: Rivals) -> None:
        """And gone when the job starts."""
        held = rivals.both_taken()
        job = rivals.wait(rivals.first)
        assert rivals.demands == 1
        assert isinstance(rivals.first.engine.reason(rivals.first.job(job)), Leased)
        rivals.ledger.release(held)
        rivals.later(LEASE_INTERVAL, rivals.first)
        assert (rivals.demands, len(rivals.first.runner.called("start"))) == (0, 1)

    def test_it_is_gone_when_the_job_is_cancelled(self, rivals: Rivals) -> None:
        """Or when the engine drains or closes."""
        held = rivals.both_taken()
        job = rivals.wait(rivals.first)
        rivals.first.engine.cancel(job, None, "")
        rivals.later(0.1, rivals.first)
        assert rivals.demands == 0
        rivals.wait(rivals.first)
        assert rivals.demands == 1
        rivals.first.engine.drain()
        rivals.first.turn()
        assert rivals.demands == 0
        rivals.ledger.release(held)

    def test_an_engine_that_is_alone_publishes_none(self, rivals: Rivals) -> None:
        """However much waits."""
        rivals.wait(rivals.first, 9)
        assert rivals.demands == 0

    def test_it_is_published_again_after_a_cleaner_removed_it(self, rivals: Rivals) -> None:
        """Within a minute."""
        held = rivals.both_taken()
        rivals.wait(rivals.first)
        for path in rivals.ledger.path.glob("*.demand"):
            path.unlink()
        for path in rivals.ledger.path.glob("*.want"):
            path.unlink()
        assert rivals.demands == 0
        rivals.later(REFRESH_INTERVAL, rivals.first)
        assert rivals.demands == 1
        rivals.ledger.release(held)


class TestYielding:
    """Who has waited longer goes first."""

    def test_the_later_engine_leaves_a_free_device(self, rivals: Rivals) -> None:
        """To the engine that needs both, for a few seconds."""
        held = rivals.both_taken()
        rivals.wait(rivals.first, 2)
        late = rivals.wait(rivals.second)
        rivals.ledger.release(held)
        rivals.later(LEASE_INTERVAL, rivals.second)
        assert rivals.second.engine.reason(rivals.second.job(late)) == Yields("", "waited longer")
        assert not rivals.second.runner.called("start")
        rivals.later(LEASE_INTERVAL, rivals.first)
        assert len(rivals.first.runner.called("start")) == 2

    def test_an_engine_that_does_not_move_is_passed_over(self, rivals: Rivals) -> None:
        """After a while."""
        held = rivals.both_taken()
        rivals.wait(rivals.first, 2)
        rivals.wait(rivals.second)
        rivals.ledger.release(held)
        rivals.later(LEASE_INTERVAL, rivals.second)
        rivals.later(YIELD_SECONDS + 0.1, rivals.second)
        assert len(rivals.second.runner.called("start")) == 1

    def test_one_that_needs_one_device_leaves_the_other(self, rivals: Rivals) -> None:
        """Both start."""
        held = rivals.both_taken()
        rivals.wait(rivals.first)
        rivals.wait(rivals.second)
        rivals.ledger.release(held)
        rivals.later(LEASE_INTERVAL, rivals.second, rivals.first)
        assert len(rivals.second.runner.called("start")) == 1
