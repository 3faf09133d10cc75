"""What needs a user's attention besides active jobs: interrupted runs and recent failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stoker.app.jobs.local_time import exactly
from stoker.app.views.facts import QueueFacts
from stoker.app.views.model import FailedJob, InterruptedRun
from stoker.core.job import Ended, id_text
from stoker.core.outcomes import FAILURES
from stoker.core.selectors import number_ranges
from stoker.core.text import outcome, title_text
from stoker.store import queries
from stoker.store.filters import Filter
from stoker.store.queries import Period

RECENT_SECONDS = 3600.0
MOST_FAILURES = 5
LONGEST_IDS = 38
"""Characters of the ids in a command, which must fit on a narrow screen."""


def interrupted_runs(facts: QueueFacts) -> list[InterruptedRun]:
    """Foreground runs that ended before all their jobs had started, with the command that continues each."""
    return [run for engine in facts.loads if facts.is_interrupted(engine) for run in _runs_of(engine, facts)]


def _runs_of(engine: str, facts: QueueFacts) -> Iterator[InterruptedRun]:
    """Several runs may have left jobs without an owner, each in a batch of its own."""
    for batch, submitted, ids in queries.queued_by_batch(facts.store, engine):
        label = facts.store.batch_label(batch) or "a run"
        listed = ranges_text(ids)
        commands = f"stoker resume {listed}", f"stoker cancel {listed}"
        yield InterruptedRun(label, len(ids), exactly(submitted), *commands)


def ranges_text(ids: Sequence[int]) -> str:
    """`3-5,9`; where that is long, only the first ranges."""
    text, *more = number_ranges(ids)
    for part in more:
        if len(text) + len(part) >= LONGEST_IDS:
            break
        text += f",{part}"
    return text


def recent_failures(facts: QueueFacts) -> list[FailedJob]:
    """The jobs that failed within the last hour, the newest first."""
    store = facts.store
    past = queries.past(store, Period(facts.now - RECENT_SECONDS, Filter(states=FAILURES)), MOST_FAILURES)
    if not past:
        return []
    from stoker.app.views.failure import failure_text  # it reads logs, which most screens do not need

    return [
        FailedJob(
            job.id,
            id_text(job),
            title_text(job),
            job.state.result,
            outcome(job.state),
            exactly(job.state.at),
            failure_text(store, job),
        )
        for job in (one.job for one in past)
        if isinstance(job.state, Ended)
    ]
