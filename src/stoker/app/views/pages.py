"""Pages of open and of ended jobs, filtered and sorted, for views that show a part of a long list."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from math import ceil

from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime
from stoker.app.jobs.select import jobs_in_order
from stoker.app.views.facts import QueueFacts
from stoker.app.views.history import read_past_page
from stoker.app.views.job import JobLine, PastLine, ended_line, job_line, past_line, situation
from stoker.app.views.status import active_lines, group_line, queued_lines
from stoker.core.errors import UsageError, did_you_mean
from stoker.core.job import Waiting, ids_of, is_delegated, single
from stoker.core.outcomes import WAITING
from stoker.core.planner.queue import waiting_word
from stoker.core.ranges import Ranges, union
from stoker.store import past_jobs, queries
from stoker.store.filters import (
    NO_FILTER,
    SORTS,
    Filter,
    Listing,
    Scope,
    count_lines,
    counts_of_array,
    ids_matching,
    ids_of_listing,
    page_of_lines,
    waiting_with_conditions,
)
from stoker.store.past_jobs import Period
from stoker.store.paths import Paths
from stoker.store.queries import Owned

SCHEMA = "stoker.jobs-page/1"
HISTORY_SCHEMA = "stoker.history-page/1"
LINES = 100
"""Lines of a page."""
NEWEST: dict[Scope, str] = {"open": "-id", "ended": "-ended", "any": "-id"}
MOST_CONDITIONS = 20_000
"""Jobs whose dependencies are looked at to tell blocked jobs from others."""


class JobsPage(Struct, frozen=True):
    """A part of the jobs: `/api/v1/jobs`."""

    schema: str
    at: datetime
    jobs: list[JobLine]
    """Tasks of an array that wait alike share a line."""
    page: int
    """1 is the first."""
    pages: int
    total: int
    """Lines on all pages."""
    counts: dict[str, int]
    """Tasks by state, if those of an array were asked for; jobs that wait for anything count as waiting."""


class SelectedLines(Struct, frozen=True):
    """Jobs that a user named, in few lines: `stoker status ID...` if they are many."""

    at: datetime
    counts: dict[str, int]
    """How many there are by state; all are counted."""
    unfinished: list[JobLine]
    """Tasks of an array that wait alike share a line."""
    ended: list[PastLine]

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def hidden(self) -> int:
        """How many are on no line."""
        return self.total - sum(line.tasks for line in (*self.unfinished, *self.ended))


class HistoryPage(Struct, frozen=True):
    """A part of the jobs that are over: `/api/v1/history`."""

    schema: str
    at: datetime
    jobs: list[PastLine]
    """Newest first."""
    page: int
    pages: int
    total: int
    counts: dict[str, int]
    """How they ended, on all pages."""
    gpu_hours: float
    """Of all pages."""


def jobs_page(
    facts: QueueFacts,
    chosen: Filter = NO_FILTER,
    scope: Scope = "open",
    *,
    sort: str = "",
    page: int = 1,
    each_task: bool = False,
) -> JobsPage:
    """One page of the jobs that a filter chooses.

    Without a sort, open jobs come as the screens list them, and others with the newest first.
    """
    listing = _listing(facts, Listing(scope, chosen, each_task))
    total = count_lines(facts.store, listing)
    offset = (page - 1) * LINES
    if sort or scope != "open":
        lines = _sorted(facts, listing, _known_sort(sort or NEWEST[scope]), offset)
    elif page == 1 and listing == Listing() and len(facts.loads) < 2:
        lines = _first(facts)
    else:
        lines = _in_order(facts, listing, offset)
    counts = counts_of_array(facts.store, chosen.array) if chosen.array else {}
    return JobsPage(SCHEMA, to_datetime(facts.now), lines, page, _pages(total), total, counts)


def selected_lines(
    facts: QueueFacts, ids: Sequence[int], limit: int | None = None, *, each_task: bool = False
) -> SelectedLines:
    """At most so many lines of these jobs by id, first those that have not ended; only these lines are built."""
    most = -1 if limit is None else limit  # SQLite's LIMIT
    listing = Listing("open", each_task=each_task, only=ids, on_finish_jobs=True)
    unfinished = [group_line(group, facts) for group in page_of_lines(facts.store, listing, "id", 0, most)]
    most = -1 if limit is None else max(0, limit - len(unfinished))
    groups = page_of_lines(facts.store, listing._replace(scope="ended"), "id", 0, most)
    past = sorted(past_jobs.past_of(facts.store, [group.first for group in groups]), key=lambda past: past.job.id)
    ended = [past_line(job, facts.store, facts.devices) for job in past]
    return SelectedLines(to_datetime(facts.now), _counts_by_word(facts, ids), unfinished, ended)


def _counts_by_word(facts: QueueFacts, ids: Sequence[int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for state, first, count in queries.alike_among(facts.store, ids):
        job = facts.store.job(first) if state in ("waiting", "starting") else None
        counts[state if job is None else situation(job, facts.store.owner(first), facts)[0]] += count
    return dict(counts)


def lines_of(facts: QueueFacts, ids: Sequence[int]) -> list[JobLine]:
    """The line of each of these jobs, in their order."""
    store = facts.store
    owners = {job_id: engine for engine, owned in queries.owners_of(store, ids).items() for job_id in owned}
    past = {past.job.id: past for past in past_jobs.past_of(store, ids)}
    return [
        ended_line(past[job.id], owners[job.id], facts) if job.id in past else job_line(job, owners[job.id], facts)
        for job in single(jobs_in_order(store, ids))
    ]


def first_lines_of(facts: QueueFacts, ids: Sequence[int], limit: int) -> list[JobLine]:
    """At most so many lines of these jobs by id; tasks of an array that wait alike share a line."""
    return _sorted(facts, Listing("any", only=ids, on_finish_jobs=True), "id", 0, limit)


def ids_of_pages(facts: QueueFacts, chosen: Filter, scope: Scope) -> Ranges:
    """The jobs of all pages, each task of an array."""
    return ids_of_listing(facts.store, _listing(facts, Listing(scope, chosen)))


def _known_sort(sort: str) -> str:
    if sort.removeprefix("-") not in SORTS:
        hint = did_you_mean(sort, SORTS, f"known: {', '.join(SORTS)}; a minus before it reverses the order")
        raise UsageError(f"cannot sort by {sort!r}", hint)
    return sort


def _pages(total: int) -> int:
    return max(1, ceil(total / LINES))


def _listing(facts: QueueFacts, listing: Listing) -> Listing:
    """The filter in terms of SQL, which does not tell why a job waits."""
    states = listing.chosen.states
    wanted = set(WAITING) & set(states)
    if not wanted or len(wanted) == len(WAITING):
        return listing
    store = facts.store
    jobs = queries.jobs_of(store, waiting_with_conditions(store, MOST_CONDITIONS))
    words = [(job, waiting_word(job, facts.now, store.outcome)) for job in jobs]
    if "queued" in wanted:
        return listing._replace(without=[job.last for job, word in words if word not in wanted])
    others = tuple(set(states) - wanted)
    ids = ids_of(job for job, word in words if word in wanted)
    if others:
        matching = ids_matching(store, listing.chosen._replace(states=others), listing.scope)
        ids = union((*ids.parts, *matching.parts))
    return listing._replace(only=ids)


def _first(facts: QueueFacts) -> list[JobLine]:
    """The first page without a filter, which is read most: in the order of the engine's plan."""
    active = active_lines(facts)[:LINES]
    return [*active, *queued_lines(facts, LINES - len(active), each_task=False)]


