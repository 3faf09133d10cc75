"""Find jobs by id, name or glob, filter them, and resolve --after."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Literal

from stoker.core.errors import NoSuchJob, StokerError, UsageError, did_you_mean
from stoker.core.job import Job, Queued, Waiting, is_delegated
from stoker.core.outcomes import OPEN, RESULTS, SLURM_CODES, WAITING
from stoker.core.ranges import Ranges, distinct, ranges_of, union
from stoker.core.selectors import (
    All,
    Last,
    Named,
    Numbers,
    Pick,
    TaskRange,
    line_word,
    parse_selection,
    parse_tasks,
    pick_text,
)
from stoker.core.spec import Dependency, parse_after
from stoker.store import queries
from stoker.store.filters import NO_FILTER, Filter, ids_matching
from stoker.store.queries import arrays_of, ids_of_batch, is_coordinator, tasks_in
from stoker.store.reader import Reader
from stoker.store.writer import Store

Scope = Literal["open", "ended", "any"]
"""Jobs that `all` and names mean; a job is found by its number in any state. Of ended jobs, a name means the newest."""
_STATUS = "list jobs with: stoker status"


def find(store: Store, words: Sequence[str], scope: Scope = "open", chosen: Filter = NO_FILTER) -> Ranges:
    """Ids of the jobs that the words choose, in order and without repeats; every word must choose one.

    The first id of an array means all its tasks, that of a batch with a record all its jobs. A name means all
    open jobs of that name, or the newest where none is open, else the batch of that name; `all` may mean none. Without
    words, a filter chooses among all.
    """
    picks = parse_selection(words)
    job_ids = distinct(ids for pick in picks for ids in _find_pick(store, pick, scope).parts)
    if chosen == NO_FILTER:
        return job_ids
    matching = ids_matching(store, chosen, "any", job_ids) if words else ids_matching(store, chosen, scope)
    return _in_states(store, matching, chosen.states)


# -- filters -------------------------------------------------------------------------------------


def parse_filter(
    names: Sequence[str] = (), tags: Sequence[str] = (), groups: Sequence[str] = (), states: Sequence[str] = ()
) -> Filter:
    """A filter as users type it; states may be words or Slurm's letters, with commas between them."""
    return Filter(tuple(names), tuple(map(_parse_tag, tags)), tuple(groups), tuple(_parse_states(states)))


def _parse_tag(text: str) -> tuple[str, str]:
    """`K=V`, where V may be a pattern; `K` is any value."""
    name, equals, value = text.partition("=")
    if not name:
        raise UsageError(f"--tag {text!r} has no name", "write it as --tag lr=0.1, or --tag lr for any value")
    return name, value if equals else "*"


def _parse_states(texts: Sequence[str]) -> list[str]:
    states = (*OPEN, *RESULTS)
    chosen: list[str] = []
    for word in (word.strip() for text in texts for word in text.split(",")):
        letters = [state for state, code in SLURM_CODES.items() if code == word.upper()]
        meant: list[str] = [word.lower()] if word.lower() in states else [*letters]
        if not meant:
            hint = did_you_mean(word.lower(), states, f"known states: {', '.join(states)}")
            raise UsageError(f"unknown state {word!r}", hint)
        chosen += meant
    return list(dict.fromkeys(chosen))


def _in_states(store: Store, ids: Ranges, states: Sequence[str]) -> Ranges:
    """The jobs in these states; SQL does not tell why a job waits."""
    if not states or set(WAITING) <= set(states) or not set(WAITING) & set(states):
        return ids
    from stoker.core.planner.queue import waiting_word  # few commands need to know why a job waits

    now = time.time()
    jobs = queries.jobs_of(store, ids)
    matching = (
        job for job in jobs if not isinstance(job.state, Waiting) or waiting_word(job, now, store.outcome) in states
    )
    return ids.among(Ranges(range(job.id, job.last + 1) for job in matching))


def find_last(store: Store) -> Ranges:
    """The job submitted last, with all tasks where it is an array."""
    newest = queries.newest(store)
    if newest is None:
        raise NoSuchJob("the queue is empty", "submit a job: stoker submit -- python3 train.py", "last")
    job_id, array = newest
    return queries.ids_between(store, array, array) if array else ranges_of([job_id])


def jobs_in_order(store: Reader, ids: Sequence[int]) -> list[Job]:
    """The jobs in the order of the ids; one may stand for several."""
    return list(queries.jobs_of(store, ids))


def tasks_of_line(store: Store, label: str, state: str) -> Ranges:
    """The tasks of an array that a list shows in one line: of those that its label can mean, those in its state."""
    states = ("held",) if state == "held" else WAITING
    return find(store, [line_word(label)], chosen=Filter(states=states))


def is_there(store: Store, word: str) -> bool:
    """Whether a word chooses a job."""
    try:
        return bool(find(store, [word]))
    except StokerError:
        return False


def find_queued(store: Store, words: Sequence[str]) -> list[Job]:
    """The jobs that the words select, of which `all` is all that wait."""
    jobs = jobs_in_order(store, find(store, words))
    return [job for job in jobs if isinstance(job.state, Queued) or is_delegated(job)] if "all" in words else jobs


