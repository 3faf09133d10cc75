"""The feed of live screens reports what changed, and reads nothing if nothing did."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.app.views.feed import Changes, Feed
from stoker.core.errors import StokerError
from stoker.store.engine_lock import QUEUE, EngineLock
from support.past import PastQueue


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PastQueue]:
    made = PastQueue(tmp_path / "state", time.time())
    yield made
    made.close()


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir()
    return tmp_path


@pytest.fixture
def feed(queue: PastQueue) -> Iterator[Feed]:
    """One that has reported everything there is."""
    with closing(Feed(queue.paths, simulated=True, lines=3)) as made:
        made.changes()
        yield made


def seen(feed: Feed) -> Changes:
    found = feed.changes()
    assert found is not None
    return found


def labels(changes: Changes) -> list[str]:
    return [line.label for line in changes.jobs]


def test_nothing_happens(feed: Feed, queue: PastQueue) -> None:
    """Then there is nothing to report, and nothing is read."""
    queue.paths.engines.mkdir(exist_ok=True)
    with closing(EngineLock(queue.paths, QUEUE)):
        seen(feed)
        before = feed.status
        assert feed.changes() is None
        assert feed.status is before
        feed.expire()
        assert (labels(seen(feed)), feed.status is before, feed.has_news) == ([], False, False)


def test_a_job_goes_its_way(feed: Feed, queue: PastQueue) -> None:
    """It is new, then another, then gone; lines that stay the same are not reported again."""
    queue.submit("stays")
    job = queue.submit("goes")
    first = seen(feed)
    assert (labels(first), first.changed, first.counts.waiting) == (["1", "2"], ["1", "2"], 2)
    queue.attempt(job, "0", -1, None)
    second = seen(feed)
    assert ([(line.label, line.state) for line in second.jobs], second.changed) == ([("2", "running")], ["2"])
    queue.ran("other", "1", -1, -0.5, code=1)
    third = seen(feed)
    assert (labels(third), third.gone, third.changed, third.today) == ([], [], ["3"], {"failed": 1})
    assert [failure.label for failure in third.failures] == ["3"]


def test_more_jobs_than_lines(feed: Feed, queue: PastQueue) -> None:
    """Changed jobs are named even if they are not listed, up to a limit."""
    for _ in range(5):
        queue.submit()
    changes = seen(feed)
    assert (labels(changes), changes.changed, changes.hidden.waiting) == (["1", "2", "3"], ["1", "2", "3", "4", "5"], 2)
    feed.lines = 4
    assert labels(seen(feed)) == ["4"]


def test_an_engine_comes_and_goes(feed: Feed, queue: PastQueue) -> None:
    """Its lock and its status file are watched; devices are reported if they differ."""
    queue.paths.engines.mkdir(exist_ok=True)
    with closing(EngineLock(queue.paths, QUEUE)):
        queue.write_status(at=time.time())
        changes = seen(feed)
        assert (changes.engine.running, [line.label for line in changes.devices]) == (True, ["0", "1"])
        queue.write_status(at=time.time())
        assert seen(feed).devices == []
        assert feed.changes() is None
    assert not seen(feed).engine.running


def test_without_an_engine_the_devices_are_read(feed: Feed, queue: PastQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view shows what an engine would see now, not what the last one saw."""
    queue.write_status(at=time.time() - 9999)
    monkeypatch.setenv("STOKER_SIM", "3x24G")
    assert [line.label for line in seen(feed).devices] == ["0", "1", "2"]
    assert feed.status is not None
    assert feed.status.engine.seen is not None
    assert time.time() - feed.status.engine.seen.timestamp() < 60


def test_the_queue_is_removed(feed: Feed, queue: PastQueue) -> None:
    """The feed says so, and makes no new one: a viewer writes nothing."""
    queue.submit("old")
    assert labels(seen(feed)) == ["1"]
    queue.close()
    for file in queue.paths.state.glob("queue.db*"):
        file.unlink()
    with pytest.raises(StokerError, match="the queue is gone"):
        feed.changes()
    assert not queue.paths.database.exists()


def test_the_state_directory_is_removed(feed: Feed, queue: PastQueue) -> None:
    """The feed says so, and goes on with the next queue at the same place."""
    queue.submit("old")
    assert labels(seen(feed)) == ["1"]
    queue.close()
    shutil.rmtree(queue.paths.state)
    with pytest.raises(StokerError, match="is gone"):
        feed.changes()
    queue.paths.state.mkdir()
    again = PastQueue(queue.paths.state, time.time())
    with closing(again.store):
        again.submit("new")
        changes = seen(feed)
        assert [line.title for line in changes.jobs] == ["new"]
