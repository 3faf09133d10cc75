"""What jobs can wait for: which of them belong to arrays, and whether all tasks of those are meant."""

from __future__ import annotations

import json
from collections.abc import Sequence

from stoker.store.reading import Reading


def arrays_of(store: Reading, ids: Sequence[int]) -> dict[int, int]:
    """The array of each of the jobs, 0 where it is in none, in the order of their ids."""
    query = "SELECT id, array FROM jobs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY id"
    return {int(job_id): int(array) for job_id, array in store._rows(query, json.dumps(list(ids)))}


def tasks_in(store: Reading, array: int) -> int:
    """How many tasks an array has."""
    return int(store._rows("SELECT count(*) FROM jobs WHERE array = ? AND array != 0", array)[0][0])
