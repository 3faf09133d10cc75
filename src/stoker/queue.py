"""What every door uses to reach the queue: submitting, finding, and knowing which engines live."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stoker.core.errors import NoSuchJob, StokerError
from stoker.core.job import Job
from stoker.places import Places
from stoker.store import AttemptRow, Store

_PAGE = 10_000


def open_store(places: Places) -> Store:
    """The queue of this user on this host, made where there is none."""
    try:
        return Store(places.database)
    except OSError as error:
        raise StokerError(
            f"cannot open the queue {places.database}: {error.strerror}",
            "set STOKER_STATE to a directory of yours",
        ) from error


class Presence:
    """An engine's proof of life: a lock that the kernel gives back at any death."""

    def __init__(self, places: Places) -> None:
        self.name = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._path = _lock_path(places, self.name)
        try:
            places.engines.mkdir(mode=0o700, exist_ok=True)
            self._descriptor = _make_locked(self._path)
        except OSError as error:
            raise StokerError(
                f"cannot write to the state directory {places.state}: {error.strerror}", "free some space there"
            ) from error

    def close(self) -> None:
        """No longer alive."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def engine_lives(places: Places, engine: str) -> bool:
    """Whether somebody holds the engine's lock."""
    try:
        descriptor = os.open(_lock_path(places, engine), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class Orphan(NamedTuple):
    """A job that is not over, and the dead engine that owned it."""

    job: Job
    engine: str


def orphans(places: Places, store: Store) -> Iterator[Orphan]:
    """What dead engines left."""
    for engine in store.engines_with_open_jobs():
        if not engine_lives(places, engine):
            yield from (Orphan(job, engine) for job in _all_open(store, engine))


def held_orphans(places: Places, store: Store) -> list[Orphan]:
    """What dead engines had given to keepers; what they left waiting is not looked at, however much it is."""
    dead = [engine for engine in store.engines_with_active_jobs() if not engine_lives(places, engine)]
    return [Orphan(job, engine) for engine in dead for job in store.active_jobs(engine)]


def sweep_locks(places: Places, store: Store) -> None:
    """Remove the locks of engines that died and own nothing any more."""
    owners = set(store.engines_with_open_jobs())
    for path in places.engines.glob("*.lock"):
        if path.stem not in owners and not engine_lives(places, path.stem):
            with contextlib.suppress(OSError):
                path.unlink()


def forgotten_keepers(places: Places, store: Store) -> list[str]:
    """Folders of keepers whose engine is dead and that no job which is not over was given to."""
    names = [folder.name for folder in places.keepers.iterdir()]
    dead = [name for name in names if not engine_lives(places, name.rpartition("-")[0])]
    needed = store.keepers() if dead else set()
    return [name for name in dead if name not in needed]


def newest_attempt(store: Store, job_id: int | None) -> AttemptRow:
    """The last run of a job; of the newest job where none is named."""
    wanted = store.last_job() if job_id is None else job_id
    if wanted is None or store.job(wanted) is None:
        what = "the queue is empty" if wanted is None else f"there is no job {wanted}"
        raise NoSuchJob(what, "see the ids in the output of stoker run")
    attempts = store.attempts(wanted)
    if not attempts:
        raise NoSuchJob(f"job {wanted} has not started yet", "look again when it has")
    return attempts[-1]


def _all_open(store: Store, engine: str) -> Iterator[Job]:
    last = 0
    while jobs := store.open_jobs(engine, last, _PAGE):
        yield from jobs
        last = jobs[-1].id


def _make_locked(path: Path) -> int:
    """A new file that nobody finds unlocked, when it would be swept: it gets its name after its lock."""
    made = path.with_suffix(".new")
    descriptor = os.open(made, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        made.rename(path)
    except BaseException:
        made.unlink(missing_ok=True)
        os.close(descriptor)
        raise
    return descriptor


def _lock_path(places: Places, engine: str) -> Path:
    return places.engines / f"{engine}.lock"
