"""From what is typed behind --after to the jobs and arrays that are waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from stoker.core.dependency import Dependency, parse_after
from stoker.core.errors import NoSuchJob, UsageError
from stoker.core.job import Job
from stoker.core.selection import Numbers, parse_selection
from stoker.finding import find
from stoker.store import Store
from stoker.store.targets import arrays_of, tasks_in

MOST = 10_000
"""Targets that one job may have; more are better made an array of."""


def resolve_after(store: Store, text: str, own: Job | None = None) -> tuple[Dependency, ...]:
    """The dependencies that are meant; those of a job that is in the queue already must be older than it is.

    A job that is submitted can only name jobs that are there, so nothing ever waits for itself by way of others.
    """
    found = [
        Dependency(target, kind, whole) for kind, word in parse_after(text) for target, whole in _meant(store, word)
    ]
    if len(found) > MOST:
        raise UsageError(f"{text!r} waits for {len(found)} jobs", f"{MOST} are the most; submit them as an array")
    if own is not None:
        for dependency in found:
            _refuse_younger(dependency, own)
    return tuple(dict.fromkeys(found))


def _meant(store: Store, word: str) -> Iterator[tuple[int, bool]]:
    """Targets of one word, arrays as a whole where all of their tasks are meant."""
    _refuse_open_ends(store, word)
    arrays = arrays_of(store, find(store, [word]))
    counts = Counter(arrays.values())
    whole = {array for array, count in counts.items() if array and count == tasks_in(store, array)}
    yield from ((array, True) for array in sorted(whole))
    yield from ((job_id, False) for job_id, array in arrays.items() if array not in whole)


def _refuse_open_ends(store: Store, word: str) -> None:
    """A range may have gaps, where old jobs have left the history, but not reach beyond what there is."""
    for pick in parse_selection([word]):
        if isinstance(pick, Numbers) and pick.first != pick.last:
            for end in (pick.first, pick.last):
                if store.job(end) is None:
                    raise NoSuchJob(f"there is no job {end}", "stoker status shows what there is")


def _refuse_younger(dependency: Dependency, own: Job) -> None:
    if dependency.target >= own.id or (dependency.array and dependency.target == own.array):
        raise UsageError(
            f"job {own.id} cannot wait for {dependency.target}, which is itself or came later",
            "name jobs that were submitted before it",
        )
