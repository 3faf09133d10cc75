"""How the attempts of a job ended, in the words of screens."""

from __future__ import annotations

import pytest

from stoker.app.views.job_details import attempt_lines, event_lines
from stoker.app.views.timeline import timeline_of
from stoker.core.job import Assigned, Displaced, Event, Exited, Started
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.store.engine_lock import QUEUE
from stoker.store.past_jobs import Period
from support.past import NOW, PastQueue
from support.store import after, wanted


@pytest.mark.parametrize(
    ("code", "why", "detail", "bar"),
    [
        (9, "preempted", "preempted (exit 9)", "stopped"),
        (3, "exited", "exit 3", "failed"),
    ],
)
def test_a_job_that_fails_while_it_saves_was_not_preempted(
    queue: PastQueue, code: int, why: str, detail: str, bar: str
) -> None:
    """With an exit code that says that it has saved, another one is a failure, also if it is tried again."""
    new = NewJob(Command(("train",)), JobSpec(preemptible="save", save_exit=9, retries=1), "saves")
    (job_id,) = queue.store.add_jobs(queue.store.add_batch("test", NOW - 500), QUEUE, [new], NOW - 500)
    events: list[Event] = [
        Assigned("w", ("0",), "", NOW - 400),
        Started(1, NOW - 400),
        Displaced(NOW - 300, to=7),
        Exited(1, code, 0, NOW - 200, why="preempted"),
    ]
    queue.store.record([after(wanted(queue.store, job_id), events)])
    job, facts = wanted(queue.store, job_id), queue.facts()
    assert [line.why for line in attempt_lines(job, queue.store.events(job_id), facts)] == [why]
    assert event_lines(job, queue.store.events(job_id), facts)[-1].detail == detail
    assert [one.state for lane in timeline_of(facts, Period(NOW - 1000)).lanes for one in lane.bars] == [bar]
