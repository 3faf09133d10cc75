"""Checks before submit: PyTorch version for --cap, MPS, git commit, kernel limits."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from string import Template
from typing import NamedTuple

from msgspec.structs import replace

from stoker.core.device import Device
from stoker.core.errors import Impossible, UsageError
from stoker.core.spec import Command, JobSpec
from stoker.core.units import size_text

_PYTHON = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)*t?)?", re.DOTALL)

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)

_WRAPPERS = frozenset(
    (
        *("env", "exec", "command", "nohup", "nice", "ionice", "time", "timeout", "stdbuf", "taskset", "numactl"),
        *("setsid", "unbuffer", "if", "then", "else", "do", "while", "!", "{"),
    )
)
"""Words before a program that leave its environment as it is, but for the assignments among them."""

_SETTING_UP = frozenset(
    (".", "source", "eval", "alias", "module", "ml", "conda", "mamba", "micromamba", "pyenv", "pixi", "spack")
)
"""Commands after which another Python may be meant."""

_TELLING = re.compile(r"(?:PATH|PYTHON\w*|VIRTUAL_ENV|CONDA\w*|LD_LIBRARY_PATH)=")
"""Assignments after which another one may be meant, or finds other packages."""


def is_python(word: str) -> bool:
    """Whether a program is a Python, by its name."""
    return _PYTHON.fullmatch(word) is not None


def programs_of(command: Command) -> list[str]:
    """The Python that a command runs, else the programs of which one may be written in it; none where one cannot tell.

    A shell can be told anything, so a line in which another Python may be chosen tells nothing.
    """
    parts = list(_simple_commands(command.words[0])) if command.shell else [list(command.words)]
    if any(words[0] in _SETTING_UP or any(map(_TELLING.match, words)) for words in parts):
        return []
    programs = [program for words in parts if (program := _program(words))]
    if "cd" in programs:
        programs = [program for program in programs if not _depends_on_place(program)]
    return [program for program in programs if is_python(program)][:1] or programs


def _depends_on_place(program: str) -> bool:
    return "/" in program and not program.startswith(("/", "~", "$"))


def _program(words: Sequence[str]) -> str:
    """The first word that is none of those before a program; behind such words, which have options, the Python."""
    rest = [word for word in words if not _ASSIGNMENT.match(word)]
    if not rest or rest[0] not in _WRAPPERS:
        return rest[0] if rest else ""
    return next((word for word in rest if is_python(word)), "")


def _simple_commands(line: str) -> Iterator[list[str]]:
    """The words between the operators of a shell."""
    import shlex

    lexer = shlex.shlex(line.replace("\\\n", " ").replace("\n", ";"), posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        for token in lexer:
            if not set(token) <= set("();|&"):
                words.append(token)
            elif words:
                yield words
                words = []
    except ValueError:  # quotes that only a shell understands
        return
    if words:
        yield words


INTERPRETER_TIMEOUT = 5.0
"""Seconds that an interpreter may take to answer; from a cold network disk it is slow."""

_SECONDS_TO_DIE = 1.0

_FIRST_LINE = 1024

_MARK = "stoker-torch"

_TORCH_QUESTION = f"""
import sys
sys.path = [place for place in sys.path if place]  # nothing of the directory that we are in shall run now
from importlib.metadata import PackageNotFoundError, version
try:
    print("{_MARK}", version("torch"))
except PackageNotFoundError:
    print("{_MARK}")
