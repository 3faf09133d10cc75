"""Lines of a log are found wherever they are, within bounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.store import logs
from stoker.store.logs import search_log


def lines_at(path: Path, offsets: list[int]) -> list[bytes]:
    data = path.read_bytes()
    return [data[offset:].split(b"\n", 1)[0] for offset in offsets]


def test_lines_as_a_terminal_shows_them(tmp_path: Path) -> None:
    """In upper or lower case, through colours, and without what a progress bar overwrote."""
    log = tmp_path / "log"
    log.write_bytes("View run\n\x1b[31mvi\x1b[1mew\x1b[0m RUN\r\nview run\rdone\nviewrun\nÜber View Run".encode())
    found = search_log(str(log), "view run")
    assert lines_at(log, found.offsets) == [
        "Über View Run".encode(),
        b"\x1b[31mvi\x1b[1mew\x1b[0m RUN\r",
        b"View run",
    ]
    assert (found.start, found.size) == (0, log.stat().st_size)
    assert len(search_log(str(log), "über").offsets) == 1


@pytest.mark.parametrize("block", [1, 7, 64, 4096])
def test_blocks_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """No line is lost or found twice, unless it is longer than a block."""
    monkeypatch.setattr(logs, "_SEARCH_BLOCK", block)
    log = tmp_path / "log"
    log.write_text("".join(f"{number} {'x' * (number % 5)}\n" for number in range(300)))
    found = [int(line.split()[0]) for line in lines_at(log, search_log(str(log), "x").offsets) if line[:1].isdigit()]
    wanted = [number for number in reversed(range(300)) if number % 5]
    assert found == wanted if block > 9 else set(found) <= set(wanted)


def test_a_long_log_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search tells where the next one ends."""
    monkeypatch.setattr(logs, "_SEARCH_BLOCK", 100)
    monkeypatch.setattr(logs, "MOST_FOUND_LINES", 10)
    monkeypatch.setattr(logs, "MOST_SEARCHED_BYTES", 1000)
    log = tmp_path / "log"
    log.write_text("".join(f"{'hit' if number % 3 else 'miss'} {number}\n" for number in range(1000)))
    before, found, searches = None, [], 0
    while before != 0:
        part = search_log(str(log), "hit", before)
        before, searches = part.start, searches + 1
        found += part.offsets
    numbers = [int(line.split()[1]) for line in lines_at(log, found)]
    assert numbers == [number for number in reversed(range(1000)) if number % 3]
    assert searches > 10


def test_what_is_no_file(tmp_path: Path) -> None:
    """A log that is gone, or is a device, has no lines."""
    assert search_log(str(tmp_path / "gone"), "x") == ([], 0, 0)
    assert search_log("/dev/zero", "x").offsets == []
