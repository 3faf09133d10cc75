"""Recognise scripts, which run as one job from a copy made at submit and are never read as a job list."""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from stoker.app.jobs.context import find_program
from stoker.app.jobs.directives import Directives, read_directives
from stoker.app.jobs.options import JobOptions, merged
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.core.settings import LOCAL
from stoker.core.spec import Command
from stoker.core.units import size_text
from stoker.store.paths import UNFINISHED, Paths, make_durable

if TYPE_CHECKING:
    from stoker.app.jobs.config import Config

VARIABLE = "STOKER_SCRIPT"
"""The path of the script at submit, for the script itself: `$0` is the copy."""
LARGEST = 10 * 2**20
"""Bytes of a script; a larger file is a program or an archive, and is not copied."""
SHELLS = {
    ".sh": "sh",
    ".bash": "bash",
    ".zsh": "zsh",
    ".ksh": "ksh",
    **dict.fromkeys((".sbatch", ".slurm", ".pbs"), "bash"),
}
"""Suffixes of scripts that need no `#!` line, and the shell that runs them."""
INTERPRETERS = {
    ".py": "python {}",
    ".pyw": "python {}",
    ".ipynb": "jupyter nbconvert --to notebook --execute {}",
    ".r": "Rscript {}",
    ".jl": "julia {}",
    ".m": 'matlab -batch run("{}")',
    ".pl": "perl {}",
    ".rb": "ruby {}",
    ".lua": "lua {}",
    ".js": "node {}",
    ".mjs": "node {}",
    ".cjs": "node {}",
    ".ts": "npx tsx {}",
    ".php": "php {}",
    ".tcl": "tclsh {}",
    ".awk": "awk -f {}",
    ".fish": "fish {}",
    ".csh": "csh {}",
    ".tcsh": "tcsh {}",
    ".ps1": "pwsh -File {}",
}
"""Suffixes of scripts that need a `#!` line, and how to run them without one."""
TABLES = (".jsonl", ".ndjson", ".toml", ".csv")
"""Suffixes of job lists that are not shell lines."""
_SRUN = re.compile(rb"\s*(?:(?:exec|time|nohup|\w+=\S*)\s+)*(srun)\s")
_ONLY_ON_CLUSTERS = re.compile(
    rb"[^#]*\$\{?(SLURM_(?:NTASKS|NTASKS_PER_NODE|NPROCS|PROCID|LOCALID|NODEID|NNODES|JOB_NUM_NODES|JOB_NODELIST|NODELIST))"
    rb"(?![\w:-])"
)
"""Variables that Stoker does not set on one machine, where a script has no default for them."""
_HEAD = 4096
_BOM = b"\xef\xbb\xbf"
_ELF = b"\x7fELF"
Kind = Literal["script", "shell script", "interpreted", "program", "dead program", "unclear", "list"]


class CommandLine(Struct, frozen=True):
    """A command line of `stoker run` or `stoker submit`."""

    verb: str
    options: tuple[str, ...]
    words: tuple[str, ...]
    """The words after the options."""

    def instead(self, *words: str) -> str:
        """The command line that executes other words."""
        return shlex.join(["stoker", self.verb, *self.options, "--", *words])

    def as_list(self) -> str:
        """The command line that reads the file as a job list."""
        return shlex.join(["stoker", self.verb, *self.options, "-f", self.words[0]])


