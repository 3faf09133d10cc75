"""Read job lists: lines of shell commands, JSON lines, TOML or CSV."""

from __future__ import annotations

import codecs
import os
from array import array as numbers
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, overload

import msgspec
from msgspec import Struct

from stoker.app.jobs.context import find_program
from stoker.app.jobs.options import BY_NAME, NUL_BYTE, JobOptions, invalid_text
from stoker.core.errors import UsageError, did_you_mean
from stoker.core.spec import PLAIN_SHELL, Command, NewJob, parse_array, shell_of

if TYPE_CHECKING:
    from stoker.app.jobs.task_list import BadRow, Record, Sheet, Task


Items = TypeVar("Items")
NO_SHELLS = ("nologin", "false")
"""Names of programs that accounts have as SHELL to refuse logins."""

PLAIN = JobOptions()
"""Options of a job that has none of its own. Most jobs share this object, so `is` finds them."""
COMMAND_LINE = "command line"
_KEY_PARTS = 100
_LONG_KEY = rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_KEY_PARTS}}}"""


class ParsedJob(Struct, frozen=True, gc=False):
    """One job of a list, and its place there."""

    command: Command
    source: str
    """The file, or the place in it if that is no line."""
    options: JobOptions = PLAIN
    task: int | None = None
    """Index of a task of an array."""
    array: int = 0
    """Number of the array of the task, from 1 in the list."""
    line: int = 0

    @property
    def where(self) -> str:
        return f"{self.source} line {self.line}" if self.line else self.source


class RejectedLine(Struct, frozen=True):
    """A line that cannot be a job, and why."""

    where: str
    sentence: str


class PlainLines(Sequence[ParsedJob]):
    """Lines of a file, which have no options. Of a million, only their texts are kept; jobs are made of them again."""

    def __init__(self, source: str, shell: str) -> None:
        self._source = source
        self._shell = shell
        self._texts: list[bytes] = []
        self._lines = numbers("L")

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[ParsedJob]:
        return map(self._made, self._texts, self._lines)

    @overload
    def __getitem__(self, at: int) -> ParsedJob: ...
    @overload
    def __getitem__(self, at: slice) -> list[ParsedJob]: ...
    def __getitem__(self, at: int | slice) -> ParsedJob | list[ParsedJob]:
        if isinstance(at, slice):
            return list(map(self._made, self._texts[at], self._lines[at]))
        return self._made(self._texts[at], self._lines[at])

    def longest(self) -> ParsedJob:
        """The line with the most bytes."""
        return self[max(range(len(self)), key=lambda at: len(self._texts[at]))]

    def _made(self, text: bytes, line: int) -> ParsedJob:
        return ParsedJob(Command((os.fsdecode(text),), self._shell), self._source, line=line)

    def holds(self, job: ParsedJob) -> bool:
        """Take a job that is such a line of the same file."""
        command = job.command
        if job.options is not PLAIN or job.task is not None or not job.line:
            return False
        if (job.source, command.shell) != (self._source, self._shell):
            return False
        self._texts.append(os.fsencode(command.words[0]))
        self._lines.append(job.line)
        return True


def usable(items: Iterable[ParsedJob | RejectedLine]) -> Sequence[ParsedJob]:
    """All jobs of a list, in as little memory as they allow; a line that cannot be a job is an error."""
    plain, others = PlainLines("", ""), list[ParsedJob]()
    for item in items:
        if isinstance(item, RejectedLine):
            raise UsageError(f"{item.where}: {item.sentence}", "nothing was submitted; fix or remove that line")
        if not plain and not others and item.command.shell:
            plain = PlainLines(item.source, item.command.shell)
        if others or not plain.holds(item):
            others = others or list(plain)
            others.append(item)
    return others or plain


def usable_shell(environment: Mapping[str, str], say: Callable[[str], None]) -> str:
    """The shell that reads the user's command lines; /bin/sh where SHELL, as of a service account, is none."""
    shell = shell_of(environment)
    if os.path.basename(shell) not in NO_SHELLS and find_program(shell):
        return shell
    say(f"warning: SHELL is {shell}, which cannot run commands; using {PLAIN_SHELL}")
    return PLAIN_SHELL


