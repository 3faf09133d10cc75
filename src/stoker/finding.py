"""From ids as people type them to jobs of the queue, or to a word on what there is instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from stoker.core.errors import NoSuchJob
from stoker.core.job import Job
from stoker.core.selection import All, Last, Named, Numbers, Pick, Task, parse_selection, pick_text
from stoker.store import Store, choosing
from stoker.words import printable

Scope = Literal["open", "ended"]
"""Which jobs a verb is about: `all` is all of these. What is named by its number is found in any case."""

_STATUS = "stoker status shows what there is"


def find(store: Store, words: Sequence[str], scope: Scope = "open") -> list[int]:
    """Ids of the jobs that the words choose, in their order and each once; every word must choose something.

    The first id of an array stands for all its tasks. A name stands for all jobs of that name that are not over, and
    where there is none, for the newest of that name; `all` may stand for nothing.
    """
    picks = parse_selection(words)
    return list(dict.fromkeys(job_id for pick in picks for job_id in _find_pick(store, pick, scope)))


def find_last(store: Store) -> list[int]:
    """The job submitted last, with all tasks where it is an array."""
    found = choosing.newest(store)
    if found is None:
        raise NoSuchJob("the queue is empty", "stoker submit COMMAND puts a job into it")
    job_id, array = found
    return choosing.ids_between(store, array, array) if array else [job_id]


def jobs_in_order(store: Store, ids: Sequence[int]) -> list[Job]:
    """The jobs in the order of the ids."""
    found = {job.id: job for job in choosing.jobs_of(store, ids)}
    return [found[job_id] for job_id in ids]


def _find_pick(store: Store, pick: Pick, scope: Scope) -> list[int]:
    match pick:
        case All():
            return choosing.open_ids(store) if scope == "open" else choosing.ended_ids(store)
        case Last():
            return find_last(store)
        case Numbers(first, last):
            return choosing.ids_between(store, first, last) or _no_number(store, pick)
        case Task(array, first, last):
            return choosing.ids_of_tasks(store, array, first, last) or _no_task(store, pick)
        case Named():
            return _find_name(store, pick, scope) or _no_name(store, pick)


def _find_name(store: Store, pick: Named, scope: Scope) -> list[int]:
    """A name that is a pattern too is first taken as it is."""
    for glob in (False, True) if pick.is_glob else (False,):
        meant = choosing.ids_named(store, pick.pattern, scope, glob=glob)
        if meant and (scope == "open" or glob):
            return meant
        if found := choosing.ids_named(store, pick.pattern, "any", glob=glob):
            return _with_its_array(store, found[-1])
    return []


def _with_its_array(store: Store, job_id: int) -> list[int]:
    job = store.job(job_id)
    return choosing.ids_between(store, job.array, job.array) if job is not None and job.array else [job_id]


def _no_number(store: Store, pick: Numbers) -> list[int]:
    newest = choosing.newest(store)
    if newest is None:
        raise NoSuchJob(f"there is no job {pick_text(pick)}: the queue is empty", "stoker submit puts a job into it")
    raise NoSuchJob(f"there is no job {pick_text(pick)}", f"the newest is {newest[1] or newest[0]}; {_STATUS}")


def _no_task(store: Store, pick: Task) -> list[int]:
    tasks = choosing.range_of_tasks(store, pick.array)
    if tasks is not None:
        raise NoSuchJob(f"array {pick.array} has no task {pick_text(pick)}", f"its tasks are {tasks[0]} to {tasks[1]}")
    if store.job(pick.array) is not None:
        raise NoSuchJob(f"job {pick.array} is not an array", f"write it as {pick.array}")
    return _no_number(store, Numbers(pick.array, pick.array))


def _no_name(store: Store, pick: Named) -> list[int]:
    import difflib

    near = difflib.get_close_matches(pick.pattern, choosing.names(store), 1)
    what = "no job has a name like" if pick.is_glob else "no job is named"
    hint = f"did you mean {printable(near[0])}?" if near else _STATUS
    raise NoSuchJob(f"{what} '{printable(pick.pattern)}'", hint)
