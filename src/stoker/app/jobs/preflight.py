"""Checks before submit: --cap and --mps, the git commit, and the limits of the kernel."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from stoker.app.jobs.context import find_program
from stoker.app.jobs.option_values import why_not_sendable
from stoker.core.device import Device
from stoker.core.errors import Impossible, UsageError, did_you_mean
from stoker.core.launch import INHERIT
from stoker.core.spec import Command, IdleRule, JobSpec
from stoker.core.text import on_one_line, shortened
from stoker.core.units import size_text


class Preflight:
    """Drops --cap and --mps from a spec where they cannot work, and warns once per reason.

    Keeps the PyTorch version of each interpreter, so that each is asked once for all jobs of a batch.
    """

    def __init__(self, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.say = say
        self._environment = environment
        self._torch: dict[tuple[object, ...], str | None] = {}
        self._uncapped: dict[JobSpec, JobSpec] = {}
        self._said: set[str] = set()

    def without_unsupported_cap(self, command: Command, spec: JobSpec) -> JobSpec:
        """The spec without --cap where PyTorch would ignore it or fail with it."""
        if not spec.cap or not (reason := self._why_no_cap(command, spec)):
            return spec
        self._warn(f"--cap is ignored: {reason}")
        if spec not in self._uncapped:
            self._uncapped[spec] = replace(spec, cap=False)
        return self._uncapped[spec]

    def without_unsupported_mps(self, spec: JobSpec, devices: Sequence[Device]) -> JobSpec:
        """The spec without MPS where there is none and it is optional; `devices` is empty while they are unknown."""
        if spec.resources.mps is None or not (reason := self._why_no_mps(devices)):
            return spec
        if not spec.mps_optional:
            raise Impossible(f"MPS is not available: {reason}", "leave out --mps, or use --mps-optional")
        self._warn(f"--mps is ignored: {reason}")
        return replace(spec, resources=replace(spec.resources, mps=None))

    def check_limits(self, spec: JobSpec) -> None:
        if spec.signal is not None and spec.limit is None:
            self._warn("--signal has no effect without a time limit; add -t")
        for option, seconds in (("--first-output", spec.first_output), ("--silent", spec.silent)):
            if seconds is not None and spec.limit is not None and seconds >= spec.limit:
                self._warn(f"{option} {seconds:g}s has no effect: the time limit of {spec.limit:g}s comes first")
            elif seconds is not None and (place := _unseen_output(spec)):
                self._warn(f"{option} has no effect: Stoker cannot see what a job writes to {place}")

    def check_idle(self, spec: JobSpec) -> None:
        if spec.idle.action == "preempt" and not spec.preemptible:
            self._warn("--idle with preempt only reports a job without --preemptible")
        if spec.cluster and spec.idle != IdleRule():
            self._warn("on a cluster, --idle has an effect only inside pilots (docs/cluster.md)")

    def check_notify(self, spec: JobSpec) -> None:
        if spec.notify and (reason := why_not_sendable(spec.notify)):
            self._warn(f"--notify will not work: {reason}")

    def _warn(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self.say(sentence)

    def _why_no_cap(self, command: Command, spec: JobSpec) -> str:
        if not spec.resources.shares:
            return "without --vram a job has exclusive GPUs"
        environment = {**self._environment, **dict(spec.extra_env)}
        python = find_python(command, environment, spec.cwd)
        if python is None:
            return "cannot find out which Python the command runs, so its PyTorch version is unknown"
        version = self._torch_of(python, environment, spec)
        if version is None:
            return f"{python} did not report its PyTorch version within {INTERPRETER_TIMEOUT:g} s"
        if not version:
            return f"{python} has no PyTorch"
        return "" if knows_cap(version) else f"PyTorch {version} of {python} does not support it (needs 2.10)"

    def _torch_of(self, python: str, environment: Mapping[str, str], spec: JobSpec) -> str | None:
        # Other variables differ from job to job and do not change what a Python imports. The directory may: pyenv
        # chooses by it.
        relevant = tuple(item for item in spec.extra_env if item[0].startswith(("PYTHON", "PYENV", "LD_")))
        key = (python, relevant, spec.cwd)
        if key not in self._torch:
            self._torch[key] = torch_version(python, environment, spec.cwd)
        return self._torch[key]

    def _why_no_mps(self, devices: Sequence[Device]) -> str:
        if devices and not any(device.supports_mps for device in devices):
            return "it needs NVIDIA GPUs, but these devices are only names"
        from stoker.devices.mps.daemon import PROGRAM

        return "" if find_program(PROGRAM, self._environment.get("PATH")) else f"{PROGRAM} is not on the PATH"


def _unseen_output(spec: JobSpec) -> str:
    """Where output goes whose size cannot be seen: anything but a file."""
    if spec.terminal:
        return "a terminal"
    outputs = [(spec.out, 1), (spec.err or spec.out, 2)]
    for place, stream in [(stream, stream) if path == INHERIT else (path, stream) for path, stream in outputs]:
        with contextlib.suppress(OSError):  # a file that does not exist yet
            if place and not stat.S_ISREG(os.stat(place).st_mode):
                return f"standard {'output' if stream == 1 else 'error'}" if place == stream else str(place)
    return ""


def answer_of(words: Sequence[str], environment: Mapping[str, str], seconds: float, cwd: str | None = None) -> bytes:
    """The output of a program that succeeds in time; empty where it fails, is not installed, or takes too long."""
    import subprocess  # many jobs ask no program

    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=cwd,
            start_new_session=True,  # out of reach of the terminal's Ctrl-C
        )
    except (OSError, ValueError):
        return b""
    with contextlib.suppress(subprocess.TimeoutExpired):
        output, _ = process.communicate(timeout=seconds)
        return output if process.returncode == 0 else b""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that hangs on a dead disk cannot be killed
        process.communicate(timeout=_SECONDS_TO_DIE)
    return b""


# -- the commit ----------------------------------------------------------------------------------

GIT_TIMEOUT = 1.0
"""Seconds that Git may take; the commit is not worth a longer wait on a slow disk."""
_SHORT = 7
_GIT_QUESTION = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=dirty")


def git_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which Git reads the repository of a directory and changes nothing."""
    return {
        **{name: value for name, value in environment.items() if not name.startswith("GIT_")},
        "GIT_OPTIONAL_LOCKS": "0",  # else it would block a commit at the same time
        "LC_ALL": "C",
    }


