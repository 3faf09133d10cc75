"""How the output of a job is shown: as it is, with progress bars as they ended, or as lines of JSON."""

from __future__ import annotations

import sys
from typing import Literal, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from stoker.cli.output.collapsing import Collapser

SCHEMA = "stoker.log/1"
LONGEST = 2**20
"""Bytes of a line that become one value at most; the rest of it follows in others."""


class Source(NamedTuple):
    """Where bytes come from."""

    run: int
    """The first, second... run of the job."""
    stream: Literal["out", "err"]
    """err only where errors have a file of their own."""


class LogLine(Struct, frozen=True):
    """One line of `stoker logs --jsonl`."""

    schema: str
    id: int
    shown: str
    """The id as people type it: `12`, `12.3`."""
    run: int
    stream: str
    text: str


class Output(Protocol):
    """Takes what a job wrote."""

    def show(self, source: Source, block: bytes) -> None:
        """Show some bytes, of which a line may go on in the next ones."""

    def end(self) -> None:
        """Nothing more comes."""


class Raw:
    """The bytes as they are."""

    def show(self, source: Source, block: bytes) -> None:
        """Show some bytes."""
        del source
        sys.stdout.buffer.write(block)

    def end(self) -> None:
        """Nothing was held back."""
        sys.stdout.buffer.flush()


class Collapsed:
    """Progress bars as they stood in the end."""

    def __init__(self) -> None:
        self._collapser = Collapser()

    def show(self, source: Source, block: bytes) -> None:
        """Show what no later byte can change."""
        del source
        sys.stdout.buffer.write(self._collapser.feed(block))

    def end(self) -> None:
        """Show the last line."""
        sys.stdout.buffer.write(self._collapser.end())
        sys.stdout.buffer.flush()


class JsonLines:
    """A value for each line."""

    def __init__(self, job_id: int, shown: str) -> None:
        self._id = job_id
        self._shown = shown
        self._rests: dict[Source, bytes] = {}

    def show(self, source: Source, block: bytes) -> None:
        """Show the lines that are complete, and those of the runs before this one."""
        for earlier in [known for known in self._rests if known.run < source.run]:
            self._finish(earlier)
        *lines, rest = (self._rests.pop(source, b"") + block).split(b"\n")
        for line in lines:
            self._write(source, line)
        while len(rest) > LONGEST:
            self._write(source, rest[:LONGEST])
            rest = rest[LONGEST:]
        if rest:
            self._rests[source] = rest

    def end(self) -> None:
        """Show what had no end."""
        for source in list(self._rests):
            self._finish(source)
        sys.stdout.buffer.flush()

    def _finish(self, source: Source) -> None:
        self._write(source, self._rests.pop(source))

    def _write(self, source: Source, line: bytes) -> None:
        text = line.decode(errors="backslashreplace")
        value = LogLine(SCHEMA, self._id, self._shown, source.run, source.stream, text)
        sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")


def output_for(job_id: int, shown: str, *, as_json: bool, follows: bool) -> Output:
    """What suits the reader: a terminal draws progress bars itself while they come."""
    if as_json:
        return JsonLines(job_id, shown)
    return Collapsed() if sys.stdout.isatty() and not follows else Raw()
