"""Lines of many jobs: only what a screen shows is built."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.app.views.engines import EngineStatuses
from stoker.app.views.facts import QueueFacts, QueuePositions, read_facts
from stoker.app.views.pages import jobs_page, lines_of, selected_lines
from stoker.app.views.status import queued_lines
from stoker.core.job import Cancelled, Paused
from stoker.core.planner.order import QueuePosition
from stoker.store.filters import Filter
from stoker.store.paths import Paths
from stoker.store.status_file import EngineStatus
from stoker.store.writer import Store, open_store
from support.store import EVENTS, TRUE, after, wanted

TASKS = 3000
NOW = 1000.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A queue with an array: one task failed, two are held, ten are cancelled, all others wait."""
    store = open_store(Paths(tmp_path))
    jobs = [msgspec.structs.replace(TRUE, task=task) for task in range(TASKS)]
    ids = store.add_jobs(store.add_batch("submit", 1.0), "queue", jobs, 1.0, array=True)
    store.record([after(wanted(store, ids[0]), EVENTS)])
    store.record([after(wanted(store, job_id), [Paused(5.0, "held by you")]) for job_id in ids[1:3]])
    store.record([after(wanted(store, job_id), [Cancelled(6.0, "cancelled by you")]) for job_id in ids[3:13]])
    yield store
    store.close()


@pytest.fixture
def facts(store: Store, tmp_path: Path) -> Iterator[QueueFacts]:
    with read_facts(Paths(tmp_path)) as facts:
        yield facts


def test_tasks_that_wait_alike_share_a_line(facts: QueueFacts) -> None:
    """Those that have not ended come first; all are counted, and the rest is hidden."""
    selected = selected_lines(facts, range(1, TASKS + 1), 5)
    assert [line.label for line in selected.unfinished] == ["1.[1-2]", f"1.[13-{TASKS - 1}]"]
    assert [line.label for line in selected.ended] == ["1.0", "1.3", "1.4"]
    assert selected.counts == {"failed": 1, "held": 2, "cancelled": 10, "queued": TASKS - 13}
    assert selected.hidden == 8
    assert selected.total == TASKS


def test_every_task_on_request(facts: QueueFacts) -> None:
    """Without a limit each has a line of its own, and none is hidden; programs get them in the order of the ids."""
    ids = range(1, 21)
    selected = selected_lines(facts, ids, each_task=True)
    assert (len(selected.unfinished), len(selected.ended), selected.hidden) == (9, 11, 0)
    assert [line.id for line in lines_of(facts, ids)] == list(ids)


def test_the_work_does_not_grow_with_the_tasks(facts: QueueFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen of 20 lines about an array needs as many queries for 100 tasks as for 3,000."""

    def queries_for(tasks: int) -> int:
        asked: list[str] = []
        read = facts.store.rows

        def rows(query: str, *values: Any) -> list[tuple[Any, ...]]:
            asked.append(query)
            return read(query, *values)

        with monkeypatch.context() as patch:
            patch.setattr(facts.store, "rows", rows)
            selected_lines(facts, range(1, tasks + 1), 20)
        return len(asked)

    assert queries_for(TASKS) == queries_for(100)


def test_places_of_tasks(store: Store) -> None:
    """Each waiting task of an array is one place behind the one before it, in whatever order they are asked for."""
    order = (QueuePosition(14, TASKS - 13, 0, NOW - 1.0, 60.0, True, 1),)
    status = EngineStatus("queue", "", 1, "1", 0.0, NOW, 0, 0, (), {}, "", "", False, (), (), order=order)
    positions = QueuePositions(store, [status], NOW)
    places = [positions.place(wanted(store, job_id), "queue") for job_id in (14, 15, 20, 17, TASKS)]
    assert places == [1, 2, 7, 4, TASKS - 13]


def test_an_array_is_listed_once(store: Store) -> None:
    """Though parts of it that differ, as in priority, have places of their own in the plan."""
    order = (QueuePosition(100, 5, 9, NOW - 1.0, 60.0, True, 1), QueuePosition(14, 7, 0, NOW - 1.0, 60.0, True, 1))
    status = EngineStatus("queue", "", 1, "1", 0.0, NOW, 0, 0, (), {}, "", "", False, (), (), order=order)
    facts = QueueFacts(store, EngineStatuses(status, lives=True), NOW, simulated=False)
    labels = [f"1.[13-{TASKS - 1}]", "1.[1-2]"]
    assert [line.label for line in queued_lines(facts, None, each_task=False)] == labels
    assert [line.label for line in jobs_page(facts, page=1).jobs] == labels
    assert [line.label for line in jobs_page(facts, Filter(names=("*",))).jobs] == sorted(labels)