def _find_pick(store: Store, pick: Pick, scope: Scope) -> Ranges:
    match pick:
        case All():
            return queries.all_ids(store, scope)
        case Last():
            return find_last(store)
        case Numbers(first, last):
            ids = _jobs_of(store, queries.batch_by_id(store, first)) if first == last else Ranges()
            return ids or queries.ids_between(store, first, last) or _no_number(store, pick)
        case TaskRange(array, first, last, step):
            return queries.ids_of_tasks(store, array, first, last, step) or _no_task(store, pick)
        case Named():
            ids = _find_name(store, pick, scope) or _find_tasks(store, pick, scope)
            # no job of a batch has the name alone
            return ids or _jobs_of(store, queries.batch_named(store, pick.pattern)) or _no_name(store, pick)


def _find_name(store: Store, pick: Named, scope: Scope) -> Ranges:
    """A name that is also a pattern is first taken literally."""
    for glob in (False, True) if pick.is_glob else (False,):
        meant = queries.ids_named(store, pick.pattern, scope, glob=glob)
        if meant and (scope != "ended" or glob):
            return meant
        if job_ids := queries.ids_named(store, pick.pattern, "any", glob=glob):
            job = store.job(job_ids[-1])
            return queries.ids_between(store, job.array, job.array) if job and job.array else job_ids[-1:]
    return Ranges()


def _find_tasks(store: Store, pick: Named, scope: Scope) -> Ranges:
    """Tasks of the arrays of a name: `arr.3`, `arr.[3-5]`; also of the last one: `last.3`."""
    parsed = parse_tasks(pick.pattern)
    if parsed is None:
        return Ranges()
    name, wanted = parsed
    arrays = arrays_of(store, find_last(store) if name == "last" else _find_name(store, Named(name), scope))
    tasks = [TaskRange(array, *indices) for array in sorted(arrays.keys() - {0}) for indices in wanted]
    return distinct(ids for task in tasks for ids in _find_pick(store, task, scope).parts)


def _jobs_of(store: Store, batch: int | None) -> Ranges:
    return Ranges() if batch is None else ids_of_batch(store, batch)


def _no_number(store: Store, pick: Numbers) -> Ranges:
    newest, word = queries.newest(store), pick_text(pick)
    if newest is None:
        raise NoSuchJob(
            f"there is no job {word}: the queue is empty", "submit a job: stoker submit -- python3 train.py", word
        )
    raise NoSuchJob(f"there is no job {word}", f"the newest is {newest[1] or newest[0]}; {_STATUS}", word)


def _no_task(store: Store, pick: TaskRange) -> Ranges:
    tasks = queries.range_of_tasks(store, pick.array)
    if tasks is not None:
        raise NoSuchJob(f"array {pick.array} has no task {pick_text(pick)}", f"its tasks are {tasks[0]} to {tasks[1]}")
    if store.job(pick.array) is not None:
        raise NoSuchJob(f"job {pick.array} is not an array", f"write it as {pick.array}")
    return _no_number(store, Numbers(pick.array, pick.array))


def _no_name(store: Store, pick: Named) -> Ranges:
    what = "no job has a name like" if pick.is_glob else "no job is named"
    hint = did_you_mean(pick.pattern, queries.names(store), _STATUS)
    raise NoSuchJob(f"{what} {pick.pattern!r}", hint, pick.pattern)


MOST = 10_000
"""Targets that one job may have; more should be an array."""


def resolve_after(store: Store, text: str, own: Job | None = None) -> tuple[Dependency, ...]:
    """The dependencies that a text means; with `own`, all must be older than that job.

    A new job can only name existing jobs, so there is no cycle.
    """
    dependencies = [
        Dependency(target, kind, whole) for kind, word in parse_after(text) for target, whole in _targets(store, word)
    ]
    if (count := len(dependencies)) > MOST:
        raise UsageError(f"{text!r} waits for {count} jobs", f"the limit is {MOST}; submit them as an array")
    for dependency in dependencies:
        if own and (dependency.target >= own.id or (dependency.array and dependency.target == own.array)):
            message = f"job {own.id} cannot depend on {dependency.target}, which is itself or a newer job"
            raise UsageError(message, "name jobs that were submitted before it")
    return tuple(dict.fromkeys(dependencies))


def _targets(store: Store, word: str) -> Iterator[tuple[int, bool]]:
    """Targets of one word; an array as a whole where all its tasks are meant."""
    _refuse_open_ends(store, word)
    if word.isdecimal() and is_coordinator(store, int(word)):
        yield int(word), False
        return
    arrays = arrays_of(store, find(store, [word]))
    whole = {array for array, ids in arrays.items() if array and len(ids) == tasks_in(store, array)}
    yield from ((array, True) for array in sorted(whole))
    others = (ids for array, ids in arrays.items() if array not in whole)
    yield from ((job_id, False) for job_id in union(part for ids in others for part in ids.parts))


def _refuse_open_ends(store: Store, word: str) -> None:
    """A range may have gaps, where old jobs were pruned, but both its ends must exist."""
    for pick in parse_selection([word]):
        if isinstance(pick, Numbers) and pick.first != pick.last:
            for end in (pick.first, pick.last):
                if store.job(end) is None:
                    raise NoSuchJob(f"there is no job {end}", _STATUS)
