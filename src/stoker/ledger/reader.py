"""Read the files of a ledger directory. Other users may have put anything there, and any amount of it."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct

from stoker.ledger.files import (
    FAULTS_OF_THE_FILE,
    MOST_BYTES,
    InvalidFile,
    opened,
    owner_name,
    printable,
    try_lock,
    unlink,
    within_limit,
)

OWNER_FILES = 1000
"""Most files of one kind and owner that a look opens, the newest first."""
OWNER_BYTES = 1 << 20
"""Most bytes that a look reads of the files of one owner. Our own claims stay within this; others lose what exceeds
it."""
MEMORY_SECONDS = 600.0
"""How long a file that was ignored is not looked at again."""
WARNINGS = 8
"""Ignored files that are named one by one; more get one sentence in all."""
SWEEP_LIMIT = 16
SWEEP_SECONDS = 60.0
"""Age at which an unfinished file belongs to a process that was killed."""

_NAME = re.compile(r"([0-9]{1,10})\.[0-9a-f]{16}\.[a-z]+")
_TRIES = 10
"""Attempts to open a file that is replaced by a newer one each time."""

Contents = TypeVar("Contents")
Listing = Mapping[str, int]
"""The inode of each name in the directory."""


class CachedEntry(Struct, Generic[Contents], frozen=True):
    """The live files of one kind by name, and how many bytes of each user they are."""

    contents: dict[str, Contents]
    sizes: Mapping[int, int]


class _Ignored(Struct, frozen=True, gc=False):
    inode: int
    owner: str
    why: str


def listed(directory: int) -> dict[str, int]:
    """All names in the directory, each with its inode, which costs no system call per file."""
    with os.scandir(directory) as entries:
        return {entry.name: entry.inode() for entry in entries}


class LedgerReader:
    """Reads one directory again and again. Files that it ignores cost nothing but their place in the listing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ignored: dict[str, _Ignored] = {}
        self._forget_at = 0.0

    def read(
        self,
        directory: int,
        listing: Listing,
        kind: str,
        decoded: Callable[[bytes, int], Contents],
        but: Collection[str] = (),
        *,
        lasting: bool = False,
    ) -> CachedEntry[Contents]:
        """The live files of a kind, except those with the names in `but`; `lasting` ones need no process."""
        self._forget()
        contents: dict[str, Contents] = {}
        sizes: Counter[int] = Counter()
        for name in self._candidates(directory, listing, f".{kind}", but):
            try:
                if read := _read(directory, name, sizes, lasting=lasting):
                    contents[name] = decoded(*read)
            except InvalidFile as error:
                self.ignore(directory, name, listing[name], str(error))
        return CachedEntry(contents, sizes)

    def warnings(self, listing: Listing) -> tuple[str, ...]:
        """The files that are ignored at the moment, in a few sentences."""
        gone = [name for name in self._ignored if name not in listing]
        for name in gone:
            del self._ignored[name]
        if len(self._ignored) <= WARNINGS:
            return tuple(
                printable(f"ignored {self._path / name}: {ignored.why}") for name, ignored in self._ignored.items()
            )
        owners = Counter(ignored.owner for ignored in self._ignored.values()).most_common(3)
        whose = ", ".join(f"{count:,} of {owner}" for owner, count in owners)
        return (printable(f"ignored {len(self._ignored):,} files in {self._path} that are not live leases ({whose})"),)

    def sweep(self, directory: int, listing: Listing) -> None:
        """Remove some unfinished files of killed processes of this user."""
        mine = f"{os.geteuid()}."
        names = [name for name in listing if name.endswith(".new") and name.startswith(mine)]
        for name in [name for name in names if not self._is_ignored(name, listing)][:SWEEP_LIMIT]:
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            except OSError:
                continue
            if status.st_uid != os.geteuid():
                self._ignored[name] = _Ignored(status.st_ino, owner_name(status.st_uid), "named after another user")
            elif abs(time.time() - status.st_mtime) > SWEEP_SECONDS:
                unlink(directory, name)

    def _forget(self) -> None:
        now = time.monotonic()
        if now >= self._forget_at:
            self._ignored.clear()
            self._forget_at = now + MEMORY_SECONDS

    def _is_ignored(self, name: str, listing: Listing) -> bool:
        return (ignored := self._ignored.get(name)) is not None and ignored.inode == listing[name]

    def ignore(self, directory: int, name: str, inode: int, why: str) -> None:
        """Do not read a file again for a while, and warn about it."""
        try:
            owner = owner_name(os.stat(name, dir_fd=directory, follow_symlinks=False).st_uid)
        except OSError:
            return  # gone meanwhile
        self._ignored[name] = _Ignored(inode, owner, why)

    def _candidates(self, directory: int, listing: Listing, suffix: str, but: Collection[str]) -> Iterable[str]:
        """The names to open: all, unless there are so many that one user may have left them."""
        names = [
            name
            for name in listing
            if name.endswith(suffix) and name not in but and not self._is_ignored(name, listing)
        ]
        return names if len(names) <= OWNER_FILES else self._newest_of_each_owner(directory, names)

    def _newest_of_each_owner(self, directory: int, names: Iterable[str]) -> Iterable[str]:
        """At most OWNER_FILES of each user: the owner of a file tells whose it is, not its name."""
        owners: defaultdict[int, list[tuple[float, str, int]]] = defaultdict(list)
        for name in names:
            try:
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                _check_file(name, status)
                if status.st_uid != os.geteuid():  # stale files of ours are removed, whatever they contain
                    _check_size(status)
            except InvalidFile as error:
                self._ignored[name] = _Ignored(status.st_ino, owner_name(status.st_uid), str(error))
            except OSError:
                continue  # gone meanwhile
            else:
                owners[status.st_uid].append((status.st_mtime, name, status.st_ino))
        for uid, files in owners.items():
            files.sort(reverse=True)
            for _, name, inode in files[OWNER_FILES:]:
                self._ignored[name] = _Ignored(inode, owner_name(uid), f"its owner has more than {OWNER_FILES:,} files")
        return [name for files in owners.values() for _, name, _ in files[:OWNER_FILES]]


