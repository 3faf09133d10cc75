"""Leases and demands that users of a machine share. A file counts as long as a process holds its lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from stoker.core.booking import Booking
from stoker.core.device import Drain
from stoker.core.lease import Claim, Lease, fits
from stoker.core.planner.fairshare import Demand
from stoker.ledger.agreements import Agreements
from stoker.ledger.directory import (
    PLACES,
    LedgerUnusable,
    entered,
    explained_errors,
    find_ledger,
    ledger_path,
    prepare_ledger,
)
from stoker.ledger.files import (
    MOST_BYTES,
    WHAT_LIMIT,
    InvalidFile,
    new_name,
    owner_name,
    printable,
    publish,
    purpose,
    within_limit,
)
from stoker.ledger.formats import (
    DEMAND,
    LEASE,
    NOTICE,
    HeldDemand,
    HeldNotice,
    LedgerNotice,
    decode_demand,
    decode_lease,
    decode_notice,
    encode_demand,
    encode_lease,
    encode_notice,
    explained,
    programs,
    waiting_jobs,
)
from stoker.ledger.lasting import Announcement
from stoker.ledger.reader import OWNER_BYTES, OWNER_FILES, CachedEntry, LedgerReader, listed
from stoker.ledger.removed import RemovedLeases

__all__ = [
    "MOST_BYTES",
    "PLACES",
    "WHAT_LIMIT",
    "HeldDemand",
    "HeldLease",
    "HeldNotice",
    "HeldPost",
    "InvalidFile",
    "Ledger",
    "LedgerNotice",
    "LedgerUnusable",
    "LedgerView",
    "Posts",
    "find_ledger",
    "ledger_path",
    "owner_name",
    "prepare_ledger",
]

Contents = TypeVar("Contents")

_LOOKS = 5
"""How often the older of two claims that met looks whether the younger has withdrawn."""


class HeldLease(Struct, frozen=True):
    """A lease of this process. The lock of its descriptor keeps it alive, also in a process that inherits it."""

    fd: int
    path: Path
    lease: Lease

    @property
    def name(self) -> str:
        """The file name, which identifies the lease."""
        return self.path.name


class HeldPost(Struct, frozen=True):
    """A file that this process publishes for a feature. The lock of its descriptor keeps it alive."""

    fd: int
    path: Path
    contents: bytes


class Posts(Struct, Generic[Contents], frozen=True):
    """Files of one kind of all users by name, and a warning about each that was ignored."""

    contents: Mapping[str, Contents]
    warnings: tuple[str, ...] = ()


class LedgerView(Struct, frozen=True):
    """The live leases and demands by name, and a warning about each file that was ignored."""

    leases: Mapping[str, Lease]
    warnings: tuple[str, ...] = ()
    demands: Mapping[str, Demand] = {}
    waiting: Mapping[str, int] = {}
    """How many jobs of each user wait, as far as engines tell."""
    drained: Mapping[str, Drain] = {}
    """The devices that root or a coordinator drained for all users, by ledger name."""
    bookings: Mapping[str, Booking] = {}
    """Those that count and are not over."""
    messages: tuple[Announcement, ...] = ()
    """Of root and coordinators to all users, the newest first."""
    programs: Mapping[str, frozenset[str]] = {}
    """The versions of Stoker that the engines of each user run; empty for one that does not tell."""


class Ledger:
    """One ledger directory.

    A claim is published first and granted after a look at all leases: of two claims that meet, at least one sees the
    other. That needs no lock and no honest third user. Nothing here waits.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = LedgerReader(path)
        self._removed = RemovedLeases(path)
        self.agreements = Agreements(path, self._reader)

    def claim(
        self,
        claims: tuple[Claim, ...],
        what: str,
        now: float,
        capacities: Mapping[str, int | None] = {},
        name: str = "",
    ) -> HeldLease | None:
        """A lease on all the claims at once; None if one of them is not compatible with existing leases.

        None also if another process claims one of them at the same moment, or has to restore a lease whose file was
        removed: the caller tries again. `name` restores such a lease of this user.
        """
        lease = Lease(claims, owner_name(os.geteuid()), os.getpid(), purpose(what), now)
        contents = encode_lease(lease)
        # Cleaners of temporary files remove directories that were idle for long.
        prepare_ledger(self.path)
        with explained_errors(self.path), entered(self.path) as directory:
            listing = listed(directory)
            self._reader.sweep(directory, listing)
            before = self._reader.read(directory, listing, LEASE, decode_lease)
            removed = self._removed.look(directory, listing, before.contents)
            removed.pop(name, None)
            before.contents.update(removed)
            if (self._removed.must_wait and not name) or not fits(claims, before.contents.values(), capacities):
                return None
            _check_own(before, contents)
            name = name or new_name(LEASE)
            held = HeldLease(publish(directory, name, contents), self.path / name, lease)
            self._removed.mark(held.fd, name, lease)
            try:
                granted = self._prevails(directory, held, before, listing, capacities)
            except BaseException:
                self.release(held)
                raise
            if not granted:
                self.release(held)
            return held if granted else None

    def _prevails(
        self,
        directory: int,
        held: HeldLease,
        before: CachedEntry[Lease],
        listing: Mapping[str, int],
        capacities: Mapping[str, int | None],
    ) -> bool:
        """Whether our lease, which all can see by now, is compatible with all that were published meanwhile.

        Where it is not, the younger claim withdraws. The older one may not rely on that, since the younger may have
        been granted before ours was published: it looks again a few times, and withdraws too if nothing changes.
        """
        claims, ours = held.lease.claims, (held.lease.since, held.name)
        known_names = listing.keys() | {held.name}
        for _ in range(_LOOKS):
            later = self._reader.read(directory, listed(directory), LEASE, decode_lease, but=known_names).contents
            if fits(claims, [*before.contents.values(), *later.values()], capacities):
                return True
            older = [lease for name, lease in later.items() if (lease.since, name) < ours]
            if not fits(claims, [*before.contents.values(), *older], capacities):
                return False
            os.sched_yield()
        return False

    def live(self) -> LedgerView:
        """The live leases and demands. Removes stale files of this user; no content can make it fail."""
        try:
            with entered(self.path) as directory:
                listing = listed(directory)
                live_leases = self._reader.read(directory, listing, LEASE, decode_lease).contents
                live_leases.update(self._removed.look(directory, listing, live_leases))
                wanted = self._reader.read(directory, listing, DEMAND, decode_demand).contents
                told = self._reader.read(directory, listing, NOTICE, decode_notice).contents.values()
                agreed = self.agreements.look(directory, listing)
                warnings = (*self._reader.warnings(listing), *self._removed.warnings())
                leases = explained(live_leases, told)
                return LedgerView(
                    leases,
                    warnings,
                    wanted,
                    waiting_jobs(told),
                    agreed.drained,
                    agreed.bookings,
                    agreed.messages,
                    programs(told),
                )
        except FileNotFoundError:
            return LedgerView({})
        except (OSError, LedgerUnusable) as error:
            return LedgerView({}, (self._unreadable(error),))

    def _unreadable(self, error: Exception) -> str:
        return printable(f"the ledger {self.path} cannot be read: {error}")

    def release(self, held: HeldLease) -> None:
        """End a lease that this process holds."""
        self._removed.end(held.name)
        with suppress(OSError):
            os.unlink(held.path)
        os.close(held.fd)

    def withdraw(self, lease: str) -> None:
        """End a lease of this user by path or name, whichever process holds its descriptor.

        A file that cannot be removed ends with the last of these processes.
        """
        self._removed.end(_name_in(lease))
        with suppress(OSError):
            os.unlink(self._file(lease))

    def is_gone(self, lease: str) -> bool:
        """Whether the file of a lease of this user was removed, so that other engines ignore it."""
        return not os.path.lexists(self._file(lease))

    def freshen(self, lease: str) -> None:
        """Set the file time of a lease to now, against cleaners that remove files by age."""
        with suppress(OSError):
            os.utime(self._file(lease), follow_symlinks=False)

    def _file(self, lease: str) -> str:
        return f"{self.path}/{_name_in(lease)}"

    def demand(self, demand: Demand, before: HeldDemand | None = None) -> HeldDemand:
        """Publish what this engine waits for, in place of `before`. The user is always that of this process."""
        uid = os.geteuid()
        demand = msgspec.structs.replace(
            demand, uid=uid, owner=owner_name(uid), pid=os.getpid(), what=purpose(demand.what)
        )
        path = before.path if before else self.path / new_name(DEMAND)
        return HeldDemand(self._replace(before, path, encode_demand(demand)), path, demand)

    def notify(self, notice: LedgerNotice, before: HeldNotice | None = None) -> HeldNotice:
        """Publish which jobs run under the leases of this engine and how many wait, in place of `before`."""
        path = before.path if before else self.path / new_name(NOTICE)
        return HeldNotice(self._replace(before, path, encode_notice(notice)), path, notice)

    def post(self, kind: str, contents: bytes, before: HeldPost | None = None) -> HeldPost:
        """Publish what a feature tells all users, in place of `before`, as long as this process lives."""
        path = before.path if before else self.path / new_name(kind)
        return HeldPost(self._replace(before, path, within_limit(contents)), path, contents)

    def leave(self, name: str, contents: bytes) -> None:
        """Publish a lasting file of a feature, which counts whether its engine lives or not."""
        os.close(self._replace(None, self.path / name, within_limit(contents)))

    def posts(self, kind: str, decode: Callable[[bytes, int], Contents], *, lasting: bool = False) -> Posts[Contents]:
        """Read the files of one kind of all users; no content makes it fail. `decode` gets the uid of the owner."""
        try:
            with entered(self.path) as directory:
                listing = listed(directory)
                read = self._reader.read(directory, listing, kind, decode, lasting=lasting)
                return Posts(read.contents, self._reader.warnings(listing))
        except FileNotFoundError:
            return Posts({})
        except (OSError, LedgerUnusable) as error:
            return Posts({}, (self._unreadable(error),))

    def retract(self, held: HeldDemand | HeldNotice | HeldPost) -> None:
        """Remove a file of this process that is no lease."""
        with suppress(OSError):
            os.unlink(held.path)
        os.close(held.fd)

    def _replace(self, before: HeldDemand | HeldNotice | HeldPost | None, path: Path, contents: bytes) -> int:
        prepare_ledger(self.path)
        with explained_errors(self.path), entered(self.path) as directory:
            fd = publish(directory, path.name, contents)
        if before:
            os.close(before.fd)
        return fd


def _name_in(lease: str) -> str:
    """The file name of a lease that is given by path or name."""
    return lease.rpartition("/")[2]


def _check_own(seen: CachedEntry[Lease], contents: bytes) -> None:
    """Refuse a lease that would be beyond what others read of one user."""
    mine = f"{os.geteuid()}."
    count = sum(name.startswith(mine) for name in seen.contents)
    if count >= OWNER_FILES or seen.sizes.get(os.geteuid(), 0) + len(contents) > OWNER_BYTES:
        raise LedgerUnusable(f"you hold {count:,} leases, the limit per user", "wait until some of your jobs end")
