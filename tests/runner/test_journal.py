"""The journal's lines, its file, and reading it while it grows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.job import Why
from stoker.runner.journal import (
    NOTE_LIMIT,
    SIZE_BYTES,
    WHYS,
    AttemptExited,
    AttemptReturned,
    AttemptStarted,
    Born,
    JournalReader,
    Record,
    create,
    line_of,
    record_of,
)
from support.disk import fill, small_disk

keys = st.builds("{}.{}".format, st.integers(1, 10**18 - 1), st.integers(1, 10**9 - 1))
moments = st.integers(0, 2**33 - 1).map(float)
words = st.sampled_from(["exited", "timeout", "stopped", "refused"])
bytes_ = st.integers(0, 255)
numbers = st.integers(0, 2**31 - 1)
notes = st.text(st.characters(), max_size=NOTE_LIMIT)
"""Any characters, also halves of surrogate pairs, as undecodable names have them."""
records = st.one_of(
    st.builds(AttemptStarted, keys, moments),
    st.builds(Born, keys, numbers, numbers, st.integers(0, 2**63 - 1), st.uuids().map(str)),
    st.builds(AttemptReturned, keys, moments, st.just(0), st.just("")),
    st.builds(AttemptReturned, keys, moments, st.integers(1, 4095), notes),
    st.builds(AttemptExited, keys, moments, bytes_, bytes_, words, st.integers(0, 2**62), notes),
)

STARTED = AttemptStarted("1.1", 1.0)
ENDED = AttemptExited("1.1", 2.0, 0, 0, "exited", 0, "")


@contextmanager
def reading(path: Path) -> Iterator[JournalReader]:
    reader = JournalReader(str(path))
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def writing(path: Path) -> Iterator[int]:
    descriptor = create(str(path))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@given(records)
def test_record_round_trip(record: Record) -> None:
    """Every record is one line without NUL bytes, from which it comes back unchanged."""
    line = line_of(record)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert b"\0" not in line
    assert record_of(line[:-1]) == record


def test_long_note_is_cut() -> None:
    """A note takes no more than its share of the journal."""
    record = record_of(line_of(ENDED._replace(note="x" * 10_000)))
    assert isinstance(record, AttemptExited)
    assert record.note == "x" * NOTE_LIMIT


def test_space_is_set_aside(tmp_path: Path) -> None:
    """All of the journal's blocks are there before the first record, and nobody else can read them."""
    with writing(tmp_path / "journal"):
        status = (tmp_path / "journal").stat()
    assert status.st_size == SIZE_BYTES
    assert status.st_blocks * 512 >= SIZE_BYTES
    assert status.st_mode & 0o777 == 0o600


def test_existing_journal_is_left_alone(tmp_path: Path) -> None:
    """A journal is never made over another one."""
    (tmp_path / "journal").write_text("S 1.1 0.0\n")
    with pytest.raises(FileExistsError):
        create(str(tmp_path / "journal"))
    assert (tmp_path / "journal").read_text() == "S 1.1 0.0\n"


def test_no_space(tmp_path: Path) -> None:
    """Where the space cannot be set aside there is no journal at all."""
    with small_disk(tmp_path / "disk", "size=512k") as disk:
        with pytest.raises(OSError, match="No space left"):
            create(str(disk / "journal"))
        assert list(disk.iterdir()) == []


def test_full_disk(tmp_path: Path) -> None:
    """Records go into the space that was set aside, however full the disk gets."""
    with (
        small_disk(tmp_path / "disk", "size=2m") as disk,
        writing(disk / "journal") as journal,
        reading(disk / "journal") as reader,
    ):
        fill(disk)
        os.pwrite(journal, line_of(STARTED) + line_of(ENDED), 0)
        assert reader.news() == [STARTED, ENDED]


def test_news_come_once(tmp_path: Path) -> None:
    """Each reading tells what was written since the one before."""
    first, second = STARTED, ENDED
    with writing(tmp_path / "journal") as journal, reading(tmp_path / "journal") as reader:
        assert reader.news() == []
        os.pwrite(journal, line_of(first), 0)
        assert reader.news() == [first]
        os.pwrite(journal, line_of(second), len(line_of(first)))
        assert reader.news() == [second]
        assert reader.news() == []


@pytest.mark.parametrize("cut", range(len(line_of(ENDED))))
def test_unfinished_line_waits(tmp_path: Path, cut: int) -> None:
    """A line that is not yet whole is told when it is, wherever it was cut."""
    begun = line_of(STARTED)
    whole = begun + line_of(ENDED)
    with writing(tmp_path / "journal") as journal, reading(tmp_path / "journal") as reader:
        os.pwrite(journal, whole[: len(begun) + cut], 0)
        assert reader.news() == [STARTED]
        os.pwrite(journal, whole, 0)
        assert reader.news() == [ENDED]


def test_more_than_one_reading(tmp_path: Path) -> None:
    """All that is there is told at once, however much it is and even beyond the space set aside."""
    end = AttemptExited("1.1", 1.0, 0, 0, "refused", 0, "ü" * NOTE_LIMIT)
    every = [record for _ in range(400) for record in (STARTED, end)]
    with writing(tmp_path / "journal") as journal, reading(tmp_path / "journal") as reader:
        os.pwrite(journal, b"".join(map(line_of, every)), 0)
        assert reader.news() == every
        assert reader.offset > SIZE_BYTES


def test_nearly_full(tmp_path: Path) -> None:
    """A journal says that it is nearly full while there is still room for what is under way."""
    line = line_of(STARTED) + line_of(ENDED)
    with writing(tmp_path / "journal") as journal, reading(tmp_path / "journal") as reader:
        os.pwrite(journal, line * (SIZE_BYTES // 2 // len(line)), 0)
        reader.news()
        assert not reader.nearly_full
        os.pwrite(journal, line * (SIZE_BYTES * 4 // 5 // len(line)), 0)
        reader.news()
        assert reader.nearly_full


def test_the_words_are_those_of_the_core() -> None:
    """Workers import nothing of the core, so both name why an attempt ended."""
    assert sorted(get_args(Why)) == sorted(WHYS)
