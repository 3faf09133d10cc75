"""The directory that all users of a machine share: where it is, and whether it is safe to use."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from stoker.core.errors import StokerError, UsageError
from stoker.core.places import LEDGER_PLACES

PLACES = tuple(map(Path, LEDGER_PLACES))

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARED_HINT = "set STOKER_LEDGER to a directory with mode 1777 that all users of this machine share"
_HINTS = {
    errno.ENOSPC: "free some space on its file system; jobs then start automatically",
    errno.EDQUOT: "free some of your quota on its file system; jobs then start automatically",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


class LedgerUnusable(StokerError):
    """The ledger is not safe or not writable, so nothing can be claimed."""


def find_ledger(environment: Mapping[str, str], paths: Iterable[Path] = PLACES) -> Path:
    """The directory that all users of the machine share, created if it is missing."""
    return prepare_ledger(ledger_path(environment, paths))


def ledger_path(environment: Mapping[str, str], paths: Iterable[Path] = PLACES) -> Path:
    """Where that directory is or would be; whether it can be used is seen at a claim."""
    chosen = environment.get("STOKER_LEDGER", "")
    if chosen:
        if not chosen.startswith("/"):
            raise UsageError(f"STOKER_LEDGER is {chosen!r}, which is not an absolute path", _SHARED_HINT)
        return Path(chosen)
    # Prefer an existing directory: else users who may not write to the first parent would use different ones.
    ordered = sorted(paths, key=lambda place: not os.path.lexists(place))
    return next(
        (place for place in ordered if os.path.lexists(place) or os.access(place.parent, os.W_OK | os.X_OK)), ordered[0]
    )


def prepare_ledger(path: Path) -> Path:
    """Create the directory if it is missing, and refuse one that is not safe to share."""
    with explained_errors(path):
        with suppress(FileExistsError):
            path.mkdir(0o1777)
        with entered(path):
            return path


@contextmanager
def entered(path: Path) -> Iterator[int]:
    try:
        directory = os.open(path, _DIRECTORY)
    except NotADirectoryError as error:
        message = f"{path} is a file or a symbolic link, not a directory"
        raise LedgerUnusable(message, f"remove it, or {_SHARED_HINT}") from error
    try:
        _check_directory(directory, path)
        yield directory
    finally:
        os.close(directory)


def _check_directory(directory: int, path: Path) -> None:
    status = os.fstat(directory)
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o022 and not mode & stat.S_ISVTX:
        message = f"{path} has mode {mode:o}: without the sticky bit, users could remove each other's leases"
        raise LedgerUnusable(message, f"run 'chmod 1777 {path}', or {_SHARED_HINT}")
    # Sticky but not open to all is what mkdir leaves under a umask; its owner opens it.
    if mode & stat.S_ISVTX and mode != 0o1777 and status.st_uid == os.geteuid():
        os.fchmod(directory, 0o1777)


@contextmanager
def explained_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        named = isinstance(error.filename, str) and not error.filename.endswith(".new")
        place = path / error.filename if named else path
        hint = _HINTS.get(error.errno or 0, f"check its permissions, or {_SHARED_HINT}")
        raise LedgerUnusable(f"the ledger cannot be used: {place}: {error.strerror}", hint) from error
