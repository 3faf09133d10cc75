"""Prepare the start of a job with frozen code: the words, the variables and the directory of its process."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from stoker.core.launch import LaunchOrder
from stoker.core.spec import Command, JobSpec
from stoker.features.freeze.code import code_of
from stoker.features.freeze.command import SHELLS, with_files
from stoker.features.freeze.snapshots import HOOK, DamagedSnapshot, SnapshotStore, frozen_top
from stoker.store.paths import Paths

LONGEST_TEXT = 100_000
"""Bytes of a shell script that is passed as a word; the kernel allows 128 KiB."""
_SOURCE = re.compile(r"\$BASH_SOURCE\b|\$\{BASH_SOURCE(?:\[0\])?\}|\$\{BASH_SOURCE\[0\]:-\$0\}")

_OTHER_HOOK = re.compile(rf"(?s).*/code/trees/[0-9a-f]+/{HOOK}")
"""The same entry of another job, in which this one was submitted."""


def why_not_startable(spec: JobSpec, paths: Paths) -> str:
    """Why a job cannot start: its snapshot is not there. Empty if it can."""
    code = code_of(spec.code)
    if not code.snapshot:
        return ""
    try:
        frozen_top(paths.code, code.snapshot)
    except DamagedSnapshot as error:
        return error.message
    return ""


def prepare_start(order: LaunchOrder, spec: JobSpec, base: Mapping[str, str], paths: Paths) -> LaunchOrder:
    """The order for a job whose script and modules come from its snapshot; raises if that is not there."""
    code = code_of(spec.code)
    if not code.snapshot:
        return order
    top, root = frozen_top(paths.code, code.snapshot)
    place = _Place(top, root, order.cwd)
    words, shell = _words(place, order.words, order.shell)
    variables = {
        "STOKER_CODE": top,
        "STOKER_CODE_ROOT": root,
        "PYTHONPATH": _search_path(place, order.extra.get("PYTHONPATH", base.get("PYTHONPATH", ""))),
    }
    cwd = _entry(place, order.cwd) if code.in_tree else order.cwd
    return replace(order, words=words, shell=shell, cwd=cwd, extra={**order.extra, **variables})


def bring(spec: JobSpec, shared: Paths, here: Paths) -> None:
    """Check the snapshot of a job out on this machine, once, from a directory that it shares with others."""
    code = code_of(spec.code)
    local, far = SnapshotStore(here.code), SnapshotStore(shared.code)
    if not code.snapshot or local.tree(code.snapshot).exists():
        return
    snapshot = far.snapshot(code.snapshot)
    for file in snapshot.files:
        if not local.has(file):
            local.add(file, far.read(file.blob))
    local.keep(snapshot)
    local.link(snapshot, far.links(snapshot.id))


class _Place(NamedTuple):
    """A checked-out snapshot, which never changes, and the directory in which a command runs."""

    top: str
    root: str
    cwd: str

    def inside(self, path: str) -> str:
        """The place of a path in the snapshot, whether it exists or not; empty if it is not in the tree."""
        full = os.path.normpath(os.path.join(self.cwd, path))
        if not _is_in(full, self.root):
            full = os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
        return self.top + full[len(self.root) :] if _is_in(full, self.root) else ""


@lru_cache(maxsize=4096)
def _file(place: _Place, path: str) -> str:
    """The frozen file that a word of the command names; empty if it names none."""
    if not path or "\0" in path or path.startswith("-") or path.endswith(("/", ".ipynb")):
        return ""
    inside = place.inside(path)
    return inside if inside and os.path.isfile(inside) and _is_in(os.path.realpath(inside), place.top) else ""


def _entry(place: _Place, path: str) -> str:
    """A directory of a search path, in the snapshot if that has it."""
    inside = place.inside(path) if path else ""
    return inside if inside and os.path.isdir(inside) else path


@lru_cache(maxsize=64)
def _search_path(place: _Place, own: str) -> str:
    entries = [_entry(place, entry) for entry in own.split(os.pathsep) if not _OTHER_HOOK.fullmatch(entry)]
    return os.pathsep.join([os.path.join(os.path.dirname(place.top), HOOK), *(entries if own else ())])


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


@lru_cache(maxsize=256)
def _words(place: _Place, words: tuple[str, ...], shell: str) -> tuple[tuple[str, ...], str]:
    command = Command(words, shell)
    if command.call is not None:  # its modules are found by search paths
        return words, shell
    if not shell and (in_memory := _shell_script(place, words)):
        return in_memory, ""
    return with_files(command, partial(_file, place)).words, shell


def _shell_script(place: _Place, words: Sequence[str]) -> tuple[str, ...]:
    """The words that run a shell script from memory, so that its `$0` and its directory stay the user's; else none."""
    position = 0
    if os.path.basename(words[0]) in SHELLS:
        position = next((at for at, word in enumerate(words[1:], 1) if not word.startswith("-")), 0)
        if not position or any(re.fullmatch("[-+]\\w*[coO]", word) for word in words[1:position]):
            return ()
    script = _file(place, words[position])
    if not script:
        return ()
    text = _script_text(script)
    before = list(words[:position]) or _interpreter(text)
    if (
        not before
        or os.path.basename(before[0]) not in SHELLS
        or len(text.encode(errors="surrogateescape")) > LONGEST_TEXT
    ):
        return ()
    rest = with_files(Command(("-", *words[position + 1 :])), partial(_file, place)).words[1:]
    return (*before, "-c", _SOURCE.sub("$0", text), words[position], *rest)


@lru_cache(maxsize=16)
def _script_text(path: str) -> str:
    return Path(path).read_text(errors="surrogateescape")


def _interpreter(text: str) -> list[str]:
    """The words of the first line that name the shell of a script; none where another program runs it."""
    first = text.partition("\n")[0]
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    return words[1:] if words and os.path.basename(words[0]) == "env" else words
