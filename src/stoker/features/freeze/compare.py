"""Compare two versions of the code of a directory: which files differ, and in which lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from stoker.features.freeze.snapshots import LINK, PROGRAM, FrozenFile

CONTEXT_LINES = 3
MOST_BYTES = 2**20
"""Size above which the lines of a file are not compared: that could take minutes."""
_BINARY_BYTES = 8000
"""A file is binary if there is a zero byte among this many first bytes, as for git."""
_MOST_CANDIDATES = 20
"""Files that were removed or added, up to which similar contents count as renamed."""
_LEAST_LIKENESS = 0.5
_NO_FILE = FrozenFile("", "", "", 0)

Kind = Literal["added", "removed", "changed", "renamed", "mode"]
LineKind = Literal["file", "place", "same", "old", "new", "note"]


class CodeVersion(NamedTuple):
    """The code of a directory at one moment."""

    files: Mapping[str, FrozenFile]
    """By path."""
    read: Callable[[FrozenFile], bytes]
    """The content of a file; the target of a symbolic link."""


class FileChange(NamedTuple):
    """A file that differs between two versions."""

    before: FrozenFile
    """Its path is empty if the file was added."""
    after: FrozenFile

    @property
    def path(self) -> str:
        return self.after.path or self.before.path

    @property
    def kind(self) -> Kind:
        if not self.before.path:
            return "added"
        if not self.after.path:
            return "removed"
        if self.before.path != self.after.path:
            return "renamed"
        return "mode" if self.before.blob == self.after.blob else "changed"


class DiffLine(NamedTuple):
    """A line of a unified diff."""

    kind: LineKind
    text: str
    """With its mark; bytes that are not UTF-8 are surrogates."""


def changes_between(before: CodeVersion, after: CodeVersion) -> list[FileChange]:
    """The files that differ, by path."""
    removed = {path: file for path, file in before.files.items() if path not in after.files}
    added = {path: file for path, file in after.files.items() if path not in before.files}
    changes = [
        FileChange(file, after.files[path])
        for path, file in before.files.items()
        if path in after.files and (file.blob, file.mode) != (after.files[path].blob, after.files[path].mode)
    ]
    for old, new in _renamed(before, after, removed, added):
        changes.append(FileChange(removed.pop(old), added.pop(new)))
    changes += [FileChange(file, _NO_FILE) for file in removed.values()]
    changes += [FileChange(_NO_FILE, file) for file in added.values()]
    return sorted(changes, key=lambda change: change.path)


def _renamed(
    before: CodeVersion, after: CodeVersion, removed: Mapping[str, FrozenFile], added: Mapping[str, FrozenFile]
) -> list[tuple[str, str]]:
    """Pairs of a removed and an added path with the same content, or with similar ones."""
    pairs: list[tuple[str, str]] = []
    left, there = dict(removed), dict(added)
    by_blob = {(file.blob, file.mode == LINK): path for path, file in left.items() if file.size}
    for path, file in added.items():
        if old := by_blob.pop((file.blob, file.mode == LINK), None):
            pairs.append((old, path))
            del left[old], there[path]
    if len(left) > _MOST_CANDIDATES or len(there) > _MOST_CANDIDATES:
        return pairs
    texts = {path: lines_of(before.read(file)) for path, file in left.items() if _has_lines(file)}
    for path, file in there.items():
        lines = lines_of(after.read(file)) if _has_lines(file) else None
        alike = [(_likeness(old, lines), name) for name, old in texts.items() if old and lines]
        best, old_path = max(alike, default=(0.0, ""))
        if best >= _LEAST_LIKENESS:
            pairs.append((old_path, path))
            del texts[old_path]
    return pairs


def _has_lines(file: FrozenFile) -> bool:
    return file.mode != LINK and 0 < file.size <= MOST_BYTES


def _likeness(old: Sequence[str], new: Sequence[str]) -> float:
    return SequenceMatcher(None, old, new, autojunk=False).quick_ratio()


def lines_of(content: bytes) -> list[str] | None:
    """The lines of a text, each with its end; None for a binary file."""
    if b"\0" in content[:_BINARY_BYTES]:
        return None
    parts = content.decode(errors="surrogateescape").split("\n")
    return [f"{line}\n" for line in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def diff_lines(change: FileChange, before: CodeVersion, after: CodeVersion) -> Iterator[DiffLine]:
    """A change as a unified diff, which git and patch can apply."""
    old, new = change
    yield DiffLine("file", f"diff --git {_name('a', old.path or new.path)} {_name('b', new.path or old.path)}")
    if change.kind == "added":
        yield DiffLine("file", f"new file mode {new.mode}")
    elif change.kind == "removed":
        yield DiffLine("file", f"deleted file mode {old.mode}")
    elif old.mode != new.mode:
        yield DiffLine("file", f"old mode {old.mode}")
        yield DiffLine("file", f"new mode {new.mode}")
    if change.kind == "renamed":
        yield DiffLine("file", f"rename from {_quoted(old.path)}")
        yield DiffLine("file", f"rename to {_quoted(new.path)}")
    if old.blob != new.blob or not (old.path and new.path):
        yield from _content_lines(change, before, after)


def _content_lines(change: FileChange, before: CodeVersion, after: CodeVersion) -> Iterator[DiffLine]:
    old, new = change
    names = (_name("a", old.path) if old.path else "/dev/null", _name("b", new.path) if new.path else "/dev/null")
    if max(old.size, new.size) > MOST_BYTES:
        yield DiffLine("note", f"Files {names[0]} and {names[1]} differ ({old.size} and {new.size} bytes)")
        return
    old_lines = lines_of(before.read(old)) if old.path else []
    new_lines = lines_of(after.read(new)) if new.path else []
    if old_lines is None or new_lines is None:
        yield DiffLine("note", f"Binary files {names[0]} and {names[1]} differ ({old.size} and {new.size} bytes)")
        return
    groups = list(SequenceMatcher(None, old_lines, new_lines).get_grouped_opcodes(CONTEXT_LINES))
    if groups:
        yield DiffLine("file", f"--- {names[0]}")
        yield DiffLine("file", f"+++ {names[1]}")
    for group in groups:
        yield from _hunk(group, old_lines, new_lines)


def _hunk(
    group: Sequence[tuple[str, int, int, int, int]], old: Sequence[str], new: Sequence[str]
) -> Iterator[DiffLine]:
    first, last = group[0], group[-1]
    yield DiffLine("place", f"@@ -{_range(first[1], last[2])} +{_range(first[3], last[4])} @@")
    for tag, old_from, old_to, new_from, new_to in group:
        if tag == "equal":
            yield from _marked("same", " ", old[old_from:old_to])
            continue
        yield from _marked("old", "-", old[old_from:old_to])
        yield from _marked("new", "+", new[new_from:new_to])


def _marked(kind: LineKind, mark: str, lines: Sequence[str]) -> Iterator[DiffLine]:
    for line in lines:
        yield DiffLine(kind, mark + line.removesuffix("\n"))
        if not line.endswith("\n"):
            yield DiffLine("note", "\\ No newline at end of file")


def _range(start: int, stop: int) -> str:
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


def _name(side: str, path: str) -> str:
    return _quoted(f"{side}/{path}")


def _quoted(path: str) -> str:
    """A path as git writes it: in quotes with escapes, if it has other than printable ASCII characters."""
    data = path.encode(errors="surrogateescape")
    if all(32 <= byte < 127 and byte not in b'"\\' for byte in data):
        return path
    plain = {ord("\n"): "\\n", ord("\t"): "\\t", ord('"'): '\\"', ord("\\"): "\\\\"}
    return '"' + "".join(plain.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in data) + '"'


def modes_differ(change: FileChange) -> bool:
    """Whether a file became a program, or ceased to be one."""
    return (change.before.mode == PROGRAM) != (change.after.mode == PROGRAM)
