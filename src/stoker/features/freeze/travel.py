"""Take frozen code to another machine: a manifest, and contents by their digests."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.app.jobs.travel import Parcel
from stoker.core.errors import StokerError
from stoker.core.spec import Command
from stoker.features.freeze.code import FrozenCode, code_of, field_of
from stoker.features.freeze.command import is_written, words_of
from stoker.features.freeze.snapshots import PROGRAM, CodeSnapshot, FrozenFile, SnapshotStore, snapshot_of
from stoker.store.paths import UNFINISHED, Paths, remove_tree, replace_file


class _Head(Struct, frozen=True):
    """A snapshot without its contents; names of files are bytes, since they need not be UTF-8."""

    root: bytes
    in_tree: bool
    files: list[tuple[bytes, str, str, int]]
    links: list[bytes]


class CodeTraveller:
    """A `Traveller`."""

    def carries(self, code: str) -> bool:
        return bool(code_of(code).snapshot)

    def pack(self, code: str, paths: Paths, there: Callable[[str], str]) -> Parcel:
        frozen = code_of(code)
        store = SnapshotStore(paths.code)
        snapshot = store.snapshot(frozen.snapshot)
        files = [(os.fsencode(file.path), file.mode, file.blob, file.size) for file in snapshot.files]
        links = [os.fsencode(path) for path in store.links(snapshot.id)]
        head = _Head(os.fsencode(there(snapshot.root)), frozen.in_tree, files, links)
        return Parcel(msgspec.msgpack.encode(head), sorted({_part(file) for file in snapshot.files}))

    def read(self, part: str, paths: Paths) -> bytes:
        return SnapshotStore(paths.code).read(part.partition(".")[0])

    def lacking(self, parcel: Parcel, paths: Paths) -> list[str]:
        store = SnapshotStore(paths.code)
        return [part for part in parcel.parts if not store.has(_content(part))]

    def store(self, part: str, data: bytes, paths: Paths) -> None:
        file = _content(part)
        if hashlib.sha256(data).hexdigest()[: len(file.blob)] != file.blob:
            raise StokerError("a file of the code was damaged on its way", "submit again")
        SnapshotStore(paths.code).add(file, data)

    def unpack(self, parcel: Parcel, paths: Paths, here: Callable[[str], str]) -> str:
        head = _head(parcel)
        store = SnapshotStore(paths.code)
        snapshot = _snapshot(head, here(os.fsdecode(head.root)))
        if not store.keep(snapshot):
            raise StokerError("the code was removed while it arrived", "submit again")
        store.link(snapshot, map(os.fsdecode, head.links))
        _mirror(store, snapshot)
        return field_of(FrozenCode(snapshot.id, head.in_tree))

    def needs(self, command: Command, cwd: str, code: str, paths: Paths) -> Iterable[str]:
        snapshot = code_of(code).snapshot
        taken = SnapshotStore(paths.code).snapshot(snapshot) if snapshot else None
        frozen = _frozen_paths(taken) if taken else frozenset[str]()
        root = taken.root if taken else "/"
        return [path for path in _named(command, cwd) if os.path.relpath(os.path.join(cwd, path), root) not in frozen]


def _mirror(store: SnapshotStore, snapshot: CodeSnapshot) -> None:
    """Let the directory of the code have its files, for scripts that open them; one that the user made stays as it is.

    Files that did not change since the last time are left alone.
    """
    root, note = Path(snapshot.root), store.folder / "arrived" / hashlib.sha256(os.fsencode(snapshot.root)).hexdigest()
    if root.exists() and not note.exists():
        return
    before = _files(note)
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    note.touch()
    root.mkdir(parents=True, exist_ok=True)
    changed = [file for file in snapshot.files if before.get(file.path) != file or not (root / file.path).exists()]
    draft = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=root))
    try:
        store.check_out(snapshot._replace(files=tuple(changed)), draft)
        for file in changed:
            (root / file.path).parent.mkdir(parents=True, exist_ok=True)
            (draft / file.path).replace(root / file.path)
    finally:
        remove_tree(draft)
    for path in before.keys() - {file.path for file in snapshot.files}:
        (root / path).unlink(missing_ok=True)
    replace_file(note, msgspec.json.encode(snapshot.id))


def _files(note: Path) -> dict[str, FrozenFile]:
    """The files that a mirror had last; none if it is new, or its snapshot was removed meanwhile."""
    with contextlib.suppress(OSError, msgspec.MsgspecError, StokerError):
        last = SnapshotStore(note.parents[1]).snapshot(msgspec.json.decode(note.read_bytes(), type=str))
        return {file.path: file for file in last.files}
    return {}


def _head(parcel: Parcel) -> _Head:
    return msgspec.msgpack.decode(parcel.head, type=_Head)


def _snapshot(head: _Head, root: str) -> CodeSnapshot:
    return snapshot_of(root, (FrozenFile(os.fsdecode(path), mode, blob, size) for path, mode, blob, size in head.files))


def _part(file: FrozenFile) -> str:
    """The name of a content: one that can be executed is another file."""
    return f"{file.blob}.x" if file.mode == PROGRAM else file.blob


def _content(part: str) -> FrozenFile:
    blob, _, program = part.partition(".")
    return FrozenFile("", PROGRAM if program else "", blob, 0)


def _frozen_paths(snapshot: CodeSnapshot) -> frozenset[str]:
    """The files of a snapshot, and the directories that they are in."""
    paths: set[str] = {"."}
    for file in snapshot.files:
        path = file.path
        while path and path not in paths:
            paths.add(path)
            path = os.path.dirname(path)
    return frozenset(paths)


def _named(command: Command, cwd: str) -> Iterator[str]:
    """Words of a command, also after `=`, that name what is there and are not written."""
    for last, word in pairwise(("", *words_of(command))):
        option, equals, value = word.rpartition("=")
        before, path = (option, value) if equals else (last, word)
        full = os.path.join(cwd, path)
        if not path or path.startswith("-") or is_written(before) or is_written(path) or not os.path.exists(full):
            continue
        if "/" in path or before.startswith("-") or equals or os.path.isfile(full):
            yield path