"""


class Torch(NamedTuple):
    """What an interpreter said; the version is empty where it finds no PyTorch, and None where it gave no answer."""

    python: str
    version: str | None


def find_python(command: Command, environment: Mapping[str, str], cwd: str) -> str | None:
    """The path of the Python that a command runs, also as one of its scripts; None where one cannot tell."""
    for program in programs_of(command):
        path = _find(program, environment, cwd)
        if path and not is_python(program):
            path = _of_script(path, environment, cwd)
        if path:
            return path
    return None


def ask_torch(python: str, environment: Mapping[str, str], cwd: str) -> Torch:
    """The version of PyTorch that a Python would import."""
    try:
        process = subprocess.Popen(
            [python, "-c", _TORCH_QUESTION],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=cwd if os.path.isdir(cwd) else "/",
            start_new_session=True,  # out of reach of the terminal's Ctrl-C
        )
    except (OSError, ValueError):
        return Torch(python, None)
    return Torch(python, _told(_answer(process)))


def _answer(process: subprocess.Popen[bytes]) -> str:
    """What it wrote, if it ended in time; one that hangs on a dead disk may not even die, and nobody waits for that."""
    with suppress(subprocess.TimeoutExpired):
        return process.communicate(timeout=INTERPRETER_TIMEOUT)[0].decode(errors="replace")
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=_SECONDS_TO_DIE)
    return ""


def _told(answer: str) -> str | None:
    """What stands behind the mark: start-up files may print something, too."""
    lines = [line for line in answer.splitlines() if line.startswith(_MARK)]
    return lines[-1].removeprefix(_MARK).strip() if lines else None


def _find(program: str, environment: Mapping[str, str], cwd: str) -> str | None:
    """A program as the shell would find it, with variables in its name replaced."""
    import shutil

    name = Template(program).safe_substitute(environment)
    if name.startswith("~/"):
        name = environment.get("HOME", "~") + name[1:]
    return shutil.which(os.path.join(cwd, name) if "/" in name else name, path=environment.get("PATH", os.defpath))


def _of_script(path: str, environment: Mapping[str, str], cwd: str) -> str | None:
    """The Python that a script names in its first line, directly or through env."""
    with suppress(OSError), open(path, "rb") as file:
        first = file.readline(_FIRST_LINE)
        words = first.removeprefix(b"#!").decode(errors="replace").split() if first.startswith(b"#!") else []
        word = next((word for word in words if is_python(word)), None)
        return _find(word, environment, cwd) if word else None
    return None


SINCE = (2, 10)
"""The first PyTorch that reads the cap from its environment; what came before 2.10.0 itself may not."""

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(.*)", re.DOTALL)

_EARLY = re.compile(r"[._-]?(?:a|b|c|rc|dev|alpha|beta|pre)", re.IGNORECASE)


class Caps:
    """Asks each interpreter once, and says once for each reason why a cap is left out."""

    def __init__(self, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.say = say
        self._environment = environment
        self._answers: dict[tuple[object, ...], Torch] = {}
        self._without: dict[JobSpec, JobSpec] = {}
        self._said: set[str] = set()

    def settled(self, command: Command, spec: JobSpec) -> JobSpec:
        """The terms of a job, without the cap where it would do harm or nothing."""
        if not spec.cap or not (reason := self._hindrance(command, spec)):
            return spec
        if reason not in self._said:
            self._said.add(reason)
            self.say(f"--cap is left out: {reason}")
        if spec not in self._without:
            self._without[spec] = replace(spec, cap=False)
        return self._without[spec]

    def _hindrance(self, command: Command, spec: JobSpec) -> str:
        if not spec.resources.shares:
            return "without --vram a job has its GPUs to itself"

        environment = {**self._environment, **dict(spec.extra_env)}
        python = find_python(command, environment, spec.cwd)
        if python is None:
            return "the command does not tell which Python it runs, so the version of its PyTorch is not known"
        torch = self._asked(python, environment, spec)
        if torch.version is None:
            return f"{python} did not tell within {INTERPRETER_TIMEOUT:g} s which PyTorch it has"
        if not torch.version:
            return f"there is no PyTorch for {python}"
        return (
            "" if knows_cap(torch.version) else f"PyTorch {torch.version} of {python} does not know it, but 2.10 does"
        )

    def _asked(self, python: str, environment: Mapping[str, str], spec: JobSpec) -> Torch:

        # Other variables do not change what a Python imports, and may be different for each job. Where it is started
        # may: pyenv chooses by the directory.
        telling = tuple(item for item in spec.extra_env if item[0].startswith(("PYTHON", "PYENV", "LD_")))
        key = (python, telling, spec.cwd)
        if key not in self._answers:
            self._answers[key] = ask_torch(python, environment, spec.cwd)
        return self._answers[key]


def knows_cap(version: str) -> bool:
    """Whether a version of PyTorch reads the cap from its environment."""
    found = _VERSION.match(version)
    if found is None:
        return False
    release = int(found[1]), int(found[2])
    return release > SINCE or (release == SINCE and not _EARLY.match(found[3]))


class MpsPreflight:
    """Decides for all jobs of a batch, and says once that they go without."""

    def __init__(self, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.say = say
        self._environment = environment
        self._said: set[str] = set()

    def settled(self, spec: JobSpec, devices: Sequence[Device]) -> JobSpec:
        """The terms, without MPS where there is none and that was allowed; on devices that may not be known yet."""
        if spec.resources.mps is None or not (reason := self._hindrance(devices)):
            return spec
        if not spec.mps_optional:
            raise Impossible(f"there is no MPS here: {reason}", "leave out --mps, or let it go with --mps-optional")
        if reason not in self._said:
            self._said.add(reason)
            self.say(f"--mps is left out: {reason}")
        return replace(spec, resources=replace(spec.resources, mps=None))

    def _hindrance(self, devices: Sequence[Device]) -> str:
        if devices and not any(device.supports_mps for device in devices):
            return "it needs NVIDIA GPUs, and these devices are only names"
        from shutil import which

        from stoker.devices.mps.control import PROGRAM

        return "" if which(PROGRAM, path=self._environment.get("PATH")) else f"{PROGRAM} is not on the PATH"


GIT_TIMEOUT = 1.0
"""Seconds that Git may take; on a slow disk the commit is not worth more."""

_SHORT = 7

_GIT_QUESTION = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=dirty")


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
            self._commits[root] = _git_says(_asked(root, self._environment))
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


def _git_says(answer: bytes) -> str:
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
        return _run([program, "-C", root, *_GIT_QUESTION], environment)
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
        answer = _read(output, time.monotonic() + GIT_TIMEOUT)
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


ONE_STRING = 128 * 1024
"""Bytes of one word or one variable, with the zero at its end."""

_MOST = 6 * 2**20
"""Bytes of all of them together, however large a stack is allowed."""

_POINTER = 8

_OURS = 8 * 1024
"""Bytes set aside for the variables that a job is given."""


class Room:
    """How much of what a program can be given the environment leaves for its words and its own variables."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        _refuse_large_variables(environment)
        self._limit = min(_MOST, max(0, os.sysconf("SC_ARG_MAX")) or _MOST)
        self._environment = _size(_assignments(environment))
        self._usual = self._limit - self._environment - _OURS
        self._refuse_more_than(self._usual, 0)

    def check(self, command: Command, extra: Mapping[str, str]) -> None:
        """Refuse a command that no program could be started with in this environment."""
        if extra:
            _refuse_large_variables(extra)
        elif sum(map(len, command.words)) < ONE_STRING // 4 - len(command.words):  # four bytes a character at most
            return
        for word in command.words:
            if (size := _bytes(word) + 1) > ONE_STRING:
                raise UsageError(
                    f"a word of the command has {size_text(size)}; the kernel takes {size_text(ONE_STRING)}",
                    "put it into a script or a file",
                )
        self._refuse_more_than(self._usual, _size(command.words) + _size(_assignments(extra)))

    def _refuse_more_than(self, room: int, size: int) -> None:
        if size > room:
            together = size_text(size + self._environment)
            raise UsageError(
                f"command and environment have {together} together; the kernel takes {size_text(self._limit)}",
                "put what is large into files, or unset some variables",
            )


def _refuse_large_variables(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if len(value) > ONE_STRING // 8 and (size := _bytes(name) + _bytes(value) + 2) > ONE_STRING:
            raise UsageError(
                f"the variable {name} has {size_text(size)}; the kernel takes {size_text(ONE_STRING)}",
                "put its value into a file, or unset it",
            )


def _assignments(variables: Mapping[str, str]) -> Iterable[str]:
    return (f"{name}={value}" for name, value in variables.items())


def _size(strings: Iterable[str]) -> int:
    return sum(_bytes(string) + 1 + _POINTER for string in strings)


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogateescape"))
