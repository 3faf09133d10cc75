"""Find jobs by id, name or glob, and resolve --after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

from stoker.core.errors import NoSuchJob, UsageError, did_you_mean
from stoker.core.job import Job, Queued, is_handed_over
from stoker.core.selectors import All, Last, Named, Numbers, Pick, Task, parse_selection, pick_text
from stoker.core.spec import Dependency, parse_after
from stoker.core.text import printable
from stoker.store import queries
from stoker.store.queries import arrays_of, tasks_in
from stoker.store.writer import Store

Scope = Literal["open", "ended"]
"""Jobs that `all` and names mean; a job is found by its number in any state."""
_STATUS = "stoker status shows what there is"


def find(store: Store, words: Sequence[str], scope: Scope = "open") -> list[int]:
    """Ids of the jobs that the words choose, in order and without repeats; every word must choose one.

    The first id of an array means all its tasks. A name means all open jobs of that name, or the newest where none is
    open; `all` may mean none.
    """
    picks = parse_selection(words)
    return list(dict.fromkeys(job_id for pick in picks for job_id in _find_pick(store, pick, scope)))


def find_last(store: Store) -> list[int]:
    """The job submitted last, with all tasks where it is an array."""
    found = queries.newest(store)
    if found is None:
        raise NoSuchJob("the queue is empty", "stoker submit COMMAND puts a job into it")
    job_id, array = found
    return queries.ids_between(store, array, array) if array else [job_id]


def jobs_in_order(store: Store, ids: Sequence[int]) -> list[Job]:
    found = {job.id: job for job in queries.jobs_of(store, ids)}
    return [found[job_id] for job_id in ids]


def find_queued(store: Store, words: Sequence[str]) -> list[Job]:
    """The jobs that the words select, of which `all` is all that wait."""
    jobs = jobs_in_order(store, find(store, words))
    return [job for job in jobs if isinstance(job.state, Queued) or is_handed_over(job)] if "all" in words else jobs


def _find_pick(store: Store, pick: Pick, scope: Scope) -> list[int]:
    match pick:
        case All():
            return queries.all_ids(store, scope)
        case Last():
            return find_last(store)
        case Numbers(first, last):
            return queries.ids_between(store, first, last) or _no_number(store, pick)
        case Task(array, first, last):
            return queries.ids_of_tasks(store, array, first, last) or _no_task(store, pick)
        case Named():
            return _find_name(store, pick, scope) or _no_name(store, pick)


def _find_name(store: Store, pick: Named, scope: Scope) -> list[int]:
    """A name that is also a pattern is first taken literally."""
    for glob in (False, True) if pick.is_glob else (False,):
        meant = queries.ids_named(store, pick.pattern, scope, glob=glob)
        if meant and (scope == "open" or glob):
            return meant
        if found := queries.ids_named(store, pick.pattern, "any", glob=glob):
            job = store.job(found[-1])
            return queries.ids_between(store, job.array, job.array) if job and job.array else [found[-1]]
    return []


def _no_number(store: Store, pick: Numbers) -> list[int]:
    newest = queries.newest(store)
    if newest is None:
        raise NoSuchJob(f"there is no job {pick_text(pick)}: the queue is empty", "stoker submit puts a job into it")
    raise NoSuchJob(f"there is no job {pick_text(pick)}", f"the newest is {newest[1] or newest[0]}; {_STATUS}")


def _no_task(store: Store, pick: Task) -> list[int]:
    tasks = queries.range_of_tasks(store, pick.array)
    if tasks is not None:
        raise NoSuchJob(f"array {pick.array} has no task {pick_text(pick)}", f"its tasks are {tasks[0]} to {tasks[1]}")
    if store.job(pick.array) is not None:
        raise NoSuchJob(f"job {pick.array} is not an array", f"write it as {pick.array}")
    return _no_number(store, Numbers(pick.array, pick.array))


def _no_name(store: Store, pick: Named) -> list[int]:
    what = "no job has a name like" if pick.is_glob else "no job is named"
    hint = did_you_mean(pick.pattern, queries.names(store), _STATUS)
    raise NoSuchJob(f"{what} '{printable(pick.pattern)}'", printable(hint))


MOST = 10_000
"""Targets that one job may have; more should be an array."""


def resolve_after(store: Store, text: str, own: Job | None = None) -> tuple[Dependency, ...]:
    """The dependencies that a text means; with `own`, all must be older than that job.

    A new job can only name existing jobs, so there is no cycle.
    """
    found = [
        Dependency(target, kind, whole) for kind, word in parse_after(text) for target, whole in _meant(store, word)
    ]
    if len(found) > MOST:
        raise UsageError(f"{text!r} waits for {len(found)} jobs", f"{MOST} are the most; submit them as an array")
    for one in found:
        if own and (one.target >= own.id or (one.array and one.target == own.array)):
            message = f"job {own.id} cannot wait for {one.target}, which is itself or came later"
            raise UsageError(message, "name jobs that were submitted before it")
    return tuple(dict.fromkeys(found))


def _meant(store: Store, word: str) -> Iterator[tuple[int, bool]]:
    """Targets of one word; an array as a whole where all its tasks are meant."""
    _refuse_open_ends(store, word)
    arrays = arrays_of(store, find(store, [word]))
    counts = Counter(arrays.values())
    whole = {array for array, count in counts.items() if array and count == tasks_in(store, array)}
    yield from ((array, True) for array in sorted(whole))
    yield from ((job_id, False) for job_id, array in arrays.items() if array not in whole)


def _refuse_open_ends(store: Store, word: str) -> None:
    """A range may have gaps, where old jobs were pruned, but both its ends must exist."""
    for pick in parse_selection([word]):
        if isinstance(pick, Numbers) and pick.first != pick.last:
            for end in (pick.first, pick.last):
                if store.job(end) is None:
                    raise NoSuchJob(f"there is no job {end}", _STATUS)