def _in_order(facts: QueueFacts, listing: Listing, offset: int) -> list[JobLine]:
    """The jobs that run, those whose place in the plan is known, and all others by id."""
    running = _running(facts, listing)
    placed = _placed(facts) if listing == Listing() else []
    first = [*running, *placed]
    lines = [_waiting_line(owned, facts) for owned in first[offset : offset + LINES]]
    rest = listing._replace(
        without=[*listing.without, *(owned.job.id for owned in running)],
        listed=[owned.job.array or owned.job.id for owned in placed],
    )
    return [*lines, *_sorted(facts, rest, "id", max(0, offset - len(first)), LINES - len(lines))]


def _running(facts: QueueFacts, listing: Listing) -> list[Owned]:
    active = [owned for owned in facts.active if not is_delegated(owned.job) and owned.job.spec.role != "hook"]
    ids = set(ids_matching(facts.store, listing.chosen, "open", [owned.job.id for owned in active]))
    return [owned for owned in active if owned.job.id in ids and (listing.only is None or owned.job.id in listing.only)]


def _placed(facts: QueueFacts) -> list[Owned]:
    """The waiting jobs whose place in the plan is known, in that order, one for each array."""
    owned: dict[tuple[str, int], Owned] = {}
    for engine in facts.loads:
        order = facts.positions.first(engine)
        jobs = {job.id: job for job in single(queries.jobs_of(facts.store, order)) if isinstance(job.state, Waiting)}
        for job in [jobs[job_id] for job_id in order if job_id in jobs]:
            owned.setdefault((engine, job.array or job.id), Owned(job, engine))
    return list(owned.values())


def _waiting_line(owned: Owned, facts: QueueFacts) -> JobLine:
    """The line of a job; of an array, that of all its waiting tasks."""
    if not owned.job.array or not isinstance(owned.job.state, Waiting):
        return job_line(owned.job, owned.engine, facts)
    waiting, *_ = queries.queued_tasks(facts.store, owned.engine, owned.job.array)
    return job_line(waiting.first, owned.engine, facts, waiting.indices)


def _sorted(facts: QueueFacts, listing: Listing, sort: str, offset: int, limit: int = LINES) -> list[JobLine]:
    groups = page_of_lines(facts.store, listing, sort, offset, limit) if limit else []
    past = {ended.job.id: ended for ended in past_jobs.past_of(facts.store, [group.first for group in groups])}
    return [
        ended_line(past[group.first], group.engine, facts) if group.first in past else group_line(group, facts)
        for group in groups
    ]


def history_page(paths: Paths, period: Period, page: int = 1) -> HistoryPage:
    """One page of the jobs that are over, the newest first."""
    lines, counts, hours = read_past_page(paths, period, LINES, (page - 1) * LINES)
    total = sum(counts.values())
    return HistoryPage(
        HISTORY_SCHEMA, to_datetime(time.time()), lines, page, _pages(total), total, counts, round(hours, 6)
    )
