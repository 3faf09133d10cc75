"""Usage, as the store tells it and as an engine sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.job import Assigned, Event, Exited, Job, Started, advance
from stoker.core.planner.fairshare import HALF_LIFE
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.sites.machine.fairshare import MEMORY, READ_INTERVAL, Usage
from stoker.store.schema import Change
from stoker.store.writer import Store

NOW = 1_000_000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty queue."""
    made = Store(tmp_path / "queue.db")
    yield made
    made.close()


def ran(store: Store, began: float, ended: float, *devices: str, engine: str = "mine") -> None:
    """Record a job that ran on the devices."""
    batch = store.add_batch("test", began)
    (job_id,) = store.add_jobs(batch, engine, [NewJob(Command(("true",)), JobSpec())], began)
    job = store.job(job_id)
    assert job is not None
    events: list[tuple[int, Event]] = []
    for event in (Assigned("k", devices, "/log", began), Started(1, began), Exited(1, 0, 0, ended)):
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
    assert Usage(store, "mine").until(NOW, []) == pytest.approx(25.0, rel=0.01)


def test_long_ago_is_forgotten(store: Store) -> None:
    """What ended long ago is not even read."""
    ran(store, NOW - MEMORY - 500, NOW - MEMORY - 1, "0")
    assert Usage(store, "mine").until(NOW, []) == 0.0


def test_what_runs_counts(store: Store) -> None:
    """Attempts that run count up to now."""
    assert Usage(store, "mine").until(NOW, [(("0", "1"), NOW - 5.0)]) == pytest.approx(10.0, rel=0.01)


def test_own_attempts_count_once(store: Store) -> None:
    """What this engine adds is not counted again when it is found in the store, before or after."""
    usage = Usage(store, "mine")
    ran(store, NOW - 10, NOW, "0")
    usage.spent(("0",), NOW - 10, NOW)
    assert usage.until(NOW, []) == pytest.approx(10.0, rel=0.01)
    ran(store, NOW, NOW + 10, "0")
    usage.spent(("0",), NOW, NOW + 10)
    assert usage.until(NOW + 20, []) == pytest.approx(20.0, rel=0.01)


def test_other_engines_of_the_user_count_soon(store: Store) -> None:
    """What another engine of the same user has recorded is added after a few seconds, and once."""
    usage = Usage(store, "mine")
    assert usage.until(NOW, []) == 0.0
    ran(store, NOW, NOW + 1, "0", engine="another")
    for later in range(1, 4):
        assert usage.until(NOW + later * READ_INTERVAL, []) == pytest.approx(1.0, rel=0.05)
