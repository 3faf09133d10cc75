"""The files by which engines tell all users of a machine what they do; those of others are read as hostile."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from stoker.ledger.files import LARGEST, MOST_BYTES, MOST_GPUS, WHAT_LIMIT, Moment, Process
from stoker.ledger.formats import MOST_LEASES, JobId, decoded

BOARD, USAGE = "board", "usage"
"""How the names of these files end. A usage file stays when its engine ends."""
KEPT_DAYS = 35
"""Days of usage that a file tells, and that readers believe."""
MOST_KINDS = 20
"""Kinds of waiting jobs that a board tells apart; it counts the others."""
MOST_KWH = 100.0
"""No GPU takes more on one day."""
_FIRST_DAY, _LAST_DAY = date(1970, 1, 1).toordinal(), date(2096, 1, 1).toordinal()
_Day = Annotated[int, Meta(ge=_FIRST_DAY, le=_LAST_DAY)]
_DayHours = Annotated[float, Meta(ge=0, le=25)]
"""Hours of one GPU on one day, at most those of a day on which summer time ends."""
_Name = Annotated[str, Meta(max_length=WHAT_LIMIT)]
_Count = Annotated[int, Meta(ge=0, le=LARGEST)]


class BoardJob(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A running job. Its user, GPUs and memory are those of the lease of its process."""

    job: JobId
    pid: Process
    """Its first process."""
    since: Moment
    utilisation: Annotated[int, Meta(ge=0, le=100)] | None = None
    """Percent of its GPUs."""
    title: Annotated[str, Meta(max_length=WHAT_LIMIT)] = ""
    """Its name or command, only if its user shares that."""


class WaitingKind(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Waiting jobs that want the same."""

    jobs: _Count
    gpus: Annotated[int, Meta(ge=0, le=MOST_GPUS)]
    since: Moment
    """Since when the oldest of them is in the queue."""
    memory: _Count | None = None
    """Bytes on each GPU; None is the whole GPU, or not known yet."""


class Board(Struct, frozen=True, forbid_unknown_fields=True):
    """Running and waiting jobs of one engine."""

    version: Literal[1] = 1
    jobs: Annotated[tuple[BoardJob, ...], Meta(max_length=MOST_LEASES)] = ()
    waiting: Annotated[tuple[WaitingKind, ...], Meta(max_length=MOST_KINDS)] = ()
    more: _Count = 0
    """Waiting jobs of further kinds."""


_boards = Decoder(Board)


def encode_board(jobs: Sequence[BoardJob], waiting: Sequence[WaitingKind], more: int = 0) -> bytes:
    """The contents of the file, with as many of the jobs as fit."""
    kept = tuple(jobs[:MOST_LEASES])
    while len(contents := msgspec.json.encode(Board(1, kept, tuple(waiting[:MOST_KINDS]), more))) > MOST_BYTES:
        kept = kept[: len(kept) // 2]
    return contents


def decode_board(contents: bytes, uid: int) -> tuple[int, Board]:
    """The board in a file and its owner."""
    return uid, decoded(_boards, contents, "a board")


# -- usage -----------------------------------------------------------------------------------------


class GpuDay(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The use of one GPU on one day."""

    day: _Day
    gpu: _Name
    """Its name in the ledger."""
    gpu_hours: _DayHours
    """Time of several jobs on it counts once."""
    idle_hours: _DayHours | None
    """With almost no utilisation while jobs had it; None if not measured."""
    energy_kwh: Annotated[float, Meta(ge=0, le=MOST_KWH)] | None


class GroupDay(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The use by one group of jobs on one day."""

    day: _Day
    group: _Name
    """Empty for jobs without a group, and for all jobs if their user does not share names."""
    gpu_hours: Annotated[float, Meta(ge=0, le=25 * MOST_GPUS)]
    waiting_hours: Annotated[float, Meta(ge=0, le=LARGEST)]
    """Hours from submit to start of the jobs that started on this day."""


class UsageFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The usage of one queue by day."""

    version: Literal[1] = 1
    queue: Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")] = "0" * 16
    """Tells the queues of one user apart."""
    at: Moment = 0.0
    """When it was written: of several files of one queue, the newest counts."""
    gpus: tuple[GpuDay, ...] = ()
    groups: tuple[GroupDay, ...] = ()

    @property
    def first_day(self) -> int:
        """The oldest day; readers do not depend on an order."""
        return min([*(line.day for line in self.gpus), *(line.day for line in self.groups), _LAST_DAY])

    def between(self, first: int, end: int = _LAST_DAY) -> UsageFile:
        """The same without days before the first, and from the end on."""
        gpus = tuple(line for line in self.gpus if first <= line.day < end)
        return replace(self, gpus=gpus, groups=tuple(line for line in self.groups if first <= line.day < end))


_usages = Decoder(UsageFile)


def encode_usage(usage: UsageFile) -> bytes:
    """The contents of the file, without the oldest days if they do not fit."""
    while len(contents := msgspec.json.encode(usage)) > MOST_BYTES:
        usage = usage.between(usage.first_day + 1)
    return contents


def decode_usage(contents: bytes, uid: int) -> tuple[int, UsageFile]:
    """The usage in a file and its owner."""
    return uid, decoded(_usages, contents, "a usage")
