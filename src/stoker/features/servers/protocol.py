"""Questions to the Stoker of another server: one line of JSON on its standard input, and data behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker.app.jobs.job_files import ParsedJob
from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.script import Script
from stoker.app.jobs.travel import Parcel
from stoker.cli.screens.dry_run import SubmitPlan
from stoker.core.errors import StokerError, UsageError
from stoker.features.servers.connection import CALL_SECONDS, Answer, ConnectionLost, Unreachable, call
from stoker.features.servers.settings import SshServer

PROTOCOL = 1
"""Both sides must have the same."""
COMMAND = ("servers", "answer", "--json")
Reply = TypeVar("Reply")
_KILLED = 128
"""Exit codes from here on are those of processes that were killed, and of ssh."""


class AboutQuestion(Struct, frozen=True, tag="about"):
    """Which queue is there?"""


class AboutReply(Struct, frozen=True):
    """The queue of a server."""

    queue: str
    """A name that no other queue has."""
    version: str
    host: str
    user: str
    home: str
    now: float


class SubmitQuestion(Struct, frozen=True, tag="submit"):
    """Put these jobs into the queue, or tell where they would start."""

    key: str
    cwd: str
    """A path below the home begins with `~/`, as all paths here."""
    options: JobOptions
    items: list[ParsedJob]
    label: str
    needs: list[str]
    """Paths that must exist."""
    hold: bool = False
    dry_run: bool = False
    script: Script | None = None
    code: Parcel | None = None
    sent: list[tuple[str, int]] = []
    """Parts of the code that follow, each with its length in bytes, compressed."""
    simulated: str | None = None
    """The value of `--sim`."""


def moved_script(script: Script, place: Callable[[str], str]) -> Script:
    """The script with its path as it is called elsewhere."""
    return replace(script, path=place(script.path), words=_moved(script.words, script, place))


def moved_item(item: ParsedJob, script: Script | None, place: Callable[[str], str]) -> ParsedJob:
    """A job whose command has the path of the script as it is called elsewhere."""
    if script is None:
        return item
    return replace(item, command=replace(item.command, words=_moved(item.command.words, script, place)))


def _moved(words: tuple[str, ...], script: Script, place: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(place(word) if word == script.path else word for word in words)


class StartOffer(Struct, frozen=True):
    """Nothing was submitted: the jobs as they would start now."""

    now: float
    """The clock of the server."""
    load: float
    """Jobs that are not over, for each GPU."""
    has_key: bool
    """Whether the jobs were submitted there before."""
    plan: SubmitPlan


class Lacking(Struct, frozen=True):
    """Nothing was submitted: these parts of the code must be sent first."""

    lacking: list[str]


class FetchQuestion(Struct, frozen=True, tag="fetch"):
    """Send files of a job, as a compressed tar."""

    job: str
    files: list[str]
    """Relative to the directory of the job; none for its logs."""
    simulated: str | None = None


Question = AboutQuestion | SubmitQuestion | FetchQuestion


class Envelope(Struct, frozen=True):
    """The line of JSON."""

    protocol: int
    question: Question


class _Failure(Struct, frozen=True):
    code: int
    message: str
    hint: str


class _Failed(Struct, frozen=True):
    error: _Failure


class RefusedThere(StokerError):
    """The server refused, as this machine would have."""

    def __init__(self, message: str, hint: str, exit_code: int) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


def ask(
    server: SshServer, question: Question, reply: type[Reply], data: bytes = b"", seconds: float = CALL_SECONDS
) -> Reply:
    """The reply of a server; raises Unreachable, ConnectionLost, or the error of the server."""
    return decoded(server, call(server, COMMAND, encoded(question) + data, seconds), reply)


def encoded(question: Question) -> bytes:
    """The line of a question."""
    try:
        return msgspec.json.encode(Envelope(PROTOCOL, question)) + b"\n"
    except UnicodeEncodeError:
        raise UsageError("a word of the command is not UTF-8, and cannot travel", "submit it on that server") from None


def decoded(server: SshServer, answer: Answer, reply: type[Reply]) -> Reply:
    """The reply in an answer; raises the error that it is otherwise."""
    try:
        failed = msgspec.json.decode(answer.out, type=_Failed).error
    except msgspec.MsgspecError:
        try:
            return msgspec.json.decode(answer.out, type=reply)
        except msgspec.MsgspecError:
            raise _unreadable(server, answer) from None
    if "no such command: " in failed.message:
        raise Unreachable(f"the stoker on {server.name} is too old for this", "install the same version there as here")
    raise RefusedThere(f"{server.name}: {failed.message}", failed.hint, failed.code)


def refused(server: SshServer, out: bytes) -> StokerError:
    """The error that a server printed in place of what was asked for."""
    try:
        decoded(server, Answer(1, out, ""), type(None))
    except StokerError as error:
        return error
    return ConnectionLost(f"the reply of {server.name} was cut", "try again")


def _unreadable(server: SshServer, answer: Answer) -> StokerError:
    """The error if the reply is none: it was cut, or the server has another Stoker."""
    if answer.code >= _KILLED and not answer.out.endswith(b"\n"):
        return ConnectionLost(f"the reply of {server.name} was cut", "try again")
    last = answer.err.strip().splitlines()[-1] if answer.err.strip() else f"exit code {answer.code}"
    return Unreachable(f"stoker on {server.name} does not answer as expected: {last}", "install the same version there")
