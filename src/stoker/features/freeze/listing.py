"""Which files are the code of a directory: in a git work tree what git does not ignore, else all but known data."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from stoker.app.jobs.preflight import git_environment, root_above
from stoker.core.errors import StokerError
from stoker.core.units import size_text

IGNORE_FILE = ".stokerignore"
USUAL_FILES, USUAL_SIZE = 5_000, 50 * 2**20
"""Files and bytes up to which code is frozen without being asked."""
MOST_FILES, MOST_SIZE = 50_000, 2**30
"""Files and bytes up to which it is frozen at all."""
LARGEST_UNTRACKED = 10 * 2**20
"""Bytes of a file that git does not track; a larger one is data."""
GIT_SECONDS = 20.0
_GIT = ("-c", "core.fsmonitor=false", "ls-files", "-z")
_NEVER = frozenset((".git", "__pycache__", ".hg", ".svn"))
"""Never code, nor worth a link."""
_NO_CODE = _NEVER | frozenset(
    (
        *("stoker-runs", ".venv", "venv", ".env", "env", "node_modules", ".tox", ".nox", ".conda", ".pixi"),
        *(".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".cache", ".idea", ".vscode"),
    )
)
"""Directories of environments and caches."""
_PLACEHOLDERS = frozenset((".gitkeep", ".keep", ".gitignore", ".placeholder", ".empty"))
"""Files for whose sake git keeps a directory without code, into which programs write."""
_MODULES = (".py", ".pyi", ".pyx")
_RESULTS = frozenset(
    (
        *("data", "dataset", "datasets", "output", "outputs", "result", "results", "runs", "run", "logs", "log"),
        *("checkpoint", "checkpoints", "ckpt", "ckpts", "wandb", "mlruns", "lightning_logs", "multirun", "tensorboard"),
        "tb_logs",
    )
)
"""Directories of data and results, unless they hold modules."""
_DATA_SUFFIXES = frozenset(
    (
        *(".log", ".out", ".err", ".pt", ".pth", ".ckpt", ".safetensors", ".npy", ".npz", ".h5", ".hdf5", ".pkl"),
        *(".pickle", ".joblib", ".parquet", ".arrow", ".tar", ".gz", ".zip", ".xz", ".zst", ".png", ".jpg", ".mp4"),
        *(".db", ".sqlite", ".sqlite3", ".swp", ".tmp", ".pyc", ".csv", ".tsv", ".jsonl", ".xlsx", ".pdf", ".jpeg"),
        *(".gif", ".svg", ".webp", ".wav", ".mp3", ".avi"),
    )
)


class NotFreezable(StokerError):
    """The code of a directory cannot be frozen; the message tells why."""


class CodeListing(NamedTuple):
    """The paths below a root, relative to it."""

    code: tuple[str, ...]
    untracked: frozenset[str]
    """Those that git does not track."""
    others: tuple[str, ...]
    """Files and directories that are not code, which the tree of a snapshot links to."""


class CodeLimits(NamedTuple):
    files: int
    size: int


USUAL = CodeLimits(USUAL_FILES, USUAL_SIZE)
MOST = CodeLimits(MOST_FILES, MOST_SIZE)


def work_tree_of(directory: str) -> str:
    """The git work tree that a directory is in; empty if it is in none."""
    return root_above(directory)


def list_code(root: str, environment: Mapping[str, str], limits: CodeLimits) -> CodeListing:
    """The code below a root; raises if it cannot be listed, or has too many files."""
    return _Search(root, environment, limits).listing()


def _folders_of(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


class _Search:
    """The search for code below a root."""

    def __init__(self, root: str, environment: Mapping[str, str], limits: CodeLimits) -> None:
        self._root = root
        self._environment = environment
        self._limits = limits
        self._ignored = Patterns.read(root)
        self._others: dict[str, None] = {}

    def listing(self) -> CodeListing:
        code: dict[str, bool] = {}
        data: list[str] = []
        for path, tracked in self._paths(""):
            if tracked and not self._ignored.match(path):
                code[path] = True
            elif tracked or is_data(path, self._ignored):
                data.append(path)
            else:
                code[path] = False
        folders = {above for path in code if not _is_placeholder(path) for above in _folders_of(path)}
        for path in [path for path in code if _is_placeholder(path) and path.rpartition("/")[0] not in folders]:
            del code[path]
            data.append(path)
        others = dict.fromkeys(_whole(path, folders) for path in data)
        untracked = frozenset(path for path, tracked in code.items() if not tracked)
        return CodeListing(tuple(code), untracked, tuple({**self._others, **others}))

    def _paths(self, prefix: str) -> Iterator[tuple[str, bool]]:
        """Paths below a directory, and whether git tracks them."""
        top = os.path.join(self._root, prefix.rstrip("/")) if prefix else self._root
        if not os.path.lexists(os.path.join(top, ".git")):
            yield from ((path, False) for path in self._walk(prefix))
            return
        tracked, more, left = _ask_git(top, self._environment)
        count = len(tracked) + len(more)
        if count > self._limits.files:  # git leaves out of `more` what .stokerignore names, but not of `tracked`
            count -= sum(self._ignored.match(f"{prefix}{path}") for path in tracked)
        if count > self._limits.files:
            raise too_many(self._root, count, self._limits)
        self._others.update(dict.fromkeys(prefix + path.rstrip("/") for path in left if not _is_never(path)))
        for path, is_tracked in [*((path, True) for path in tracked), *((path, False) for path in more)]:
            inner = f"{prefix}{path}"
            full = os.path.join(self._root, inner)
            if not path.endswith("/") and not _is_directory(full):
                yield inner, is_tracked
            elif os.path.lexists(os.path.join(full, ".git")):  # a submodule, or a repository in this one
                yield from self._paths(inner.rstrip("/") + "/")

    def _walk(self, prefix: str) -> Iterator[str]:
        """The files of a directory without git; environments, data and results are left out as a whole."""
        count = 0
        folders = [prefix]
        while folders:
            folder = folders.pop()
            for entry in _entries(os.path.join(self._root, folder)):
                path = f"{folder}{entry.name}"
                if not entry.is_dir(follow_symlinks=False):
                    count += 1
                    yield path
                elif entry.name not in _NEVER and _is_left_out(entry, path, self._ignored):
                    self._others[path] = None
                elif entry.name not in _NEVER:
                    folders.append(f"{path}/")
            if count > self._limits.files:
                raise too_many(self._root, count, self._limits)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except OSError as error:
        raise NotFreezable(f"cannot read {folder}: {error.strerror}", "use --no-freeze") from None


def _ask_git(top: str, environment: Mapping[str, str]) -> tuple[list[str], list[str], list[str]]:
    """The tracked, the untracked and the ignored paths of a work tree."""
    exclude = ("--exclude-standard", *((f"--exclude-from={IGNORE_FILE}",) if _has_patterns(top) else ()))
    questions = (
        ("--cached",),
        ("--others", *exclude),
        ("--others", "--ignored", "--directory", *exclude),
    )
    import subprocess

    environment = git_environment(environment)
    answers: list[list[str]] = []
    processes = []
    try:
        for question in questions:
            processes.append(
                subprocess.Popen(
                    ["git", "-C", top, *_GIT, *question],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                    start_new_session=True,
                )
            )
        for process in processes:
            out, said = process.communicate(timeout=GIT_SECONDS)
            if process.returncode:
                raise _git_failed(top, said.decode(errors="replace"))
            answers.append([os.fsdecode(path) for path in out.split(b"\0") if path])
    except FileNotFoundError:
        raise NotFreezable("git is not installed", "install git, or use --no-freeze") from None
    except subprocess.TimeoutExpired:
        raise NotFreezable(
            f"git did not list the files of {top} within {GIT_SECONDS:g} s", f"name large directories in {IGNORE_FILE}"
        ) from None
    except OSError as error:
        raise NotFreezable(f"git cannot be started: {error.strerror}", "use --no-freeze") from None
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
    cached, more, left = answers
    return list(dict.fromkeys(cached)), more, left


def _git_failed(top: str, said: str) -> NotFreezable:
    if "dubious ownership" in said:
        return NotFreezable(
            f"git does not read {top}, which belongs to another user",
            f"type: git config --global --add safe.directory {shlex.quote(top)}",
        )
    first = said.strip().partition("\n")[0] or "it failed"
    return NotFreezable(f"git cannot list the files of {top}: {first}", "check: git status")


def _is_left_out(folder: os.DirEntry[str], path: str, ignored: Patterns) -> bool:
    if os.path.lexists(os.path.join(folder.path, "pyvenv.cfg")):
        return True
    has_modules = folder.name in _RESULTS and os.path.lexists(os.path.join(folder.path, "__init__.py"))
    return is_data(f"{path}/{'__init__.py' if has_modules else ''}", ignored)


def too_many(root: str, count: int, limits: CodeLimits) -> NotFreezable:
    return NotFreezable(
        f"{root} has {count} files or more; the limit is {limits.files}",
        f"name what is not code in {os.path.join(root, IGNORE_FILE)}, as in .gitignore",
    )


def too_large(path: str, size: int, limits: CodeLimits) -> NotFreezable:
    return NotFreezable(
        f"the files of {path} have {size_text(size)}, more than {size_text(limits.size)}",
        f"name what is not code in {os.path.join(path, IGNORE_FILE)}, as in .gitignore",
    )


def _whole(path: str, folders: set[str]) -> str:
    """The outermost directory of a path without code, or the path itself."""
    return next((above for above in reversed([*_folders_of(path)]) if above not in folders), path)


def is_data(path: str, ignored: Patterns) -> bool:
    """Whether an untracked path is no code, but an environment, a cache, data or a result.

    A directory has a slash at its end.
    """
    *folders, name = path.split("/")
    if ignored.match(path) or not _NO_CODE.isdisjoint(folders):
        return True
    if not _RESULTS.isdisjoint(folders) and not name.endswith(_MODULES):
        return True
    return os.path.splitext(name)[1].lower() in _DATA_SUFFIXES


def _is_placeholder(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return bool(folder) and name in _PLACEHOLDERS


def _is_never(path: str) -> bool:
    return not _NEVER.isdisjoint(path.split("/")) or path.endswith((".pyc", ".pyo"))


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _has_patterns(top: str) -> bool:
    return os.path.isfile(os.path.join(top, IGNORE_FILE))


class Patterns:
    """The lines of a .stokerignore: names, `*.ext`, `directory/`, and paths from the root, which contain a slash."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._parts = [_expression(line) for line in map(str.strip, lines) if line and not line.startswith("#")]
        self._pattern = re.compile("|".join(self._parts)) if self._parts else None

    @classmethod
    def read(cls, root: str) -> Patterns:
        try:
            text = Path(root, IGNORE_FILE).read_text(errors="surrogateescape")
        except OSError:
            return cls(())
        return cls(text.splitlines())

    def match(self, path: str) -> bool:
        """Whether a path, or a directory above it, is named."""
        return self._pattern is not None and self._pattern.match(path) is not None


def _expression(line: str) -> str:
    name = line.rstrip("/")
    above = "" if "/" in name else "(?s:.*/)?"
    inner = re.sub(r"\\[zZ]$", "", fnmatch.translate(name.lstrip("/")))
    return f"(?:{above}{inner}{'/' if line.endswith('/') else '(?:/|$)'})"
