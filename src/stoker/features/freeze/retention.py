"""Remove snapshots that no job needs, and the oldest of ended jobs where all together are too large."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from stoker.app.jobs.config import load_config
from stoker.app.service.doctor import Subject, Verdict, note, ok
from stoker.core.errors import StokerError
from stoker.core.units import count_text, size_text
from stoker.features.freeze import software
from stoker.features.freeze.code import code_of
from stoker.features.freeze.snapshots import SnapshotStore
from stoker.store.paths import UNFINISHED, Paths, remove_tree
from stoker.store.schema import HAS_SPEC, OPEN
from stoker.store.writer import Store

YOUNG_SECONDS = 3600.0
"""Seconds for which a snapshot may be without a job: a submit takes it before it adds the jobs."""
_ROWS = 500
_FILES = 200
"""Files looked at in one step."""
_CODE = "json_extract(body, '$.code')"
_NEEDED = (
    f"SELECT 1 FROM specs WHERE {_CODE} IN (?, ?) AND (EXISTS"
    f" (SELECT 1 FROM jobs WHERE {HAS_SPEC} AND spec = specs.id AND {OPEN}) OR EXISTS"
    " (SELECT 1 FROM batches WHERE spec IS NOT NULL AND spec = specs.id AND EXISTS"
    f" (SELECT 1 FROM jobs WHERE batch > 0 AND batch = batches.id AND {OPEN}))) LIMIT 1"
)
"""Whether a job that has not ended has this code, or may get it as a later member of its batch."""


def forget(paths: Paths, store: Store, now: float) -> Iterator[None]:
    """Remove in steps what no job needs; the engine calls this in each round of pruning."""
    yield from software.forget(paths, store, now)
    try:
        limit = load_config(os.environ, None).engine.code_limit
    except StokerError:  # remove nothing by a limit that cannot be read
        limit = None
    for place in paths.everywhere:
        yield from _Removal(SnapshotStore(place.code), store, now).steps(limit)


class _Tree(NamedTuple):
    used: float
    """When it was submitted last."""
    name: str


class _Removal:
    """One round of removal in one directory of snapshots."""

    def __init__(self, snapshots: SnapshotStore, store: Store, now: float) -> None:
        self._snapshots = snapshots
        self._store = store
        self._now = now
        self._used: set[str] = set()
        self._last = 0

    def steps(self, limit: int | None) -> Iterator[None]:
        trees = [tree for entry in _entries(self._snapshots.trees) if (tree := self._tree(entry))]
        if not trees and not self._snapshots.blobs.exists():
            return
        while self._read():
            yield
        for tree in trees:
            if tree.name not in self._used and self._now - tree.used > YOUNG_SECONDS:
                self._remove(tree, self._is_unused)
                yield
        yield from self._remove_contents()
        if limit is not None:
            yield from self._shrink(sorted(tree for tree in trees if tree.name in self._used), limit)

    def _tree(self, entry: os.DirEntry[str]) -> _Tree | None:
        with contextlib.suppress(FileNotFoundError):
            if entry.name.startswith(UNFINISHED) and self._now - entry.stat().st_mtime > YOUNG_SECONDS:
                remove_tree(Path(entry.path))
            elif not entry.name.startswith(UNFINISHED):
                return _Tree(entry.stat().st_mtime, entry.name)
        return None

    def _read(self) -> bool:
        """Read which snapshots the next specs name; False once all are read."""
        rows = self._store.rows(f"SELECT id, {_CODE} FROM specs WHERE id > ? ORDER BY id LIMIT ?", self._last, _ROWS)
        self._used.update(code_of(code).snapshot for _, code in rows if code)
        self._last = rows[-1][0] if rows else self._last
        return len(rows) == _ROWS

    def _is_unused(self, name: str) -> bool:
        while self._read():  # what was added since the last look
            pass
        return name not in self._used

    def _remove(self, tree: _Tree, allowed: Callable[[str], bool]) -> bool:
        """Remove a tree unless it got a job meanwhile; none can be added while the store is being written."""
        place = self._snapshots.tree(tree.name)
        doomed = place.with_name(f"{UNFINISHED}{tree.name}")
        with self._store.writing():
            if not allowed(tree.name):
                return False
            with contextlib.suppress(OSError):
                place.rename(doomed)
        remove_tree(doomed)
        return True

    def _shrink(self, trees: Iterable[_Tree], limit: int) -> Iterator[None]:
        """Remove the oldest trees of ended jobs until all together are small enough."""
        size = disk_use(self._snapshots.folder)
        for tree in trees:
            if size <= limit:
                return
            if self._remove(tree, self._is_of_ended_jobs):
                yield
                yield from self._remove_contents()
                size = disk_use(self._snapshots.folder)
            yield

    def _is_of_ended_jobs(self, name: str) -> bool:
        return not self._store.rows(_NEEDED, name, f"{name} tree")

    def _remove_contents(self) -> Iterator[None]:
        """Contents that no tree links to. A submit that has just read one stores it again."""
        looked = 0
        for folder in _entries(self._snapshots.blobs):
            for entry in _entries(Path(folder.path)) if folder.is_dir() else [folder]:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_nlink == 1 and self._now - status.st_ctime > YOUNG_SECONDS:
                        os.unlink(entry.path)
                looked += 1
                if looked % _FILES == 0:
                    yield


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return list(os.scandir(folder))
    return []


def disk_use(folder: Path) -> int:
    """Bytes of all files below a directory; those with several names count once."""
    sizes: dict[int, int] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(os.path.join(place, name))
                sizes[status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def check(subject: Subject) -> Iterator[Verdict]:
    """The disk use of snapshots (`stoker engine check`)."""
    try:
        limit = load_config(subject.environment, None).engine.code_limit
    except StokerError:  # which the check of the configuration reports
        limit = None
    for place in subject.paths.everywhere:
        snapshots = SnapshotStore(place.code)
        count = sum(not entry.name.startswith(UNFINISHED) for entry in _entries(snapshots.trees))
        size = disk_use(snapshots.folder)
        text = f"{count_text(count, 'snapshot')} of frozen code: {size_text(size)} in {snapshots.folder}"
        if limit is not None and size > limit:
            yield note(
                f"{text}, more than code_limit ({size_text(limit)})",
                "those of ended jobs are removed within a day, but not those that queued jobs need",
            )
        else:
            yield ok(text)
