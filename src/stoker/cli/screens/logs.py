"""Print and follow log files."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from stoker.app.control.requests import Control
from stoker.app.service.watch import WHY_DELAY, Watch, why_waits
from stoker.app.views.log import streams_of
from stoker.cli.console import say
from stoker.core.job import Active, Ended, Job, id_text, single
from stoker.core.text import ESCAPE_SEQUENCE, to_json
from stoker.store import queries
from stoker.store.logs import Tail
from stoker.store.schema import AttemptRow

LONGEST_PIECE = 65_536
"""Bytes of a piece that are held back at most; longer ones are shown as they are."""


class Collapser:
    """Removes text that a carriage return overwrites, such as old states of a progress bar."""

    def __init__(self) -> None:
        self._span = b""
        self._returned = False
        """Whether a carriage return came after the piece, so that the next one replaces it."""

    def feed(self, data: bytes) -> bytes:
        """The bytes that no later carriage return can overwrite."""
        shown = bytearray()
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._take(line, shown)
            shown += self._span + b"\n"
            self._span, self._returned = b"", False
        self._take(rest, shown)
        return bytes(shown)

    def end(self) -> bytes:
        """The last line, which was held back."""
        span, self._span = self._span, b""
        return span

    def _take(self, part: bytes, shown: bytearray) -> None:
        """Take a part of a line; only its last piece with text stays."""
        first, *others = part.split(b"\r")
        self._add(first)
        for span in others:
            self._returned = True
            self._add(span)
        if len(self._span) > LONGEST_PIECE:
            shown += self._span
            self._span = b""

    def _add(self, span: bytes) -> None:
        if not span:
            return
        self._span = span if self._returned else self._span + span
        self._returned = False


LONGEST_ESCAPE = 4096
"""Bytes after which an escape sequence that does not end counts as text."""
_CONTROL = rb"\xc2[\x80-\x9f]|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]"
_UNFINISHED = rb"(?:\x1b(?:\[[0-?]*[ -/]*|[]PX^_][^\x07\x1b\n]*\x1b?|[ -/]*)|\xc2)\Z"


class Colours:
    """Lets text and colours through to a terminal, and no other sequence: a log could move the cursor, or worse."""

    def __init__(self) -> None:
        self._rest = b""
        self._coloured = False
        self._unsafe = re.compile(ESCAPE_SEQUENCE.encode() + rb"|" + _CONTROL)
        self._colour = re.compile(rb"\x1b\[[0-9;:]*m")
        self._unfinished = re.compile(_UNFINISHED)

    def feed(self, data: bytes) -> bytes:
        """The bytes for the terminal; a sequence that may go on is held back."""
        data = self._rest + data
        match = self._unfinished.search(data, max(0, len(data) - LONGEST_ESCAPE))
        self._rest = match[0] if match else b""
        return self._unsafe.sub(self._shown, data[: len(data) - len(self._rest)])

    def end(self) -> bytes:
        """The colours of the terminal are restored."""
        return b"\x1b[0m" if self._coloured else b""

    def _shown(self, match: re.Match[bytes]) -> bytes:
        if not self._colour.fullmatch(match[0]):
            return b""
        self._coloured = True
        return match[0]


SCHEMA = "stoker.log/1"
LONGEST = 2**20
"""Bytes of a line in one JSON value; the rest follows in others."""


class LogStream(NamedTuple):
    """The file that bytes come from."""

    run: int
    """The first, second... run of the job."""
    stream: Literal["out", "err"]
    """err only if errors have a file of their own."""


class LogLine(Struct, frozen=True):
    """One line of `stoker logs --jsonl`."""

    schema: str
    id: int
    shown: str
    """The id as users type it: `12`, `12.3`."""
    run: int
    stream: str
    text: str


class Bytes:
    """The bytes as they are; on a terminal text and colours, with old progress bars in their last state."""

    def __init__(self, *, terminal: bool, follows: bool) -> None:
        self._filters: list[Colours | Collapser] = [Colours()] if terminal else []
        if terminal and not follows:  # a terminal draws live progress bars itself
            self._filters.append(Collapser())

    def show(self, source: LogStream, block: bytes) -> None:
        del source
        for stage in self._filters:
            block = stage.feed(block)
        sys.stdout.buffer.write(block)

    def end(self) -> None:
        sys.stdout.buffer.write(b"".join(stage.end() for stage in reversed(self._filters)))
        sys.stdout.buffer.flush()


class JsonLines:
    """A JSON value for each line."""

    def __init__(self, job_id: int, shown: str) -> None:
        self._id = job_id
        self._shown = shown
        self._rests: dict[LogStream, bytes] = {}

    def show(self, source: LogStream, block: bytes) -> None:
        """Show complete lines, and the last ones of earlier runs."""
        for earlier in [stream for stream in self._rests if stream.run < source.run]:
            self._write(earlier, self._rests.pop(earlier))
        *lines, rest = (self._rests.pop(source, b"") + block).split(b"\n")
        for line in lines:
            self._write(source, line)
        while len(rest) > LONGEST:
            self._write(source, rest[:LONGEST])
            rest = rest[LONGEST:]
        if rest:
            self._rests[source] = rest

    def end(self) -> None:
        for source in list(self._rests):
            self._write(source, self._rests.pop(source))
        sys.stdout.buffer.flush()

    def _write(self, source: LogStream, line: bytes) -> None:
        text = line.decode(errors="backslashreplace")
        value = LogLine(SCHEMA, self._id, self._shown, source.run, source.stream, text)
        sys.stdout.buffer.write(to_json(value) + b"\n")


class Prefixed:
    """Whole lines with the job before each, for the output of several jobs at once."""

    def __init__(self, prefix: str, *, terminal: bool) -> None:
        self._prefix = prefix.encode(errors="replace")
        self._terminal = terminal
        self._streams: dict[LogStream, tuple[Colours | None, Collapser]] = {}
        self._rests: dict[LogStream, bytes] = {}

    def show(self, source: LogStream, block: bytes) -> None:
        """Show complete lines; a progress bar is one line, in its last state."""
        if source not in self._streams:
            self._streams[source] = Colours() if self._terminal else None, Collapser()
        colours, collapser = self._streams[source]
        text = collapser.feed(colours.feed(block) if colours else block)
        *lines, self._rests[source] = (self._rests.get(source, b"") + text).split(b"\n")
        self._write(lines)

    def end(self) -> None:
        for source, (_, collapser) in self._streams.items():
            if rest := self._rests.pop(source, b"") + collapser.end():
                self._write([rest])
        self._streams = {}
        sys.stdout.buffer.flush()

    def _write(self, lines: Sequence[bytes]) -> None:
        reset = b"\x1b[0m" if self._terminal else b""  # a colour must not reach into the lines of other jobs
        for line in lines:
            after = reset if b"\x1b" in line else b""
            sys.stdout.buffer.write(self._prefix + line + after + b"\n")


Output = Bytes | JsonLines | Prefixed


def output_for(job_id: int, shown: str, *, as_json: bool, follows: bool, prefix: str = "") -> Output:
    """The right form: JSON, lines with a prefix, safe for a terminal, or raw."""
    if as_json:
        return JsonLines(job_id, shown)
    if prefix:
        return Prefixed(prefix, terminal=sys.stdout.isatty())
    return Bytes(terminal=sys.stdout.isatty(), follows=follows)


WHY_INTERVAL = 2.0
"""Seconds between two messages why a job waits."""


def files_of(run: AttemptRow, number: int) -> dict[LogStream, str]:
    return {LogStream(number, stream): path for stream, path in streams_of(run).items()}


class Follower:
    """Shows the output of one job until it is over."""

    def __init__(self, control: Control, job: Job, lines: int | None, output: Output) -> None:
        self.id = job.id
        self._shown = id_text(job)
        self._control = control
        self._lines = lines
        self._output = output
        self._tails: dict[LogStream, Tail] = {}
        self._run = 0
        """The run that is shown, from 1."""
        self._said = ""
        self._why_at = time.monotonic() + WHY_DELAY

    def catch_up(self, job: Job) -> bool:
        """Show what the job has written since the last call; whether there was any. The last call closes its files."""
        came = self._catch_up(self._control.store.runs(self.id)) if job.attempts else False
        if isinstance(job.state, Ended):
            self._close()
            self._output.end()
        return came

    def say_why(self, job: Job) -> None:
        """Say from time to time what a job waits for."""
        if not isinstance(job.state, Active | Ended) and time.monotonic() >= self._why_at:
            self._why_at = time.monotonic() + WHY_INTERVAL
            self._say(why_waits(self._control, job))

    def _catch_up(self, runs: Sequence[AttemptRow]) -> bool:
        """Show new output of the runs; whether there was any."""
        self._run = self._run or max(1, len(runs))
        came = self._drain()
        while self._run <= len(runs):
            if not self._tails:
                files = files_of(runs[self._run - 1], self._run)
                self._tails = {source: Tail(path, self._lines) for source, path in files.items()}
                self._lines = None
            came = self._drain() or came
            if self._run == len(runs):
                break
            self._close()
            self._run += 1
            self._say(f"{self._shown}: run {self._run}")
        return came

    def _drain(self) -> bool:
        came = False
        for source, tail in self._tails.items():
            for block in tail.read():
                self._output.show(source, block)
                came = True
        sys.stdout.buffer.flush()
        return came

    def _close(self) -> None:
        for tail in self._tails.values():
            tail.close()
        self._tails = {}

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            say(text)


MOST_FOLLOWED = 1000
"""Jobs that are followed at the same time: each that runs has its files open."""


def follow(control: Control, followers: Sequence[Follower]) -> list[Job]:
    """Show the output of all jobs until they are over, and return the jobs."""
    watch = Watch(control, [follower.id for follower in followers], say)
    ended: dict[int, Job] = {}
    while len(ended) < len(followers):
        watch.look()
        # The jobs are read before their files, so that nothing is missed.
        waited = [follower for follower in followers if follower.id not in ended]
        ids = [follower.id for follower in waited]
        jobs = {job.id: job for job in single(queries.jobs_of(control.store, ids))}
        for follower in waited:
            if follower.catch_up(jobs[follower.id]):
                watch.hurry()
        ended |= {job_id: job for job_id, job in jobs.items() if isinstance(job.state, Ended)}
        if not any(isinstance(job.state, Active | Ended) for job in jobs.values()):
            waited[0].say_why(jobs[waited[0].id])
        if len(ended) < len(followers):
            watch.pause()
    return [ended[follower.id] for follower in followers]
