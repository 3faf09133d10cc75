"""The files by which engines tell all users of a machine what they do; those of others are read as hostile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.json import Decoder

from stoker.ledger.files import LARGEST, MOST_BYTES, MOST_GPUS, WHAT_LIMIT, Moment, Process
from stoker.ledger.formats import MOST_LEASES, JobId, decoded

BOARD = "board"
"""How the names of these files end."""
MOST_KINDS = 20
"""Kinds of waiting jobs that a board tells apart; it counts the others."""
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
    """What one engine does."""

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
