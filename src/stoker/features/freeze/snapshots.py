"""The store of snapshots: contents of files by their digest, and a checked-out tree for each snapshot.

A tree is a directory of hard links to the contents. It is made beside its place and renamed, so that a process that is
killed leaves no half tree. Nothing here needs git.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from stoker.core.errors import StokerError
from stoker.store.paths import UNFINISHED, make_durable, remove_tree

PLAIN_FILE, PROGRAM, LINK = "100644", "100755", "120000"
"""Modes as git has them."""
_HEAD = b"stoker-code 1"
_MANIFEST, _LINKS = "manifest", "links"
HOOK = "python"
"""Beside the files of a tree: the directory that every Python of a job looks into first."""
_HOOK_SOURCE = Path(__file__).parent / "hook/sitecustomize.py"
_ID = 16
"""Characters of a digest that name a snapshot: they are a part of the paths in tracebacks."""


class FrozenFile(NamedTuple):
    """A file of a snapshot."""

    path: str
    """Relative to the root."""
    mode: str
    blob: str
    """Digest of its content; of a symbolic link, that of its target."""
    size: int


class CodeSnapshot(NamedTuple):
    """The code of one directory at one moment."""

    id: str
    root: str
    """The directory that it was taken of."""
    files: tuple[FrozenFile, ...]


class DamagedSnapshot(StokerError):
    """A snapshot is not there, or not whole."""


def snapshot_of(root: str, files: Iterable[FrozenFile]) -> CodeSnapshot:
    """The snapshot of these files; equal ones have the same id."""
    in_order = tuple(sorted(files))
    return CodeSnapshot(hashlib.sha256(_manifest(root, in_order)).hexdigest()[:_ID], root, in_order)


def _manifest(root: str, files: Iterable[FrozenFile]) -> bytes:
    lines = [f"{mode} {size} {blob}\t{path}".encode(errors="surrogateescape") for path, mode, blob, size in files]
    return b"\0".join([_HEAD, os.fsencode(root), *lines])


class SnapshotStore:
    """The directory of all snapshots of one state directory, or of one shared directory of a cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = folder / "blobs"
        self.trees = folder / "trees"

    # -- contents ------------------------------------------------------------------------------

    def blob_path(self, blob: str, mode: str = PLAIN_FILE) -> Path:
        """A content; one that can be executed is another file, since links share their mode."""
        return self.blobs / blob[:2] / f"{blob[2:]}{'x' if mode == PROGRAM else ''}"

    def read(self, blob: str) -> bytes:
        """The content of a file."""
        for mode in (PLAIN_FILE, PROGRAM):
            with contextlib.suppress(FileNotFoundError):
                return self.blob_path(blob, mode).read_bytes()
        raise DamagedSnapshot(f"the content {blob} is missing in {self.blobs}", "submit the job again")

    def has(self, file: FrozenFile) -> bool:
        return self.blob_path(file.blob, file.mode).exists()

    def add(self, file: FrozenFile, data: bytes) -> bool:
        """Store a content; False if it was there."""
        place = self.blob_path(file.blob, file.mode)
        if place.exists():
            return False
        for folder in (self.folder, self.blobs, place.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.blobs / f"{UNFINISHED}{os.urandom(6).hex()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as opened:
                opened.write(data)
                opened.flush()
                os.fchmod(descriptor, 0o500 if file.mode == PROGRAM else 0o400)
            draft.rename(place)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return True

    # -- trees ---------------------------------------------------------------------------------

    def tree(self, snapshot_id: str) -> Path:
        """The directory of a snapshot: its manifest, its links, and its files."""
        return self.trees / snapshot_id

    def top(self, snapshot: CodeSnapshot) -> Path:
        """The checked-out root; it has the name of the user's directory, which tracebacks show."""
        return top_in(self.tree(snapshot.id), snapshot.root)

    def snapshot(self, snapshot_id: str) -> CodeSnapshot:
        """A stored snapshot, with its files."""
        try:
            data = (self.tree(snapshot_id) / _MANIFEST).read_bytes()
        except OSError as error:
            raise missing(snapshot_id, self.tree(snapshot_id), error) from None
        head, root, *lines = data.split(b"\0")
        if head != _HEAD or hashlib.sha256(data).hexdigest()[:_ID] != snapshot_id:
            raise DamagedSnapshot(f"the snapshot {snapshot_id} is damaged", "submit the job again")
        return CodeSnapshot(snapshot_id, os.fsdecode(root), tuple(map(_file_of, lines)))

    def keep(self, snapshot: CodeSnapshot) -> bool:
        """Make the tree of a snapshot whose contents are stored, unless it is there; False if contents are missing."""
        place = self.tree(snapshot.id)
        with contextlib.suppress(FileNotFoundError):
            os.utime(place)  # the oldest are removed first
            return True
        self.trees.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.trees / f"{UNFINISHED}{os.urandom(6).hex()}"
        try:
            draft.mkdir(mode=0o700)
            self.check_out(snapshot, top_in(draft, snapshot.root), linked=True)
            (draft / HOOK).mkdir(mode=0o700)
            shutil.copyfile(_HOOK_SOURCE, draft / HOOK / _HOOK_SOURCE.name)
            (draft / _MANIFEST).write_bytes(_manifest(snapshot.root, snapshot.files))
            flush_file(draft / _MANIFEST)
            with contextlib.suppress(OSError):  # another process was faster
                draft.rename(place)
                make_durable(self.trees)
        except FileNotFoundError:
            return False
        finally:
            remove_tree(draft)
        return place.exists()

    def check_out(self, snapshot: CodeSnapshot, folder: Path, *, linked: bool = False) -> None:
        """Write the files into a new or empty directory: copies for a user, or read-only links to the contents."""
        folders = {folder}
        folder.mkdir(mode=0o700, exist_ok=True)
        for file in snapshot.files:
            place = folder / file.path
            if place.parent not in folders:
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                folders.update(_between(folder, place.parent))
            self._write(file, place, snapshot.root, linked=linked)
        if linked:
            _lead_git(folder, snapshot.root)
            for made in folders:
                if any(name.endswith(".py") for name in os.listdir(made)):  # compiled modules are written there
                    (made / "__pycache__").mkdir(mode=0o700, exist_ok=True)
            for made in folders:
                made.chmod(0o500)

    def _write(self, file: FrozenFile, place: Path, root: str, *, linked: bool) -> None:
        if file.mode == LINK:
            target = os.fsdecode(self.read(file.blob))
            place.symlink_to(_target(target, file.path, root))
            return
        content = self.blob_path(file.blob, file.mode)
        if linked:
            with contextlib.suppress(PermissionError, NotImplementedError):
                os.link(content, place)
                return
        shutil.copyfile(content, place)
        place.chmod((0o500 if file.mode == PROGRAM else 0o400) | (0 if linked else 0o200))

    # -- links to what is not in a snapshot ----------------------------------------------------

    def links(self, snapshot_id: str) -> tuple[str, ...]:
        """Paths beside the files of a snapshot that were ignored, and lead to the user's own."""
        with contextlib.suppress(FileNotFoundError):
            data = (self.tree(snapshot_id) / _LINKS).read_bytes()
            return tuple(map(os.fsdecode, data.split(b"\0"))) if data else ()
        return ()

    def link(self, snapshot: CodeSnapshot, paths: Iterable[str]) -> None:
        """Let paths in the tree lead to the user's own files; those that are there stay."""
        before = self.links(snapshot.id)
        new = sorted(set(paths) - set(before))
        if not new:
            return
        top = self.top(snapshot)
        for path in new:
            place = top / path
            if not place.parent.is_dir() or place.parent.is_symlink():
                continue
            place.parent.chmod(0o700)
            with contextlib.suppress(FileExistsError):
                place.symlink_to(os.path.join(snapshot.root, path))
            place.parent.chmod(0o500)
        draft = self.tree(snapshot.id) / f"{UNFINISHED}{os.urandom(6).hex()}"
        draft.write_bytes(b"\0".join(map(os.fsencode, (*before, *new))))
        draft.rename(self.tree(snapshot.id) / _LINKS)


def _between(top: Path, folder: Path) -> list[Path]:
    """A directory and those above it, below the top."""
    return [folder, *(above for above in folder.parents if above != top and above.is_relative_to(top))]


def _lead_git(top: Path, root: str) -> None:
    """Let git commands in a tree answer from the user's repository, as `git rev-parse HEAD` beside a module does."""
    git = os.path.join(root, ".git")
    with contextlib.suppress(OSError):
        head = b"gitdir: " + os.fsencode(git) if os.path.isdir(git) else Path(git).read_bytes().strip()
        place = os.path.join(os.fsencode(root), head.removeprefix(b"gitdir: "))
        if head.startswith(b"gitdir: ") and os.path.isdir(place):
            (top / ".git").write_bytes(b"gitdir: " + os.path.abspath(place) + b"\n")


def top_in(tree: Path, root: str) -> Path:
    name = os.path.basename(root)
    return tree / (f"{name}.code" if name in ("", HOOK, _MANIFEST, _LINKS) else name)


def missing(snapshot_id: str, place: Path, error: OSError) -> DamagedSnapshot:
    return DamagedSnapshot(
        f"its frozen code {place} cannot be read: {error.strerror}",
        "submit the job again, or run it with the present code: stoker retry --fresh",
    )


@lru_cache(maxsize=64)
def _read_top(folder: Path, snapshot_id: str) -> tuple[str, str]:
    """The checked-out root and the root that a manifest names; neither changes."""
    tree = SnapshotStore(folder).tree(snapshot_id)
    with open(tree / _MANIFEST, "rb") as file:
        root = os.fsdecode(file.read(len(_HEAD) + 1 + 4097).split(b"\0")[1])
    return str(top_in(tree, root)), root


def frozen_top(folder: Path, snapshot_id: str) -> tuple[str, str]:
    """The checked-out root of a snapshot, and the directory that it was taken of; raises if it is not there."""
    try:
        top, root = _read_top(folder, snapshot_id)
        if not stat.S_ISDIR(os.stat(top).st_mode):
            raise NotADirectoryError(20, "not a directory")
    except OSError as error:
        _read_top.cache_clear()
        raise missing(snapshot_id, SnapshotStore(folder).tree(snapshot_id), error) from None
    return top, root


def flush_file(path: Path) -> None:
    """Write a file to the disk, so that it survives a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _file_of(line: bytes) -> FrozenFile:
    facts, _, path = line.partition(b"\t")
    mode, size, blob = facts.decode().split(" ")
    return FrozenFile(os.fsdecode(path), mode, blob, int(size))


def _target(target: str, path: str, root: str) -> str:
    """The target of a link in a tree: within the tree the same place of the tree, else the user's own file."""
    folder = os.path.dirname(path)
    real = os.path.normpath(os.path.join(root, folder, target))
    inside = os.path.relpath(real, root)
    if inside == ".." or inside.startswith("../"):
        return real
    return os.path.relpath(inside, folder or ".") if target.startswith("/") else target