class JobLines:
    """Splits a stream of bytes into jobs: one per line; a line that ends in a backslash goes on."""

    def __init__(self, name: str, shell: str) -> None:
        self._name = name
        self._shell = shell
        self._rest = b""
        self._gathered: list[bytes] = []
        self._line = 0
        self.tasks: Sequence[int] = ()
        """Indices of the array that every line is; empty where a line is one job."""

    def feed(self, data: bytes) -> Iterator[ParsedJob | RejectedLine]:
        """The jobs that are complete now."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield from self._take(line)

    def end(self) -> Iterator[ParsedJob | RejectedLine]:
        """The job of a last line that has no newline."""
        if self._rest:
            yield from self._take(self._rest)
        if self._gathered:
            yield from self._job()

    def _take(self, line: bytes) -> Iterator[ParsedJob | RejectedLine]:
        self._line += 1
        stripped = line.rstrip()
        if not self._gathered and (not stripped or stripped.lstrip().startswith(b"#")):
            return
        whole = line.removesuffix(b"\r")
        if (len(whole) - len(whole.rstrip(b"\\"))) % 2:  # it ends in a backslash that is not escaped
            self._gathered.append(whole)
            return
        self._gathered.append(stripped)
        yield from self._job()

    def _job(self) -> Iterator[ParsedJob | RejectedLine]:
        text, self._gathered = b"\n".join(self._gathered), []
        if b"\0" in text:
            yield RejectedLine(f"{self._name} line {self._line}", NUL_BYTE)
        else:
            job = ParsedJob(Command((os.fsdecode(text),), self._shell), self._name, line=self._line)
            yield from as_tasks(job, self.tasks, self._line) if self.tasks else (job,)


def as_tasks(job: ParsedJob, tasks: Sequence[int], array: int) -> Iterator[ParsedJob]:
    return (ParsedJob(job.command, job.source, job.options, task, array, job.line) for task in tasks)


def spread(items: Sequence[ParsedJob | RejectedLine], batch: JobOptions) -> Sequence[ParsedJob | RejectedLine]:
    """The list with every array replaced by its tasks."""
    if batch.array is None and all(item.options.array is None for item in items if isinstance(item, ParsedJob)):
        return items
    spread_items: list[ParsedJob | RejectedLine] = []
    for array, item in enumerate(items, 1):
        text = None if isinstance(item, RejectedLine) else item.options.array or batch.array
        if isinstance(item, RejectedLine) or text is None:
            spread_items.append(item)
        else:
            spread_items += as_tasks(item, parse_array(text).indices, array)
    return spread_items


@overload
def read_list(path: Path, shell: str) -> list[ParsedJob | RejectedLine]: ...
@overload
def read_list(path: Path, shell: str, gathered: Callable[[Iterator[ParsedJob | RejectedLine]], Items]) -> Items: ...
def read_list(path: Path, shell: str, gathered: Callable[[Iterator[ParsedJob | RejectedLine]], Any] = list) -> Any:
    """All jobs of a file; its suffix says the format."""
    try:
        with path.open("rb") as file:
            return gathered(_jobs_of(file, path, shell))
    except OSError as error:
        hint = "give a file, - for stdin, or put the command after --"
        raise UsageError(f"cannot read the job list {path}: {error.strerror}", hint) from error
    except RecursionError:
        raise UsageError(f"{path.name} has values inside values too deep to read", "no option needs this") from None


def _jobs_of(file: BinaryIO, path: Path, shell: str) -> Iterator[ParsedJob | RejectedLine]:
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return _json_jobs(file.read(), path.name, shell)
        case ".toml":
            return _toml_jobs(file.read(), path.name, shell)
        case ".csv":
            return _csv_jobs(file.read(), path.name, shell)
        case _:
            return read_lines(file, path.name, shell)


def read_lines(file: BinaryIO, name: str, shell: str) -> Iterator[ParsedJob | RejectedLine]:
    """The jobs of a file of lines, which is read in blocks: it may be long."""
    lines = JobLines(name, shell)
    yield from lines.feed(file.read(_READ_SIZE).removeprefix(codecs.BOM_UTF8))
    while data := file.read(_READ_SIZE):
        yield from lines.feed(data)
    yield from lines.end()


def _json_jobs(data: bytes, name: str, shell: str) -> Iterator[ParsedJob]:
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            where = f"{name} line {number}"
            try:
                table = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UsageError(f"{where} is not JSON: {error}", 'write {"command": "..."} on each line') from None
            yield _job_of(table, where, shell)


def _toml_jobs(data: bytes, name: str, shell: str) -> Iterator[ParsedJob]:
    try:
        document = read_toml(data)
    except ValueError as error:
        raise UsageError(f"{name} is not TOML: {error}", 'write [[job]] tables with command = "..."') from None
    tables = document.get("job")
    if not isinstance(tables, list) or len(document) != 1:
        raise UsageError(f"{name} has no [[job]] tables, or contains something else", "write one [[job]] table per job")
    for number, table in enumerate(tables, 1):
        yield _job_of(table, f"{name} job {number}", shell)


def read_toml(data: bytes) -> dict[str, Any]:
    """The tables of a file; ValueError where it has none. A key of thousands of parts would take minutes."""
    import re
    import tomllib

    text = data.decode()
    if re.search(_LONG_KEY, text):
        raise ValueError(f"a key has more than {_KEY_PARTS} parts")
    return tomllib.loads(text)


def _csv_jobs(data: bytes, name: str, shell: str) -> Iterator[ParsedJob | RejectedLine]:
    """A column `command` and columns of options; without that column, the columns of priority_scheduler."""
    from stoker.app.jobs.task_list import COLUMNS, column_name, read_sheet, refuse_doubled, tasks_of

    sheet = read_sheet(data, name)
    if "command" in sheet.columns:
        columns = {column: "" for column in sheet.columns if column}
        refuse_doubled(sheet, columns, name)
        _refuse_unknown({column: "" for column in columns if column != "command"}, name)
        return (_row_job(sheet, record, f"{name} line {record.line}", shell) for record in sheet.records)
    if not {column_name(column) for column in COLUMNS} & set(sheet.columns):
        hint = (
            f"name the columns in its first row: command,gpus,time,... or, for priority_scheduler: {','.join(COLUMNS)}"
        )
        raise UsageError(f"{name} has no column command", hint)
    return (_task_job(row, place, name) for place, row in enumerate(tasks_of(sheet, name)))


def _row_job(sheet: Sheet, record: Record, where: str, shell: str) -> ParsedJob | RejectedLine:
    from stoker.app.jobs.task_list import cells_of, options_of

    try:
        cells = cells_of(sheet, record)
        command = _command(cells.pop("command"), where, shell)
        cells.pop("", None)
        return ParsedJob(command, where, options_of(cells))
    except UsageError as error:
        return RejectedLine(where, error.message.removeprefix(f"{where}: "))


def _task_job(row: Task | BadRow, place: int, name: str) -> ParsedJob | RejectedLine:
    """Its id is its place in the list, so that the same list is the same work."""
    from stoker.app.jobs.task_list import BadRow

    where = f"{name} line {row.line}"
    if isinstance(row, BadRow):
        return RejectedLine(where, row.sentence)
    options = msgspec.structs.replace(row.options, chdir=row.directory or None, priority=-row.priority)
    return ParsedJob(Command(row.words(row.epochs, place)), where, options)


def _job_of(table: Any, where: str, shell: str) -> ParsedJob:
    if not isinstance(table, dict) or "command" not in table:
        raise UsageError(f"{where} has no command", 'give it one: "command": "python3 train.py"')
    try:
        command = msgspec.convert(table["command"], str | list[str])
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}", "give it a command as text, or a list of words") from None
    options = read_options({key: value for key, value in table.items() if key != "command"}, where)
    return ParsedJob(_command(command, where, shell), where, options)


def read_options(table: dict[str, Any], where: str) -> JobOptions:
    """Job options of a file or a program, which may have numbers and lists where the command line has text."""
    _refuse_unknown(table, where)
    try:
        return msgspec.convert({key: _as_typed(key, value) for key, value in table.items()}, JobOptions)
    except msgspec.ValidationError as error:
        hint = "see stoker run --help for the values of each option"
        raise UsageError(f"{where}: {invalid_text(error)}", hint) from None


def _refuse_unknown(table: dict[str, Any], where: str) -> None:
    for key in table:
        if key not in BY_NAME:
            hint = did_you_mean(key, ["command", *BY_NAME], f"known: {', '.join(BY_NAME)}")
            raise UsageError(f"{where}: unknown key {key!r}", hint)


def _as_typed(key: str, value: Any) -> Any:
    """The value as the command line would have it."""
    option = BY_NAME[key]
    if option.kind == "table" and isinstance(value, dict):
        return {name: _text(entry) for name, entry in value.items()}
    if option.is_list and isinstance(value, list) and not any(isinstance(entry, dict | list) for entry in value):
        return ",".join(map(_text, value))
    return _text(value) if option.takes_number and isinstance(value, int) else value


def _text(value: Any) -> Any:
    """A number as text; a list or a table stays, and is refused."""
    if isinstance(value, dict | list):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value)


def command_of(words: Sequence[str], shell: str) -> Command:
    """A command as typed: several words are executed, one word with blanks is a line for the shell."""
    if not words[0].strip():
        raise UsageError("the command is empty", "write it after --")
    single = len(words) == 1 and any(blank in words[0] for blank in " \t\n")
    return Command(tuple(words), shell if single else "")


def _command(words: str | list[str], where: str, shell: str) -> Command:
    parts = [words] if isinstance(words, str) else words
    if not parts or not parts[0].strip() or any("\0" in part for part in parts):
        raise UsageError(f"{where}: the command is empty or contains a NUL byte", "give it a command")
    return Command((words,), shell) if isinstance(words, str) else Command(tuple(words))


_READ_SIZE = 65_536
Make = Callable[[ParsedJob], NewJob]
Refuse = Callable[[RejectedLine], None]


class ListSource:
    """Jobs that are known from the start."""

    def __init__(self, items: Sequence[ParsedJob | RejectedLine], make: Make, refuse: Refuse) -> None:
        self._items = iter(items)
        self._make = make
        self._refuse = refuse
        self.exhausted = not items

    def fileno(self) -> int:
        """None: the jobs are in memory."""
        return -1

    def take(self, limit: int) -> Sequence[NewJob]:
        items = list(islice(self._items, limit))
        self.exhausted = len(items) < limit
        return made(items, self._make, self._refuse)


class StreamSource:
    """Jobs that arrive as lines on a descriptor."""

    def __init__(self, descriptor: int, lines: JobLines, make: Make, refuse: Refuse) -> None:
        self._descriptor = descriptor
        self._lines = lines
        self._make = make
        self._refuse = refuse
        self._items: deque[ParsedJob | RejectedLine] = deque()
        """JobLines that were read and not taken."""
        self._ended = False
        self.exhausted = False

    def fileno(self) -> int:
        """None while there are lines that were read."""
        return -1 if self._items else self._descriptor

    def take(self, limit: int) -> Sequence[NewJob]:
        """The jobs of one read, or the rest of the one before."""
        if not self._items:
            data = os.read(self._descriptor, _READ_SIZE)
            self._ended = not data
            self._items.extend(self._lines.feed(data) if data else self._lines.end())
        items = [self._items.popleft() for _ in range(min(limit, len(self._items)))]
        self.exhausted = self._ended and not self._items
        return made(items, self._make, self._refuse)


def made(items: Iterable[ParsedJob | RejectedLine], make: Make, refuse: Refuse) -> list[NewJob]:
    """The jobs of the usable items; `refuse` gets the others."""
    jobs = []
    for item in items:
        if isinstance(item, RejectedLine):
            refuse(item)
        else:
            jobs.append(make(item))
    return jobs