class Checkouts:
    """Cache of the commit per repository; runs Git only where there is a repository."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = git_environment(environment)
        self._roots: dict[str, str] = {}
        self._commits: dict[str, str] = {"": ""}

    def commit(self, directory: str) -> str:
        """`abc1234`, or `abc1234*` where files differ from it; empty where it is unknown."""
        if directory not in self._roots:
            self._roots[directory] = root_above(directory)
        root = self._roots[directory]
        if root not in self._commits:
            answer = answer_of(["git", "-C", root, *_GIT_QUESTION], self._environment, GIT_TIMEOUT)
            self._commits[root] = _commit_in(answer)
        return self._commits[root]


def root_above(directory: str) -> str:
    """The nearest directory with a repository; empty where there is none."""
    start = Path(os.path.abspath(directory))
    return next((str(above) for above in (start, *start.parents) if os.path.lexists(above / ".git")), "")


def _commit_in(answer: bytes) -> str:
    """The commit of Git's answer, which names it before the changed files."""
    commit, changed = "", ""
    for line in answer.splitlines():
        if line.startswith(b"# branch.oid "):
            commit = line.split()[2][:_SHORT].decode(errors="replace")
        elif not line.startswith(b"#"):
            changed = "*"
    return f"{commit}{changed}" if commit.isalnum() else ""


# -- PyTorch -------------------------------------------------------------------------------------

_PYTHON = r"(?s:.*/)?python(?:\d+(?:\.\d+)*t?)?"
_ASSIGNMENT = r"(?a:[A-Za-z_]\w*=)"

_WRAPPERS = frozenset(
    (
        *("env", "exec", "command", "nohup", "nice", "ionice", "time", "timeout", "stdbuf", "taskset", "numactl"),
        *("setsid", "unbuffer", "if", "then", "else", "do", "while", "!", "{"),
    )
)
"""Words before a program that do not change its environment; assignments among them do."""

_SETTING_UP = frozenset(
    (".", "source", "eval", "alias", "module", "ml", "conda", "mamba", "micromamba", "pyenv", "pixi", "spack")
)
"""Commands after which `python` may be another one."""

_CHOOSES_PYTHON = r"(?:PATH|PYTHON\w*|VIRTUAL_ENV|CONDA\w*|LD_LIBRARY_PATH)="
"""Assignments after which `python` may be another one, or find other packages."""


def is_python(word: str) -> bool:
    return re.fullmatch(_PYTHON, word) is not None


def programs_of(command: Command) -> list[str]:
    """The Python that a command runs, else its programs, which may be Python scripts; none where it is unclear.

    A shell line that may choose another Python is unclear.
    """
    parts = list(_simple_commands(command.words[0])) if command.shell else [list(command.words)]
    if any(words[0] in _SETTING_UP or any(re.match(_CHOOSES_PYTHON, word) for word in words) for words in parts):
        return []
    programs = [program for words in parts if (program := _program(words))]
    if "cd" in programs:
        programs = [program for program in programs if "/" not in program or program.startswith(("/", "~", "$"))]
    return [program for program in programs if is_python(program)][:1] or programs


