"""Take a snapshot: read each file whole, and only those that changed since the last one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from stoker.core.errors import StokerError
from stoker.features.freeze.listing import (
    LARGEST_UNTRACKED,
    CodeLimits,
    CodeListing,
    NotFreezable,
    list_code,
    too_large,
)
from stoker.features.freeze.snapshots import (
    LINK,
    PLAIN_FILE,
    PROGRAM,
    CodeSnapshot,
    FrozenFile,
    SnapshotStore,
    flush_file,
    snapshot_of,
)
from stoker.store.paths import UNFINISHED

READS = 20
"""How often a file that changes while it is read is read again."""
_FRESH = 2 * 10**9
"""Nanoseconds after a change in which another one may leave the same times: such a file is read again next time."""
_CHUNK = 1 << 20


class _Seen(NamedTuple):
    """A file as it was when it was read."""

    stamp: str
    """Size, times, inode and mode."""
    file: FrozenFile


class Taken(NamedTuple):
    """A snapshot, and what its tree leads to besides."""

    snapshot: CodeSnapshot
    others: tuple[str, ...]


def take(
    root: str, store: SnapshotStore, environment: Mapping[str, str], limits: CodeLimits, *, keep: bool = True
) -> Taken:
    """Take a snapshot of the code below a root and store its contents; raises NotFreezable with the reason.

    Without `keep` nothing is written, as to compare the code with a snapshot.
    """
    try:
        return _Taking(root, store, limits, keep=keep).take(list_code(root, environment, limits))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            raise StokerError(
                f"cannot freeze the code of {root} in {store.folder}: {error.strerror}",
                "nothing was submitted; free some space there, or add --no-freeze",
            ) from error
        raise NotFreezable(f"cannot read {error.filename or root}: {error.strerror}", "use --no-freeze") from error


def forget(root: str, store: SnapshotStore) -> None:
    """Forget what was read before, so that each file is read and stored again."""
    _memory(root, store).unlink(missing_ok=True)


def _memory(root: str, store: SnapshotStore) -> Path:
    return store.folder / "seen" / hashlib.sha256(os.fsencode(root)).hexdigest()[:32]


class _Taking:
    def __init__(self, root: str, store: SnapshotStore, limits: CodeLimits, *, keep: bool) -> None:
        self._root = root
        self._store = store
        self._limits = limits
        self._keep = keep
        self._memory = _memory(root, store)
        self._new: list[Path] = []

    def take(self, listing: CodeListing) -> Taken:
        remembered = self._remembered()
        now = time.time_ns()
        statuses = {path: status for path in listing.code if (status := self._status(path)) is not None}
        large = [path for path in listing.untracked & statuses.keys() if statuses[path].st_size > LARGEST_UNTRACKED]
        for path in large:
            del statuses[path]
        total = sum(status.st_size for status in statuses.values())
        if total > self._limits.size:
            raise too_large(self._root, total, self._limits)
        seen: list[_Seen] = []
        files: list[FrozenFile] = []
        changed = [
            path for path in statuses if path not in remembered or remembered[path].stamp != _stamp(statuses[path])
        ]
        for path, status in statuses.items():
            last = remembered.get(path)
            if last is None or last.stamp != _stamp(status):
                last = self._read(path)
                if last is None:
                    continue
            files.append(last.file)
            if not _is_fresh(last.stamp, now):
                seen.append(last)
        self._flush()
        if self._keep and (changed or len(seen) != len(remembered)):
            self._remember(seen)
        return Taken(snapshot_of(self._root, files), (*listing.others, *large))

    def _status(self, path: str) -> os.stat_result | None:
        """Status of a file or a link; None for one that is gone, and for sockets, devices and pipes."""
        try:
            status = os.lstat(os.path.join(self._root, path))
        except (FileNotFoundError, NotADirectoryError):  # tracked and deleted, or not in a sparse checkout
            return None
        return status if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode) else None

    def _flush(self) -> None:
        """Write new contents to the disk, all after the last: the first takes long, and the others hardly any time."""
        for content in self._new:
            with contextlib.suppress(FileNotFoundError):
                flush_file(content)

    def _read(self, path: str) -> _Seen | None:
        """Read a file and store its content; None if it was removed meanwhile."""
        full = os.path.join(self._root, path)
        for _ in range(READS):
            status = self._status(path)
            if status is None:
                return None
            if stat.S_ISLNK(status.st_mode):
                data, after = os.fsencode(os.readlink(full)), self._status(path)
            else:
                read = _content(full)
                if read is None:
                    continue
                data, after = read
            if after is not None and _stamp(after) == _stamp(status) and len(data) == status.st_size:
                break
        else:
            raise NotFreezable(f"{full} changes all the time", "name it in .stokerignore, or use --no-freeze")
        mode = LINK if stat.S_ISLNK(status.st_mode) else PROGRAM if status.st_mode & 0o100 else PLAIN_FILE
        file = FrozenFile(path, mode, hashlib.sha256(data).hexdigest()[:40], len(data))
        if self._keep and self._store.add(file, data):
            self._new.append(self._store.blob_path(file.blob, file.mode))
        return _Seen(_stamp(status), file)

    # -- what was read before ------------------------------------------------------------------

    def _remembered(self) -> dict[str, _Seen]:
        memory = {}
        try:
            for line in self._memory.read_bytes().decode(errors="surrogateescape").split("\0")[1:]:
                facts, _, path = line.partition("\t")
                stamp, mode, blob, size = facts.split(" ")
                memory[path] = _Seen(stamp, FrozenFile(path, mode, blob, int(size)))
        except (OSError, ValueError):  # none, or damaged: all files are read again
            return {}
        return memory

    def _remember(self, seen: list[_Seen]) -> None:
        """Write it in one step; a memory that cannot be written costs time and nothing else."""
        lines = [f"{stamp} {file.mode} {file.blob} {file.size}\t{file.path}" for stamp, file in seen]
        draft = self._memory.with_name(f"{UNFINISHED}{os.urandom(6).hex()}")
        try:
            self._memory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes("\0".join([self._root, *lines]).encode(errors="surrogateescape"))
            draft.rename(self._memory)
        except OSError:
            draft.unlink(missing_ok=True)


def _content(path: str) -> tuple[bytes, os.stat_result] | None:
    """A regular file and its status after it was read; None if it became something else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
            return None
        raise
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = file.read()
        return data, os.fstat(descriptor)


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}:{status.st_ino}:{status.st_mode}"


def _is_fresh(stamp: str, now: int) -> bool:
    """Whether a file changed so shortly before it was read that a later change may have the same times."""
    _, modified, changed, *_ = stamp.split(":")
    return max(int(modified), int(changed)) > now - _FRESH
