"""The lines of a worker's journal stay the same: a new engine adopts workers that an earlier program started."""

from __future__ import annotations

import pytest

from stoker.runner.journal import AttemptExited, AttemptReturned, AttemptStarted, Born, Record, line_of, record_of

BOOT = "5d4b5f0e-0000-4000-8000-000000000000"
LINES: list[tuple[bytes, Record]] = [
    (b"S 12.1 1700000000.125000\n", AttemptStarted("12.1", 1700000000.125)),
    (f"P 12.1 4711 4700 123456 {BOOT}\n".encode(), Born("12.1", 4711, 4700, 123456, BOOT)),
    (
        b'E 12.1 1700000001.500000 1 0 exited 123456 ""\n',
        AttemptExited("12.1", 1700000001.5, 1, 0, "exited", 123456, ""),
    ),
    (
        b'E 12.1 1700000001.500000 0 9 stopped 123456 "\\u00e9 \\"x\\"\\n"\n',
        AttemptExited("12.1", 1700000001.5, 0, 9, "stopped", 123456, 'é "x"\n'),
    ),
    (b"R 13.1 1700000002.000000\n", AttemptReturned("13.1", 1700000002.0)),
    (
        b'N 12.1 1700000001.500000 11 "cannot start a process, now or later"\n',
        AttemptReturned("12.1", 1700000001.5, 11, "cannot start a process, now or later"),
    ),
]


@pytest.mark.parametrize(("line", "record"), LINES)
def test_format(line: bytes, record: Record) -> None:
    """A record is written byte for byte as before, and read from that."""
    assert line_of(record) == line
    assert record_of(line.rstrip(b"\n")) == record
