"""The lines of a worker's journal stay the same: a new engine adopts workers of an older version."""

from __future__ import annotations

import pytest

from stoker.runner.journal import AttemptExited, AttemptReturned, AttemptStarted, Born, Record, line_of, record_of

WRITTEN_BY_0_1: list[tuple[bytes, Record]] = [
    (b"S 12.1 1700000000.125000\n", AttemptStarted("12.1", 1700000000.125)),
    (b"P 12.1 4711 4700\n", Born("12.1", 4711, 4700)),
    (
        b'E 12.1 1700000001.500000 1 0 exited 123456 ""\n',
        AttemptExited("12.1", 1700000001.5, 1, 0, "exited", 123456, ""),
    ),
    (
        b'E 12.1 1700000001.500000 0 9 stopped 123456 "\\u00e9 \\"x\\"\\n"\n',
        AttemptExited("12.1", 1700000001.5, 0, 9, "stopped", 123456, 'é "x"\n'),
    ),
    (b"R 13.1 1700000002.000000\n", AttemptReturned("13.1", 1700000002.0)),
]
"""Lines that version 0.1.0 wrote before the modules were moved, and what they mean."""


SINCE_0_2: list[tuple[bytes, Record]] = [
    (
        b"P 12.1 4711 4700 123456 5d4b5f0e-0000-4000-8000-000000000000\n",
        Born("12.1", 4711, 4700, 123456, "5d4b5f0e-0000-4000-8000-000000000000"),
    ),
    (
        b"P 12.1 4711 4700 123456 5d4b5f0e-0000-4000-8000-000000000000 1\n",
        Born("12.1", 4711, 4700, 123456, "5d4b5f0e-0000-4000-8000-000000000000", 1),
    ),
    (
        b'E 12.1 1700000001.500000 126 0 refused -11 "cannot start a process"\n',
        AttemptReturned("12.1", 1700000001.5, 11, "cannot start a process"),
    ),
]
"""An older engine ignores the last fields of P, and reads the last line as a refused start."""


@pytest.mark.parametrize(("line", "record"), WRITTEN_BY_0_1 + SINCE_0_2)
def test_format(line: bytes, record: Record) -> None:
    """A record is written byte for byte as before, and an older one is read."""
    assert line_of(record) == line
    assert record_of(line.rstrip(b"\n")) == record