class Script(Struct, frozen=True):
    """A script as it is at submit."""

    path: str
    """Absolute."""
    data: bytes
    words: tuple[str, ...]
    """Its path and its arguments, after a shell where it has no `#!` line."""
    directives: Directives = Directives()

    @property
    def command(self) -> Command:
        return Command(self.words)

    def options_of(self, options: JobOptions) -> JobOptions:
        """The options of its job: those given override those in its lines, and a variable holds its own path."""
        given = merged(self.directives.options, options)
        return replace(given, env={**given.env, VARIABLE: self.path})

    def place_of_model(self, model: str) -> str:
        """The line that asks for this GPU model; empty where none does."""
        asked = (self.directives.options.gpu_type or "").strip().lower()
        return self.directives.places.get("gpu_type", "") if asked == model else ""

    @property
    def context(self) -> dict[str, Any]:
        """Fields of SubmitContext that its lines decide on."""
        return {"slurm": self.directives.from_slurm, "place_of_model": self.place_of_model}

    def refuse_nodes(self, nodes: int | None) -> None:
        """Refuse several nodes on one machine, where the script asks for them."""
        where = self.directives.places.get("nodes")
        if where and nodes == self.directives.options.nodes:
            what = f"{where}: the script needs {nodes} nodes, but this machine is one node"
            raise Impossible(what, "change it to --nodes=1, name a cluster with -M, or submit the script with sbatch")

    def notes(self, *, on_cluster: bool, passes: bool) -> Iterator[str]:
        """Sentences about options that are not applied, and about lines that do not work on one machine."""
        name = os.path.basename(self.path)
        yield from self.directives.notes(name, passes=passes)
        if not on_cluster:
            yield from _slurm_lines(self.data, name)

    def copied(self, paths: Paths) -> Command:
        """The command that runs the copy. The path has a digest of the content, so a changed script is other work."""
        place = self.words.index(self.path)
        return Command((*self.words[:place], str(self._copy(paths)), *self.words[place + 1 :]))

    def keep(self, paths: Paths) -> None:
        """Make the copy, if there is none. Call it in the transaction that adds the job: pruning waits for that."""
        copy = self._copy(paths)
        try:
            if not os.access(copy, os.X_OK) or copy.read_bytes() != self.data:  # no copy, or a job has changed it
                self._write(copy)
                for folder in (copy.parent, paths.scripts, paths.state):
                    make_durable(folder)
        except OSError as error:
            raise StokerError(
                f"cannot copy {self.path} to {copy.parent}: {error.strerror}",
                "nothing was submitted; free some space there",
            ) from error

    def _copy(self, paths: Paths) -> Path:
        import hashlib

        name = re.sub("[{}]", "_", os.path.basename(self.path))  # braces would be placeholders
        return paths.script(hashlib.sha256(self.data).hexdigest()[:32], name)

    def _write(self, copy: Path) -> None:
        for folder in (copy.parent.parent, copy.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        draft = copy.parent / f"{UNFINISHED}{os.urandom(6).hex()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(self.data)
                file.flush()
                os.fchmod(descriptor, 0o500)
                os.fsync(descriptor)
            draft.rename(copy)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise


def _slurm_lines(data: bytes, name: str) -> Iterator[str]:
    """Warnings about the first line that calls srun, and the first with a variable that only a cluster sets."""
    if b"srun" not in data and b"SLURM_" not in data:
        return
    for pattern, words in (
        (_SRUN, "there is no {} inside a job: write the command without it"),
        (_ONLY_ON_CLUSTERS, "{} is not set on one machine; see docs/from-slurm.md"),
    ):
        matches = ((number, pattern.match(line)) for number, line in enumerate(data.splitlines(), 1))
        number, match = next(((number, match) for number, match in matches if match), (0, None))
        if match:
            yield f"warning: {name} line {number}: {words.format(match[1].decode())}"


class Found(NamedTuple):
    """A file that runs as one job."""

    command: Command
    script: Script | None = None
    """None for a program, which is not copied."""


class BatchOptions(NamedTuple):
    """The options of a batch, completed by its script and the configuration."""

    options: JobOptions
    of_job: Callable[[JobOptions], JobOptions]
    """The options of a job of the batch that has some of its own, which may name another group."""
    notes: list[str]
    """For the user."""


def completed_options(options: JobOptions, script: Script | None, config: Config) -> BatchOptions:
    """The options with those of the script and of the configuration.

    A cluster gets what #SBATCH lines say about nodes and accounts, but not a private one, which has neither.
    """
    if script is None:
        batch = config.completed(options)
        return BatchOptions(batch, lambda own: _of_job(own, batch, options, config), [])
    completed = config.completed(script.options_of(options))
    cluster = "" if completed.cluster in (None, LOCAL) else str(completed.cluster)
    if not cluster:
        script.refuse_nodes(completed.nodes)
    passes = bool(cluster) and not config.cluster(cluster).private
    notes = list(script.notes(on_cluster=bool(cluster), passes=passes))
    if passes:
        completed = replace(completed, slurm={**script.directives.passed, **completed.slurm})
    return BatchOptions(completed, lambda own: merged(completed, own), notes)  # a script is the only job


def _of_job(own: JobOptions, batch: JobOptions, given: JobOptions, config: Config) -> JobOptions:
    return merged(batch, own) if own.group is None else config.completed(merged(given, own))


def find_script(line: CommandLine) -> Found | None:
    """The script or program that the first word names; None where that is a job list or a word of a command."""
    word, *arguments = line.words
    status = _status(line)
    if status is None:
        return None
    if stat.S_ISDIR(status.st_mode):
        raise UsageError(f"{word} is a directory", "give a script, a job list or a command")
    if not stat.S_ISREG(status.st_mode):
        return None
    executable = os.access(word, os.X_OK)
    match kind_of(_names(word), _head(word, executable=executable), executable=executable):
        case "list":
            return None
        case "program":
            return Found(Command((_with_slash(word), *arguments)))
        case "script" | "shell script" as kind:
            script = _script(line, status.st_size, kind)
            return Found(script.command, script)
        case kind:
            raise _refusal(line, kind)


def kind_of(names: Sequence[str], head: bytes, *, executable: bool) -> Kind:
    """The kind of a file by its names (a link has two), its first bytes and its mode."""
    suffixes = {os.path.splitext(name)[1].lower() for name in names}
    if head.removeprefix(_BOM).startswith(b"#!"):
        return "script"
    if head.startswith(_ELF) or (b"\0" in head and executable):
        return "program" if executable else "dead program"
    if suffixes & SHELLS.keys():
        return "shell script"
    if suffixes & INTERPRETERS.keys():
        return "interpreted"
    return "unclear" if executable and not suffixes & set(TABLES) else "list"


def _status(line: CommandLine) -> os.stat_result | None:
    """Status of the file that the first word names; None where it means a program on the PATH."""
    word = line.words[0]
    suffix = os.path.splitext(word)[1].lower()
    has_interpreter = suffix in SHELLS or suffix in INTERPRETERS
    if word == "-" or (not has_interpreter and _goes_by_path(line)):
        return None
    try:
        return os.stat(word)
    except (OSError, ValueError):
        if has_interpreter and not re.search(r"\s", word) and find_program(word) is None:
            later = line.instead(_with_slash(word), *line.words[1:])
            hint = f"check the path; if it will exist when the job starts, type: {later}"
            raise UsageError(f"cannot find the script {word}", hint) from None
        return None


def _goes_by_path(line: CommandLine) -> bool:
    """Whether a bare word is a program on the PATH; a single word of `stoker run` is a file."""
    word = line.words[0]
    return "/" not in word and (line.verb != "run" or len(line.words) > 1) and find_program(word) is not None


def _names(word: str) -> tuple[str, str]:
    return os.path.basename(word), os.path.basename(os.path.realpath(word))


def _head(word: str, *, executable: bool) -> bytes:
    """The first bytes; a file that can be executed but not read is a program."""
    try:
        with open(word, "rb") as file:
            return file.read(_HEAD)
    except OSError as error:
        if executable:
            return _ELF
        raise UsageError(f"cannot read {word}: {error.strerror}", f"type: chmod u+r {shlex.quote(word)}") from error


def _script(line: CommandLine, size: int, kind: Kind) -> Script:
    word, *arguments = line.words
    shell = [] if kind == "script" else [_shell_of(word)]
    if size > LARGEST:
        raise UsageError(
            f"{word} is larger than {size_text(LARGEST)}, the limit for copies of scripts",
            f"to run it without a copy, type: {line.instead(*shell, _with_slash(word), *arguments)}",
        )
    try:
        data = Path(word).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {word}: {error.strerror}", "give a script that can be read") from error
    if not data.strip():
        raise UsageError(f"{word} is empty", "put the commands in it")
    _check_first_line(word, data.partition(b"\n")[0])
    path = os.path.abspath(word)
    return Script(path, data, (*shell, path, *arguments), read_directives(data, os.path.basename(word)))


def _shell_of(word: str) -> str:
    suffixes = [os.path.splitext(name)[1].lower() for name in _names(word)]
    shell = next(SHELLS[suffix] for suffix in suffixes if suffix in SHELLS)
    if find_program(shell) is None:
        raise UsageError(f"{word} needs {shell}, which is not installed", "install it, or add a #! line to the script")
    return shell


def _check_first_line(word: str, first: bytes) -> None:
    """Refuse a `#!` line that the kernel would refuse when the job starts."""
    if first.startswith(_BOM):
        raise UsageError(
            f"{word} starts with a byte order mark", rf"type: sed -i '1s/^\xEF\xBB\xBF//' {shlex.quote(word)}"
        )
    if first.endswith(b"\r"):
        raise UsageError(f"{word} has Windows line ends (CR LF)", rf"type: sed -i 's/\r$//' {shlex.quote(word)}")
    if not first.startswith(b"#!"):
        return
    interpreter = os.fsdecode(first.removeprefix(b"#!").strip().partition(b" ")[0].partition(b"\t")[0])
    if not interpreter or (interpreter.startswith("/") and not os.path.exists(interpreter)):
        what = f"names {interpreter}, which does not exist" if interpreter else "names no interpreter"
        raise UsageError(f"the #! line of {word} {what}", "correct that line")


def _refusal(line: CommandLine, kind: Kind) -> UsageError:
    word, *arguments = line.words
    if kind == "dead program":
        return UsageError(f"{word} is a program, but not executable", f"type: chmod +x {shlex.quote(word)}")
    if kind == "interpreted":
        return UsageError(
            f"{word} is a script without a #! line", f"type: {line.instead(*_interpreted(word), *arguments)}"
        )
    if not os.path.getsize(word):
        return UsageError(f"{word} is empty", "put a script or a job list in it")
    return UsageError(
        f"{word} is executable, but has no #! line",
        f"add one (#!/bin/bash) if it is a script; if it is a job list, type: {line.as_list()}",
    )


def _interpreted(word: str) -> Iterator[str]:
    """The words that run a script without a `#!` line."""
    suffixes = [os.path.splitext(name)[1].lower() for name in _names(word)]
    program, *rest = next(INTERPRETERS[suffix] for suffix in suffixes if suffix in INTERPRETERS).split()
    yield python_here() if program == "python" else program
    yield from (part.replace("{}", word) for part in rest)


def python_here() -> str:
    """The name of the interpreter: some systems have python3 only."""
    return "python3" if not find_program("python") and find_program("python3") else "python"


def _with_slash(word: str) -> str:
    """A path that is not searched for on the PATH."""
    return word if "/" in word else f"./{word}"