def _program(words: Sequence[str]) -> str:
    """The first word; after a wrapper, whose options are unknown, the first word that is a Python."""
    rest = [word for word in words if not re.match(_ASSIGNMENT, word)]
    if not rest or rest[0] not in _WRAPPERS:
        return rest[0] if rest else ""
    return next((word for word in rest if is_python(word)), "")


def _simple_commands(line: str) -> Iterator[list[str]]:
    """The words between operators of the shell."""
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
"""Seconds that an interpreter may take; a cold network disk is slow."""
_SECONDS_TO_DIE = 1.0
_FIRST_LINE = 1024
_MARK = "stoker-torch"

_TORCH_QUESTION = f"""
import sys
sys.path = [place for place in sys.path if place]  # run no module of the current directory
from importlib.metadata import PackageNotFoundError, version
try:
    print("{_MARK}", version("torch"))
except PackageNotFoundError:
    print("{_MARK}")
"""


def find_python(command: Command, environment: Mapping[str, str], cwd: str) -> str | None:
    """The path of the Python that a command runs, directly or through a script; None where it is unclear."""
    for program in programs_of(command):
        path = _find(program, environment, cwd)
        if path and not is_python(program):
            path = _of_script(path, environment, cwd)
        if path:
            return path
    return None


def torch_version(python: str, environment: Mapping[str, str], cwd: str) -> str | None:
    """The PyTorch that a Python would import; empty where it finds none, None where it did not answer."""
    words = [python, "-c", _TORCH_QUESTION]
    answer = answer_of(words, environment, INTERPRETER_TIMEOUT, cwd if os.path.isdir(cwd) else "/")
    # Start-up files may print something, too.
    lines = [line for line in answer.decode(errors="replace").splitlines() if line.startswith(_MARK)]
    return lines[-1].removeprefix(_MARK).strip() if lines else None


def _find(program: str, environment: Mapping[str, str], cwd: str) -> str | None:
    """A program as the shell would find it, with variables in its name substituted."""
    name = program
    if "$" in name:
        from string import Template

        name = Template(name).safe_substitute(environment)
    if name.startswith("~/"):
        name = environment.get("HOME", "~") + name[1:]
    return find_program(os.path.join(cwd, name) if "/" in name else name, environment.get("PATH", os.defpath))


