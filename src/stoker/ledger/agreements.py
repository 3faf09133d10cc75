"""Agreements of users through the ledger: bookings, devices that are drained for all, and messages to all."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from stoker.core.booking import MOST_OF_ONE_USER, Booking, standing
from stoker.core.device import Drain
from stoker.core.errors import UsageError
from stoker.ledger.directory import entered, explained_errors, prepare_ledger
from stoker.ledger.files import new_name, publish, unlink
from stoker.ledger.lasting import (
    BOOKING,
    DRAINS,
    MESSAGE,
    Announcement,
    Drains,
    LastingFiles,
    decode_booking,
    decode_drains,
    decode_message,
    encode_booking,
    encode_drains,
    encode_message,
    lasting_names,
)
from stoker.ledger.reader import LedgerReader, listed

LOOKS = 5
"""How often the older of two files that met looks whether the younger has been withdrawn."""


class Agreed(Struct, frozen=True):
    """All that counts now."""

    bookings: Mapping[str, Booking] = {}
    """By the names of their files."""
    drained: Mapping[str, Drain] = {}
    """By ledger names of devices."""
    messages: tuple[Announcement, ...] = ()
    """The newest first."""


NOTHING_AGREED = Agreed()


class Agreements:
    """The lasting files of one ledger directory."""

    def __init__(self, path: Path, reader: LedgerReader) -> None:
        self._path = path
        self._bookings = LastingFiles(reader, BOOKING, decode_booking)
        self._drains = LastingFiles(reader, DRAINS, decode_drains)
        self._messages = LastingFiles(reader, MESSAGE, decode_message)

    def look(self, directory: int, listing: Mapping[str, int]) -> Agreed:
        """All that counts now, for a reader that has the directory open."""
        if not lasting_names(listing):
            return NOTHING_AGREED
        now = time.time()
        drains = self._drains.look(directory, listing, now).values()
        messages = self._messages.look(directory, listing, now).values()
        return Agreed(
            self._booked(directory, listing),
            {name: Drain(since, drain.owner) for drain in drains for name, since in drain.devices.items()},
            tuple(sorted((message for message in messages if message.until > now), key=lambda message: -message.at)),
        )

    # -- bookings ---------------------------------------------------------------------------------

    def book(self, booking: Booking) -> str | Booking:
        """Publish a booking of this user and return its name, or the booking of the same GPU that was first.

        As with a claim: of two bookings that meet, at least one sees the other; the younger withdraws at once, and the
        older one after a few more looks.
        """
        contents, uid = encode_booking(booking), os.geteuid()
        prepare_ledger(self._path)
        with explained_errors(self._path), entered(self._path) as directory:
            listing = listed(directory)
            before = self._booked(directory, listing)
            if sum(other.uid == uid for other in before.values()) >= MOST_OF_ONE_USER:
                text = f"you have {MOST_OF_ONE_USER} bookings, the limit per user"
                raise UsageError(text, "cancel one: stoker book --cancel ID")
            if rival := next(filter(booking.meets, before.values()), None):
                return rival
            name = new_name(BOOKING)
            os.close(publish(directory, name, contents))
            rival = self._rival(directory, name, listing)
            if rival is not None:
                unlink(directory, name)
            return rival or name

    def _rival(self, directory: int, name: str, before: Mapping[str, int]) -> Booking | None:
        """The booking because of which a new one of ours has to be withdrawn."""
        rivals: list[tuple[float, str, Booking]] = []
        for _ in range(LOOKS):
            bookings = self._bookings.look(directory, listed(directory), time.time())
            if (mine := bookings.get(name)) is None:  # root or a cleaner has removed it
                break
            others = {key: other for key, other in bookings.items() if key not in before and key != name}
            rivals = [(other.made, key, other) for key, other in others.items() if mine.meets(other)]
            if not rivals or min(rivals)[:2] < (mine.made, name):
                break
            os.sched_yield()
        return min(rivals)[2] if rivals else None

    def end_booking(self, name: str) -> None:
        """Remove a booking: one of this user, or as root of any."""
        with explained_errors(self._path), entered(self._path) as directory:
            os.unlink(name, dir_fd=directory)

    def _booked(self, directory: int, listing: Mapping[str, int]) -> dict[str, Booking]:
        now = time.time()
        return standing(self._bookings.look(directory, listing, now), now)

    # -- root and coordinators --------------------------------------------------------------------

    def drain(self, changes: Mapping[str, float | None]) -> None:
        """Drain devices for all users, by ledger name, or use them again (None); root can also end others' drains."""
        prepare_ledger(self._path)
        with explained_errors(self._path), entered(self._path) as directory:
            drains = self._drains.look(directory, listed(directory), time.time())
            uid = os.geteuid()
            old = {name: drain for name, drain in drains.items() if uid in (drain.uid, 0)}
            devices: dict[str, float | None] = {}
            for drain in old.values():
                devices |= drain.devices
            kept = {name: since for name, since in (devices | dict(changes)).items() if since is not None}
            if kept:
                os.close(publish(directory, new_name(DRAINS), encode_drains(Drains(uid, "", kept))))
            for name in old:
                unlink(directory, name)

    def tell(self, message: Announcement) -> None:
        """Tell all users something, in place of what this user told them before; an empty text tells nothing."""
        prepare_ledger(self._path)
        with explained_errors(self._path), entered(self._path) as directory:
            messages = self._messages.look(directory, listed(directory), time.time())
            if message.text:
                os.close(publish(directory, new_name(MESSAGE), encode_message(message)))
            for name, before in messages.items():
                if os.geteuid() in (before.uid, 0 if not message.text else before.uid):
                    unlink(directory, name)

    def messages(self) -> tuple[Announcement, ...]:
        """The messages that all users see now, the newest first."""
        with entered(self._path) as directory:
            return self.look(directory, listed(directory)).messages
