"""Which commit is checked out in a directory, and whether files there differ from it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Mapping

PATIENCE = 1.0
"""Seconds that Git may take; on a slow disk the commit is not worth more."""
_SHORT = 7
_QUESTION = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=dirty")


class Checkouts:
    """Asks Git once for each repository, and not at all where there is none."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {
            **{name: value for name, value in environment.items() if not name.startswith("GIT_")},
            "GIT_OPTIONAL_LOCKS": "0",  # else it would be in the way of whoever commits just now
            "LC_ALL": "C",
        }
        self._roots: dict[str, str] = {}
        self._commits: dict[str, str] = {"": ""}

    def commit(self, directory: str) -> str:
        """`abc1234`, or `abc1234*` where files differ from it; empty where nobody can tell."""
        if directory not in self._roots:
            self._roots[directory] = _root_above(directory)
        root = self._roots[directory]
        if root not in self._commits:
            self._commits[root] = _told(_asked(root, self._environment))
        return self._commits[root]


def _root_above(directory: str) -> str:
    """The nearest directory with a repository, empty where there is none."""
    path = os.path.abspath(directory)
    while not os.path.lexists(os.path.join(path, ".git")):
        above = os.path.dirname(path)
        if above == path:
            return ""
        path = above
    return path


def _told(answer: bytes) -> str:
    """What Git's answer means; it names the commit before the files."""
    commit, changed = "", ""
    for line in answer.splitlines():
        if line.startswith(b"# branch.oid "):
            commit = line.split()[2][:_SHORT].decode(errors="replace")
        elif not line.startswith(b"#"):
            changed = "*"
    return f"{commit}{changed}" if commit.isalnum() else ""


def _asked(root: str, environment: Mapping[str, str]) -> bytes:
    """What Git says of a repository; nothing where it fails, is not there, or takes too long."""
    import shutil

    program = shutil.which("git", path=environment.get("PATH"))
    if program is None:
        return b""
    with contextlib.suppress(OSError, ValueError):
        return _run([program, "-C", root, *_QUESTION], environment)
    return b""


def _run(words: list[str], environment: Mapping[str, str]) -> bytes:
    """The output of a program that succeeded in time; by the system's own call, which costs least to load."""
    output, theirs = os.pipe()
    try:
        nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 2)]
        actions = [*nowhere, (os.POSIX_SPAWN_DUP2, theirs, 1)]
        process = os.posix_spawn(words[0], words, environment, file_actions=actions)
    except BaseException:
        os.close(output)
        raise
    finally:
        os.close(theirs)
    with open(output, "rb", buffering=0):
        answer = _read(output, time.monotonic() + PATIENCE)
    if answer is None:  # nobody waits for it: on a dead file system that could take for ever
        os.kill(process, signal.SIGKILL)
        return b""
    _, status = os.waitpid(process, 0)
    return answer if status == 0 else b""


def _read(descriptor: int, deadline: float) -> bytes | None:
    """All that is written until the end; None where that does not come in time."""
    parts: list[bytes] = []
    while select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(descriptor, 65_536)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None
