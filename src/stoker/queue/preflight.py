"""Checks before submit: --cap and --mps, the git commit, and the limits of the kernel."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stoker.core.device import Device
from stoker.core.errors import Impossible, UsageError
from stoker.core.spec import Command, JobSpec
from stoker.core.units import size_text

if TYPE_CHECKING:
    from stoker.queue.pytorch import Torch


class Preflight:
    """Drops --cap and --mps from a spec where they cannot work, and warns once per reason.

    Keeps the PyTorch version of each interpreter, so that each is asked once for all jobs of a batch.
    """

    def __init__(self, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.say = say
        self._environment = environment
        self._torch: dict[tuple[object, ...], Torch] = {}
        self._uncapped: dict[JobSpec, JobSpec] = {}
        self._said: set[str] = set()

    def settle_cap(self, command: Command, spec: JobSpec) -> JobSpec:
        """The spec without --cap where PyTorch would ignore it or fail with it."""
        if not spec.cap or not (reason := self._why_no_cap(command, spec)):
            return spec
        self._warn(f"--cap is left out: {reason}")
        if spec not in self._uncapped:
            self._uncapped[spec] = replace(spec, cap=False)
        return self._uncapped[spec]

    def settle_mps(self, spec: JobSpec, devices: Sequence[Device]) -> JobSpec:
        """The spec without MPS where there is none and it is optional; `devices` is empty while they are unknown."""
        if spec.resources.mps is None or not (reason := self._why_no_mps(devices)):
            return spec
        if not spec.mps_optional:
            raise Impossible(f"there is no MPS here: {reason}", "leave out --mps, or let it go with --mps-optional")
        self._warn(f"--mps is left out: {reason}")
        return replace(spec, resources=replace(spec.resources, mps=None))

    def _warn(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self.say(sentence)

    def _why_no_cap(self, command: Command, spec: JobSpec) -> str:
        from stoker.queue.pytorch import INTERPRETER_TIMEOUT, find_python, knows_cap  # few jobs want a cap

        if not spec.resources.shares:
            return "without --vram a job has its GPUs to itself"
        environment = {**self._environment, **dict(spec.extra_env)}
        python = find_python(command, environment, spec.cwd)
        if python is None:
            return "the command does not tell which Python it runs, so the version of its PyTorch is not known"
        version = self._torch_of(python, environment, spec).version
        if version is None:
            return f"{python} did not tell within {INTERPRETER_TIMEOUT:g} s which PyTorch it has"
        if not version:
            return f"there is no PyTorch for {python}"
        return "" if knows_cap(version) else f"PyTorch {version} of {python} does not know it, but 2.10 does"

    def _torch_of(self, python: str, environment: Mapping[str, str], spec: JobSpec) -> Torch:
        from stoker.queue.pytorch import ask_torch

        # Other variables differ from job to job and do not change what a Python imports. The directory may: pyenv
        # chooses by it.
        relevant = tuple(item for item in spec.extra_env if item[0].startswith(("PYTHON", "PYENV", "LD_")))
        key = (python, relevant, spec.cwd)
        if key not in self._torch:
            self._torch[key] = ask_torch(python, environment, spec.cwd)
        return self._torch[key]

    def _why_no_mps(self, devices: Sequence[Device]) -> str:
        if devices and not any(device.supports_mps for device in devices):
            return "it needs NVIDIA GPUs, and these devices are only names"
        from shutil import which

        from stoker.devices.mps.daemon import PROGRAM

        return "" if which(PROGRAM, path=self._environment.get("PATH")) else f"{PROGRAM} is not on the PATH"


GIT_TIMEOUT = 1.0
"""Seconds that Git may take; the commit is not worth a longer wait on a slow disk."""

_SHORT = 7

_GIT_QUESTION = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=dirty")


class Checkouts:
    """Cache of the commit per repository; runs Git only where there is a repository."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {
            **{name: value for name, value in environment.items() if not name.startswith("GIT_")},
            "GIT_OPTIONAL_LOCKS": "0",  # else it would block a commit at the same time
            "LC_ALL": "C",
        }
        self._roots: dict[str, str] = {}
        self._commits: dict[str, str] = {"": ""}

    def commit(self, directory: str) -> str:
        """`abc1234`, or `abc1234*` where files differ from it; empty where it is unknown."""
        if directory not in self._roots:
            self._roots[directory] = _root_above(directory)
        root = self._roots[directory]
        if root not in self._commits:
            self._commits[root] = _commit_in(_git_status(root, self._environment))
        return self._commits[root]


def _root_above(directory: str) -> str:
    """The nearest directory with a repository; empty where there is none."""
    path = os.path.abspath(directory)
    while not os.path.lexists(os.path.join(path, ".git")):
        above = os.path.dirname(path)
        if above == path:
            return ""
        path = above
    return path


def _commit_in(answer: bytes) -> str:
    """The commit of Git's answer, which names it before the changed files."""
    commit, changed = "", ""
    for line in answer.splitlines():
        if line.startswith(b"# branch.oid "):
            commit = line.split()[2][:_SHORT].decode(errors="replace")
        elif not line.startswith(b"#"):
            changed = "*"
    return f"{commit}{changed}" if commit.isalnum() else ""


def _git_status(root: str, environment: Mapping[str, str]) -> bytes:
    """Git's answer; empty where it fails, is not installed, or takes too long."""
    import shutil

    program = shutil.which("git", path=environment.get("PATH"))
    if program is None:
        return b""
    with contextlib.suppress(OSError, ValueError):
        return _run([program, "-C", root, *_GIT_QUESTION], environment)
    return b""


def _run(words: list[str], environment: Mapping[str, str]) -> bytes:
    """The output of a program that succeeded in time. Loading subprocess would cost more than this call."""
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
    if answer is None:  # do not wait for it: on a dead file system that could take for ever
        os.kill(process, signal.SIGKILL)
        return b""
    _, status = os.waitpid(process, 0)
    return answer if status == 0 else b""


def _read(descriptor: int, deadline: float) -> bytes | None:
    """All output until its end; None where the end does not come in time."""
    parts: list[bytes] = []
    while select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(descriptor, 65_536)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None


ONE_STRING = 128 * 1024
"""Bytes of one word or one variable, with its final NUL."""

_MOST = 6 * 2**20
"""Bytes of all of them together, however large the stack may be."""

_POINTER = 8

_OURS = 8 * 1024
"""Bytes reserved for the variables that Stoker gives a job."""


class KernelLimits:
    """How many bytes the environment leaves for the words and the own variables of a job."""

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
