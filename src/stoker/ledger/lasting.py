"""Files of the ledger that last without a process: they count until their time is over, or their owner removes them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Annotated, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import Meta, Struct

from stoker.core.booking import LONGEST_SECONDS, Booking
from stoker.core.errors import UsageError
from stoker.core.units import DAY
from stoker.ledger.coordinators import is_coordinator
from stoker.ledger.files import MOST_GPUS, WHAT_LIMIT, InvalidFile, Moment, owner_name, purpose, unlink, within_limit
from stoker.ledger.formats import decoded
from stoker.ledger.reader import MEMORY_SECONDS, LedgerReader, Listing

BOOKING, DRAINS, MESSAGE = "booking", "drains", "message"
"""How names of files end."""
KEPT_SECONDS = 3600.0
"""How long the owner keeps a file whose time is over: the clock may go back."""


class LastingContents(Protocol):
    """The facts that every lasting file has."""

    @property
    def uid(self) -> int: ...
    @property
    def until(self) -> float: ...


Contents = TypeVar("Contents", bound=LastingContents)


class LastingFiles(Generic[Contents]):
    """The files of one kind. Each is read once, since none changes: a hostile owner who changes one gains nothing."""

    def __init__(self, reader: LedgerReader, kind: str, decode: Callable[[bytes, int, float], Contents]) -> None:
        """`decode` gets the contents, the user id of the owner, and when the file was made."""
        self.kind = kind
        self._reader = reader
        self._decode = decode
        self._known: dict[str, tuple[int, Contents]] = {}
        self._forget_at = 0.0

    def look(self, directory: int, listing: Listing, now: float) -> dict[str, Contents]:
        """The files by name, whether their time has come or not. Removes those of this user that are over."""
        if time.monotonic() >= self._forget_at:
            self._known, self._forget_at = {}, time.monotonic() + MEMORY_SECONDS
        self._known = {name: entry for name, entry in self._known.items() if listing.get(name) == entry[0]}
        fresh = self._reader.read(directory, listing, self.kind, _raw, but=self._known.keys(), lasting=True)
        for name, (written, uid) in fresh.contents.items():
            try:
                made = os.stat(name, dir_fd=directory, follow_symlinks=False).st_ctime
                self._known[name] = listing[name], self._decode(written, uid, made)
            except InvalidFile as error:
                self._reader.ignore(directory, name, listing[name], str(error))
            except FileNotFoundError:
                continue
        for name, (_, contents) in list(self._known.items()):
            if contents.uid == os.geteuid() and contents.until < now - KEPT_SECONDS:
                unlink(directory, name)
                del self._known[name]
        return {name: contents for name, (_, contents) in self._known.items()}


def _raw(contents: bytes, uid: int) -> tuple[bytes, int]:
    return contents, uid


# -- bookings --------------------------------------------------------------------------------------


class _WrittenBooking(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    claims: Annotated[tuple[str, ...], Meta(min_length=1, max_length=MOST_GPUS)]
    since: Moment
    until: Moment
    why: str = ""


_bookings = msgspec.json.Decoder(_WrittenBooking)


def encode_booking(booking: Booking) -> bytes:
    """The contents of the file; an error where readers would refuse it."""
    written = _WrittenBooking(1, booking.claims, booking.since, booking.until, purpose(booking.why))
    try:
        contents = within_limit(msgspec.json.encode(written))
        decode_booking(contents, 0, 0.0)
    except (UnicodeEncodeError, InvalidFile) as error:
        raise UsageError(f"this cannot be booked: {error}", "use a shorter reason, or fewer GPUs") from error
    return contents


def decode_booking(contents: bytes, uid: int, made: float) -> Booking:
    written = decoded(_bookings, contents, "a booking")
    if not 0 < written.until - written.since <= LONGEST_SECONDS:
        raise InvalidFile(f"it books for {written.until - written.since:.0f} seconds")
    names = tuple(dict.fromkeys(written.claims))
    return Booking(owner_name(uid), uid, names, written.since, written.until, purpose(written.why), made)


# -- what root and coordinators tell -----------------------------------------------------------------

LONGEST_MESSAGE_SECONDS = 31 * DAY


class Drains(Struct, frozen=True):
    """The devices that one user drained for all, each with the time."""

    uid: int
    owner: str
    devices: Mapping[str, float]
    until: float = inf


class Announcement(Struct, frozen=True):
    """A sentence for all users."""

    uid: int
    owner: str
    text: str
    at: float
    until: float


class _WrittenDrains(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    devices: Annotated[dict[str, Moment], Meta(max_length=MOST_GPUS)]


class _WrittenMessage(Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    text: Annotated[str, Meta(min_length=1, max_length=WHAT_LIMIT)]
    until: Moment


_drains = msgspec.json.Decoder(_WrittenDrains)
_messages = msgspec.json.Decoder(_WrittenMessage)


def encode_drains(drains: Drains) -> bytes:
    return within_limit(msgspec.json.encode(_WrittenDrains(1, dict(drains.devices))))


def decode_drains(contents: bytes, uid: int, made: float) -> Drains:
    del made
    _check_coordinator(uid)
    return Drains(uid, owner_name(uid), decoded(_drains, contents, "a list of devices").devices)


def encode_message(message: Announcement) -> bytes:
    return within_limit(msgspec.json.encode(_WrittenMessage(1, purpose(message.text), message.until)))


def decode_message(contents: bytes, uid: int, made: float) -> Announcement:
    _check_coordinator(uid)
    written = decoded(_messages, contents, "a message")
    return Announcement(
        uid, owner_name(uid), purpose(written.text), made, min(written.until, made + LONGEST_MESSAGE_SECONDS)
    )


def _check_coordinator(uid: int) -> None:
    if not is_coordinator(uid):
        raise InvalidFile(f"it belongs to {owner_name(uid)}; only root and coordinators speak for all users")


def lasting_names(listing: Mapping[str, int]) -> bool:
    """Whether the directory has any such file: mostly it has none, and then none of this costs time."""
    return any(name.endswith(_KINDS) for name in listing)


_KINDS = tuple(f".{kind}" for kind in (BOOKING, DRAINS, MESSAGE))
