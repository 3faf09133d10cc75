"""Jobs of a trace: what somebody recorded of them, and all that the virtual machine has to know."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace


class Row(Struct, frozen=True):
    """One job as a trace tells of it; None and empty where it does not."""

    arrival: float
    """Seconds, since whenever."""
    seconds: float
    """How long it runs with its GPUs to itself."""
    gpus: int = 1
    user: str = ""
    memory: int | None = None
    """Bytes on each GPU at its peak."""
    load: int | None = None
    """Percent of each GPU that it keeps busy."""
    kind: str = ""
    """What work it is: jobs of one kind are runs of the same program."""


class Work(Struct, frozen=True):
    """One job as it really is, most of which no scheduler may see."""

    id: int
    arrival: float
    seconds: float
    gpus: int
    kind: str
    model: str
    """By which its speed beside others is looked up."""
    peak: int
    """Bytes on each GPU, alone."""
    load: int
    swell: float = 1.0
    """What its peak in company is of that: allocators fragment and algorithms are chosen by what is free."""


RIPE_SECONDS = 180.0
RIPE_SHARE = 0.1
YOUNG_SHARE = 0.3
"""A job takes its memory some time after its start; until then it has this part of it."""


def ripens_after(work: Work) -> float:
    """Seconds of its own progress after which a job has all its memory."""
    return min(RIPE_SECONDS, RIPE_SHARE * work.seconds)


def extract(rows: Sequence[Row], first: int = 0, count: int | None = None) -> list[Row]:
    """So many jobs by their arrival, from the one with this number on, with the first arrival as the beginning."""
    ordered = sorted(rows, key=lambda row: row.arrival)
    chosen = ordered[first:] if count is None else ordered[first : first + count]
    return [replace(row, arrival=row.arrival - chosen[0].arrival) for row in chosen]


def capped(rows: Sequence[Row], seconds: float) -> list[Row]:
    """The jobs, none longer than this."""
    return [replace(row, seconds=min(row.seconds, seconds)) for row in rows]


def offered_load(rows: Sequence[Row], gpus: int) -> float:
    """The work that arrives, as a share of what so many GPUs can do in that time; infinity where all arrive at once."""
    span = max((row.arrival for row in rows), default=0.0)
    work = sum(row.seconds * row.gpus for row in rows)
    return work / (span * gpus) if span else float("inf")


def paced(rows: Sequence[Row], gpus: int, share: float) -> list[Row]:
    """The jobs, arriving faster or slower, so that the offered load is this share of so many GPUs."""
    load = offered_load(rows, gpus)
    if load in (0.0, float("inf")):
        return list(rows)
    return [replace(row, arrival=row.arrival * load / share) for row in rows]