def _of_script(path: str, environment: Mapping[str, str], cwd: str) -> str | None:
    """The Python in the first line of a script, directly or through env."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        first = file.readline(_FIRST_LINE)
        words = first.removeprefix(b"#!").decode(errors="replace").split() if first.startswith(b"#!") else []
        word = next((word for word in words if is_python(word)), None)
        return _find(word, environment, cwd) if word else None
    return None


# -- the program and the output --------------------------------------------------------------------

_FIRST_WORD = re.compile(r"\s*([\w./+-]+)(?=\s|$)")
_SHELL_WORDS = frozenset(
    (
        *(".", ":", "[", "alias", "bg", "break", "builtin", "case", "cd", "command", "continue", "declare", "echo"),
        *("eval", "exec", "exit", "export", "false", "fg", "for", "function", "getopts", "hash", "if", "jobs", "kill"),
        *("let", "local", "popd", "printf", "pushd", "pwd", "read", "readonly", "return", "select", "set", "shift"),
        *("shopt", "source", "test", "time", "times", "trap", "true", "type", "typeset", "ulimit", "umask", "unalias"),
        *("unset", "until", "wait", "while"),
    )
)
"""Words at the beginning of a line that a shell knows itself."""
_NO_PROGRAMS = _SHELL_WORDS | _SETTING_UP | _WRAPPERS
_MOST_NOTES = 5
_MOST_LINES = 100
"""Lines with an odd number of quotes that are looked at more closely."""
_LONGEST_LINE = 60
"""Characters of such a line that are shown."""
_NO_FILES = ("/proc/", "/sys/")
"""Where the kernel lets no user create files."""


def start_notes(
    jobs: Iterable[tuple[Command, JobSpec]], environment: Mapping[str, str], own: Collection[str] = ()
) -> list[str]:
    """Warnings about jobs that would fail at once if they started now; `own` are outputs whose directory we make."""
    seen: dict[tuple[str, str, str], str] = {}
    for command, spec in jobs:
        program, path = _first_program(command), dict(spec.extra_env).get("PATH", environment.get("PATH", os.defpath))
        if program and (program, path, spec.cwd) not in seen:
            seen[program, path, spec.cwd] = _program_note(program, {**environment, "PATH": path}, spec.cwd)
        if command.shell and _has_odd_quotes(command.words[0]) and len(seen) < _MOST_LINES:
            seen[command.words[0], "", ""] = _quote_note(command)
        for pattern in {spec.out, spec.err}.difference(own) if not spec.after else ():
            if (pattern, "", spec.cwd) not in seen:
                seen[pattern, "", spec.cwd] = _output_note(pattern)
    return list(dict.fromkeys(filter(None, seen.values())))[:_MOST_NOTES]


def _first_program(command: Command) -> str:
    """The program that starts first; empty where that is unclear."""
    if not command.shell:
        return "" if "{" in command.words[0] else command.words[0]
    match = _FIRST_WORD.match(command.words[0])
    word = match[1] if match else ""
    return "" if word in _NO_PROGRAMS else word


def _program_note(program: str, environment: Mapping[str, str], cwd: str) -> str:
    if _find(program, environment, cwd):
        return ""
    path = os.path.join(cwd, program)
    if "/" in program and os.path.isfile(path):
        return f"warning: {program} is not executable, so the job would fail; type: chmod +x {path}"
    if "/" in program:
        return f"warning: {program} does not exist in {cwd}; the job fails unless this changes before it starts"
    near = did_you_mean(program, _programs(program[:1], environment["PATH"]), "check the spelling")
    return f"warning: {program} is not on the PATH; the job fails unless this changes before it starts; {near}"


def _programs(letter: str, path: str) -> set[str]:
    """Programs on the PATH that begin so."""
    names: set[str] = set()
    for directory in path.split(os.pathsep):
        with contextlib.suppress(OSError):
            names.update(name for name in os.listdir(directory or ".") if name.startswith(letter))
    return names


def _has_odd_quotes(line: str) -> bool:
    return line.count("'") % 2 == 1 or line.count('"') % 2 == 1


def _quote_note(command: Command) -> str:
    """A warning if the shell cannot read the line; it is asked only if quotes are left open at a first look."""
    import subprocess

    line = command.words[0]
    with contextlib.suppress(ValueError):
        shlex.split(line, comments=True)
        return ""
    try:
        done = subprocess.run(
            [command.shell, "-n", "-c", line],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=INTERPRETER_TIMEOUT,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return ""
    if done.returncode == 0:
        return ""
    return f"warning: a quote is not closed, so the job would fail: {shortened(on_one_line(line), _LONGEST_LINE)}"


def _output_note(pattern: str) -> str:
    """A directory with a placeholder is not known before the start."""
    if os.path.isdir(pattern):
        better = shlex.quote(os.path.join(pattern, "%j.log"))
        return f"warning: the output {pattern} is a directory, so the job would fail; name a file: -o {better}"
    folder = os.path.dirname(pattern)
    if pattern.startswith(_NO_FILES) or (os.path.isdir(folder) and not os.access(folder, os.W_OK | os.X_OK)):
        return f"warning: no file can be created in {folder}, so the job would fail; name another place with -o"
    if not folder.startswith("/") or "%" in folder.replace("%%", "") or os.path.isdir(folder.replace("%%", "%")):
        return ""
    return f"warning: the output directory does not exist; type: mkdir -p {shlex.quote(folder)}"


SINCE = (2, 10)
"""The first PyTorch that reads the cap from its environment; pre-releases of 2.10.0 may not."""
_VERSION = r"(\d+)\.(\d+)(?:\.\d+)*((?s:.*))"
_EARLY = r"[._-]?(?i:a|b|c|rc|dev|alpha|beta|pre)"


def knows_cap(version: str) -> bool:
    match = re.match(_VERSION, version)
    if match is None:
        return False
    release = int(match[1]), int(match[2])
    return release > SINCE or (release == SINCE and not re.match(_EARLY, match[3]))


# -- the kernel ----------------------------------------------------------------------------------

ONE_STRING = 128 * 1024
"""Bytes of one word or one variable, with its final NUL."""
_MOST = 6 * 2**20
"""Bytes of all of them together, however large the stack may be."""
_POINTER = 8
_OURS = 8 * 1024
"""Bytes reserved for the variables that Stoker gives a job."""


class KernelLimits:
    """Refuses commands that the kernel would not start with this environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._limit = min(_MOST, max(0, os.sysconf("SC_ARG_MAX")) or _MOST)
        self._used = _OURS
        self._used += self.check((), environment)

    def check(self, words: Sequence[str], variables: Mapping[str, str]) -> int:
        """Bytes that the kernel needs for them; refuses what is too much, alone or together with the environment."""
        strings = [*(("a word of the command", word) for word in words)]
        strings += [(f"the variable {name}", f"{name}={value}") for name, value in variables.items()]
        total = 0
        for what, string in strings:
            size = len(string.encode(errors="surrogateescape")) + 1
            if size > ONE_STRING:
                message = f"{what} has {size_text(size)}; the kernel allows {size_text(ONE_STRING)}"
                raise UsageError(message, "put it in a script or a file")
            total += size + _POINTER
        if total + self._used > self._limit:
            raise UsageError(
                f"command and environment have {size_text(total + self._used)} together; "
                f"the kernel allows {size_text(self._limit)}",
                "move large values to files, or unset some variables",
            )
        return total
