"""Which file or module a command starts, and where its words name files of a tree."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Literal, NamedTuple

from stoker.core.spec import Command

SHELLS = frozenset(("sh", "bash", "zsh", "ksh", "dash", "fish"))
_LAUNCHERS = frozenset(
    (
        *("torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun", "composer", "ray"),
        *("uv", "poetry", "pipenv", "conda", "mamba", "micromamba", "pixi", "hatch", "rye", "pdm"),
        *("jupyter", "papermill", "ipython", "pytest", "coverage", "Rscript", "julia", "perl", "ruby", "lua", "node"),
        *("env", "nice", "ionice", "nohup", "time", "timeout", "stdbuf", "taskset", "numactl", "setsid", "exec"),
        *("command", "unbuffer", "xvfb-run", "catchsegv", "gdb", "py-spy", "nsys", "ncu", "kernprof"),
    )
)
"""Programs that start a file or module that one of their arguments names."""
_PYTHON = re.compile(r"(?s:.*/)?(?:python|pypy)[\d.]*t?")
_SUFFIXES = re.compile(r"(?s).+\.(?:py|pyw|sh|bash|zsh|ksh|R|r|jl|pl|rb|lua|js|mjs|ts|ipynb)")
_CONFIGURATION = frozenset(
    (
        *(".yaml", ".yml", ".toml", ".json", ".jsonc", ".json5", ".jsonnet", ".ini", ".cfg", ".conf", ".gin", ".xml"),
        *(".sql", ".tmpl", ".template", ".j2", ".jinja", ".jinja2", ".ui", ".lock", ".bats"),
    )
)
"""Suffixes of files that a command reads; a command may write a file with another suffix."""
_WRITTEN = re.compile(
    r"(?i)(?:.*[-_./])?(?:out|save|logs?(?![a-z])|result|dest|writ|dump|report|export|pred|metric|score|summar|hist|stat"
    r"|append|junit|record).*|-+(?:o|to)"
)
"""Names of options, and of files, which tell that a program writes them. A job must not write into its snapshot."""
_REDIRECTED = re.compile(r"(?s).*>[|&]?[ \t]*")
_SHELL_SUFFIXES = re.compile(r"(?s).+\.(?:sh|bash|zsh|ksh)")
"""Files that only a shell runs, which looks for others beside them."""
_ASSIGNMENT = re.compile(r"(?a)[A-Za-z_]\w*=")
_VALUED = frozenset(("-W", "-X", "--check-hash-based-pycs", "-o", "-O"))
"""Options of Python and of shells with a value in the next word."""
_MOST_WORDS = 40
_FILE_IN_LINE = re.compile(r"(?<![^\s=;&|()<>])([\w@%+:,./-]+)(?![^\s;&|()<>])")


class StartedCode(NamedTuple):
    """The file, module or text that a command starts."""

    kind: Literal["file", "module", "alone", "call", "text", ""]
    """A module is alone if its Python looks into no snapshot. A call is a Python function, by its full name.

    A text is code in the command line, as after `-c`. Empty if it starts nothing that could be frozen.
    """
    name: str = ""


NOTHING = StartedCode("")
_TEST_RUNNERS = frozenset(("pytest", "py.test", "unittest", "nose2"))
"""Programs that look for modules below the current directory, and refuse one that comes from elsewhere."""
FIRST_WORDS = 3
FUNCTION_WORD = 4
"""The word of a Python call that has the module and the name of the function."""


def started_by(command: Command) -> StartedCode:
    """The start of a command, as far as its words tell."""
    if command.call:
        return StartedCode("call", command.words[FUNCTION_WORD])
    # Lines of a list mostly begin alike. What the first words tell holds whatever follows.
    started = _started_by_first(tuple(_words(command, FIRST_WORDS)))
    return started if started.name else _started(_words(command, _MOST_WORDS))


def _words(command: Command, most: int) -> Sequence[str]:
    if not command.shell:
        return command.words[:most]
    return [word.strip("'\";()") or word for word in command.words[0].split(None, most)[:most]]


@lru_cache(maxsize=256)
def _started_by_first(words: tuple[str, ...]) -> StartedCode:
    return _started(words)


def _started(words: Sequence[str]) -> StartedCode:
    position = 0
    while position < len(words) and (_ASSIGNMENT.match(words[position]) or words[position] in ("cd", "&&", ";")):
        position += 2 if words[position] == "cd" else 1
    if position >= len(words):
        return NOTHING
    program = os.path.basename(words[position])
    if _is_runner(program):
        return _argument_started(program, iter(words[position + 1 :]))
    return StartedCode("file", words[position]) if "/" in words[position] else NOTHING


def _argument_started(runner: str, words: Iterator[str]) -> StartedCode:
    """The start of what an argument of a program names; the argument may be another such program."""
    module: Literal["module", "alone"] = "module"
    for word in words:
        is_python = _PYTHON.fullmatch(runner) is not None
        if not is_python and _is_runner(os.path.basename(word)):
            runner = os.path.basename(word)
        elif re.fullmatch("-[a-zA-Z]*m" if is_python else "-m", word):
            name = next(words, "")
            if name not in _TEST_RUNNERS:
                return StartedCode(module, name)
            if name == "unittest":
                return NOTHING
            runner = name
        elif re.fullmatch("-[a-zA-Z]*c", word) and (is_python or runner in SHELLS):
            return StartedCode("text", next(words, ""))
        elif word in _VALUED:
            next(words, "")
        elif is_python and re.fullmatch("-[a-zA-Z]*[EIS][a-zA-Z]*", word):
            module = "alone"
        elif not word.startswith("-") and (_SUFFIXES.fullmatch(word) or is_python or runner in SHELLS):
            return StartedCode("file", word)
    return NOTHING


def _is_runner(program: str) -> bool:
    return program in SHELLS or program in _LAUNCHERS or _PYTHON.fullmatch(program) is not None


def with_files(command: Command, frozen: Callable[[str], str]) -> Command:
    """The command with those words replaced that name a frozen file, also after `--option=`.

    `frozen` gives the path in the snapshot, or an empty text. The words of shell scripts stay, and of files that the
    command may write. In a line for a shell a word with quotes or variables stays, and all words stay after `cd`,
    since they may be relative to another directory.
    """
    if not command.shell:
        words = command.words
        rest = (_word(last, word, frozen) for last, word in pairwise(words))
        return Command((frozen(words[0]) or words[0], *rest))
    line = command.words[0]
    if has_other_directory(line):
        return command
    return Command((_FILE_IN_LINE.sub(partial(_in_line, frozen), line),), command.shell)


def has_other_directory(line: str) -> bool:
    """Whether words of a line may be relative to another directory than that of the job."""
    return re.search(r"(?<![\w./-])(?:cd|pushd)(?![\w./-])", line) is not None


def _word(last: str, word: str, frozen: Callable[[str], str]) -> str:
    """A word, which names a file or is an option with one."""
    option, equals, value = word.partition("=")
    if not option.startswith("-"):
        return _read("" if "=" in last else last, word, frozen) or word
    path = _read(option, value, frozen) if equals else ""
    return f"{option}={path}" if path else word


def _in_line(frozen: Callable[[str], str], match: re.Match[str]) -> str:
    before = match.string[: match.start()]
    if _REDIRECTED.fullmatch(before):
        return match[1]
    words = before.split()
    last = words[-1].rstrip("=") if words else ""
    return _quoted(_read("" if "=" in last else last, match[1], frozen)) or match[1]


def _read(last: str, word: str, frozen: Callable[[str], str]) -> str:
    """The frozen file that a word names, if the word before and its own name do not tell that it is written."""
    path = "" if _SHELL_SUFFIXES.fullmatch(word) else frozen(word)
    if not path or _SUFFIXES.fullmatch(word):
        return path
    suffix = os.path.splitext(word)[1].lower()
    if suffix not in _CONFIGURATION:  # whether it is read or written only the program knows
        return path if (not suffix or word.startswith("./")) and os.access(path, os.X_OK) else ""
    if last.startswith("-"):
        return "" if _WRITTEN.fullmatch(last) else path
    return "" if suffix in (".json", ".xml") and _WRITTEN.fullmatch(word) else path


def words_of(command: Command) -> Sequence[str]:
    """All words of a command; of a line for a shell those that can be read without the shell."""
    if command.call:
        return ()
    return _FILE_IN_LINE.findall(command.words[0]) if command.shell else command.words


def is_written(name: str) -> bool:
    """Whether the name of an option or a file tells that a program writes there."""
    return _WRITTEN.fullmatch(name) is not None


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path) if path else ""