def _read(directory: int, name: str, sizes: Counter[int], *, lasting: bool) -> tuple[bytes, int] | None:
    """The contents of a file and the user id of its owner; None if it was just released, or stale and ours."""
    try:
        for _ in range(_TRIES):
            with opened(directory, name) as fd:
                stale = not lasting and try_lock(fd, fcntl.LOCK_SH)
                # A holder unlinks before it unlocks. Checked in this order, a released file never looks stale.
                status = os.fstat(fd)
                if status.st_nlink > 0 and not (stale and _is_replaced(directory, name, status)):
                    return _examine(directory, name, fd, status, sizes, stale=stale)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in FAULTS_OF_THE_FILE:
            raise
        raise InvalidFile("a symbolic link" if error.errno == errno.ELOOP else "it cannot be opened") from error
    return None


def _is_replaced(directory: int, name: str, status: os.stat_result) -> bool:
    """Whether the name belongs to another file now; a second link elsewhere keeps the link count above 0."""
    return not os.path.samestat(status, os.stat(name, dir_fd=directory, follow_symlinks=False))


def _examine(
    directory: int, name: str, fd: int, status: os.stat_result, sizes: Counter[int], *, stale: bool
) -> tuple[bytes, int] | None:
    uid = status.st_uid
    _check_file(name, status)
    if stale and uid == os.geteuid():
        unlink(directory, name)
        return None
    _check_size(status)
    if stale:
        raise InvalidFile(f"left behind by {owner_name(uid)}, no process holds it")
    if sizes[uid] + status.st_size > OWNER_BYTES:
        raise InvalidFile(f"its owner has more than {OWNER_BYTES:,} bytes")
    sizes[uid] += status.st_size
    return within_limit(os.read(fd, MOST_BYTES + 1)), uid


def _check_file(name: str, status: os.stat_result) -> None:
    """Refuse what Stoker does not make. The number of links says nothing: other users may be able to add one."""
    match = _NAME.fullmatch(name)
    if not match or not stat.S_ISREG(status.st_mode):
        raise InvalidFile("not a file of Stoker")
    if status.st_uid != int(match[1]):
        raise InvalidFile(f"it belongs to {owner_name(status.st_uid)}, not to the user in its name")


def _check_size(status: os.stat_result) -> None:
    if status.st_size == 0:
        raise InvalidFile("it is empty")
    if status.st_size > MOST_BYTES:
        raise InvalidFile(f"larger than {MOST_BYTES} bytes")
