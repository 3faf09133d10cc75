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
from stoker.features.freeze.command import SHELLS, has_other_directory, started_by, with_files
from stoker.features.freeze.snapshots import HOOK, DamagedSnapshot, SnapshotStore, frozen_top
from stoker.store.paths import Paths

_READ_AT_ONCE = frozenset(("sh", "bash", "dash", "ash"))
"""Shells that keep `$0` while they read another file."""
_EVALUATED = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
_SOURCE = (r"\$BASH_SOURCE([^A-Za-z0-9_[]|$)", r"\$\{BASH_SOURCE(\[0])?([]}%#:/,^@-])")
"""How a script names itself, as for Python and for sed."""
_SCRIPT_IN_LINE = re.compile(
    r"((?:^|[;&|(])\s*(?:\w+=[\w./:,-]*\s+)*)"
    rf"((?:(?:[\w./-]*/)?(?:{'|'.join(sorted(SHELLS))})(?:\s+-[\w-]+)*\s+[\w@%+:,./-]+|[\w@%+:,.-]*/[\w@%+:,./-]+))(?=$|[\s;&|()<>])"
)
"""A command of a line that may start a shell script, and what is before it."""
_SEARCHES = r"(^|[ ;&|(])PYTHONPATH=([^ ;&|)\"']|\"[^\"]|'[^'])"
_SEARCHES_HERE = rf'\1PYTHONPATH="${{STOKER_CODE%/*}}/{HOOK}":\2'
"""A search path that a shell sets, and the same with the directory that leads Python to the snapshot."""
_OTHER_USE = re.compile(r"[-+]\w*[cinorsO]\w*|--?|--(?:rcfile|init-file)")
"""Options of shells after which the next word is no script, or is not run like one."""
_ODD_SOURCE = re.compile(r"[${#!]BASH_SOURCE")

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
    return os.pathsep.join([_hook(place.top), *(entries if own else ())])


def _hook(top: str) -> str:
    return os.path.join(os.path.dirname(top), HOOK)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


@lru_cache(maxsize=256)
def _words(place: _Place, words: tuple[str, ...], shell: str) -> tuple[tuple[str, ...], str]:
    if Command(words, shell).call is not None:  # its modules are found by search paths
        return words, shell
    frozen = partial(_file, place)
    if shell:
        line = words[0]
        if not has_other_directory(line):
            line = _SCRIPT_IN_LINE.sub(partial(_script_in_line, place), line)
        line = with_files(Command((line,), shell), frozen).words[0]
        return (re.sub(_SEARCHES, _SEARCHES_HERE, line) if os.path.basename(shell) in _EVALUATED else line,), shell
    start = "PYTHONPATH="
    led = f"{start}{_hook(place.top)}:"
    words = tuple(
        led + word.removeprefix(start) if word.startswith(start) and word != start else word for word in words
    )
    return _script_of(place, words) or with_files(Command(words), frozen).words, shell


def _script_of(place: _Place, words: tuple[str, ...]) -> tuple[str, ...]:
    """The words of a command that runs a shell script, also by other programs such as `nice`; else none."""
    started = started_by(Command(words))
    at = words.index(started.name) if started.kind == "file" and started.name in words else 0
    first = max((index for index in range(at) if os.path.basename(words[index]) in SHELLS), default=at)
    script = _shell_script(place, words[first:])
    return (*words[:first], *script) if script else ()


def _script_in_line(place: _Place, match: re.Match[str]) -> str:
    """The start of a shell script in a line for a shell."""
    import shlex

    before, words = match[1], match[2].split()
    return f"{before}{shlex.join(script)}" if (script := _shell_script(place, words)) else match[0]


def _shell_script(place: _Place, words: Sequence[str]) -> tuple[str, ...]:
    """The words that let a shell read a script, so that its `$0` and its directory stay the user's; else none.

    The text of the script is not among them, since other users see the words of a process.
    """
    position = 0
    if os.path.basename(words[0]) in SHELLS:
        position = next((at for at, word in enumerate(words[1:], 1) if not word.startswith("-")), 0)
        if not position or any(map(_OTHER_USE.fullmatch, words[1:position])):
            return ()
    script = _file(place, words[position])
    if not script:
        return ()
    text = _script_text(script)
    before = list(words[:position]) or _interpreter(text)
    reading = _reading(os.path.basename(before[0]), script, text) if before else ""
    if not reading:
        return ()
    rest = with_files(Command(("-", *words[position + 1 :])), partial(_file, place)).words[1:]
    return (*before, "-c", reading, words[position], *rest)


def _reading(shell: str, script: str, text: str) -> str:
    """The line that lets a shell read a script; empty if the script would not run as in a file of its own."""
    import shlex

    if shell in _READ_AT_ONCE and "BASH_SOURCE" not in text and "PYTHONPATH=" not in text:
        return f". {shlex.quote(script)}"
    plain, braced = _SOURCE
    if shell not in _EVALUATED or _ODD_SOURCE.search(re.sub(braced, "", re.sub(plain, "", text, flags=re.MULTILINE))):
        return ""
    edits = (rf"s~{plain}~$0\1~g", rf"s~{braced}~${{0\2~g", f"s~{_SEARCHES}~{_SEARCHES_HERE}~g")
    return f'eval "$(LC_ALL=C sed -E {" ".join(f"-e {shlex.quote(edit)}" for edit in edits)} {shlex.quote(script)})"'


@lru_cache(maxsize=16)
def _script_text(path: str) -> str:
    return Path(path).read_text(errors="surrogateescape")


def _interpreter(text: str) -> list[str]:
    """The words of the first line that name the shell of a script; none where another program runs it."""
    first = text.partition("\n")[0]
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if not words or os.path.basename(words[0]) != "env":
        return words
    return words[2:] if words[1:2] == ["-S"] else words[1:]
