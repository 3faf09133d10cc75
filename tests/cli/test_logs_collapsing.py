"""Progress bars as a terminal would show them in the end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.screens.logs import LONGEST_PIECE, Collapser, Colours


def collapsed(*parts: bytes) -> bytes:
    collapser = Collapser()
    return b"".join(collapser.feed(part) for part in parts) + collapser.end()


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"", b""),
        (b"plain\nlines", b"plain\nlines"),
        (b"10%\r20%\r30%", b"30%"),
        (b"\r10%\r\r20%\r\nnext\n", b"20%\nnext\n"),
        (b"dos\r\nlines\r\n", b"dos\nlines\n"),
        (b"\n\n\r\n", b"\n\n\n"),
        (b"\x1b[31mred\x1b[0m\xff\x00\n", b"\x1b[31mred\x1b[0m\xff\x00\n"),
    ],
)
def test_what_is_left(written: bytes, shown: bytes) -> None:
    """Of a line only the last piece that says something is left; other bytes pass untouched."""
    assert collapsed(written) == shown


@given(
    st.binary(max_size=200).map(lambda data: data.translate(bytes(b"\r\nab"[byte % 4] for byte in range(256)))),
    st.data(),
)
def test_parts_of_any_size(written: bytes, data: st.DataObject) -> None:
    """However the bytes arrive, the same is shown."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(written)), max_size=5)))
    paths = [0, *cuts, len(written)]
    parts = [written[start:end] for start, end in pairwise(paths)]
    assert collapsed(*parts) == collapsed(written)


def test_huge_lines_are_not_held_back() -> None:
    """A line without end is shown in parts, so that memory stays small."""
    collapser = Collapser()
    shown = sum(len(collapser.feed(b"x" * 10_000)) for _ in range(100))
    assert shown >= 1_000_000 - LONGEST_PIECE - 10_000


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"plain caf\xc3\xa9 \xc2\xa9 \t|\n", b"plain caf\xc3\xa9 \xc2\xa9 \t|\n"),
        (b"\x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3mx\x1b[m\n", b"\x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3mx\x1b[m\n\x1b[0m"),
        (b"a\x1b[2J\x1b[10;10Hb\x1b[?1049hc\x1b[Kd\n", b"abcd\n"),
        (b"a\x1b]0;title\x07b\x1b]52;c;cGFzc3dvcmQ=\x1b\\c\n", b"abc\n"),
        (b"a\x1bcb\x1b(0c\x1bP1$r\x1b\\d\x07\x00\x7f\n", b"abcd\n"),
        (b"a\xc2\x9b2Jb\n", b"a2Jb\n"),
        (b"10%\r20%\n", b"20%\n"),
    ],
)
def test_a_terminal_gets_colours_and_no_other_sequence(written: bytes, shown: bytes) -> None:
    """However the bytes are cut into blocks."""
    for cut in range(len(written) + 1):
        colours, collapser = Colours(), Collapser()
        blocks = [collapser.feed(colours.feed(part)) for part in (written[:cut], written[cut:])]
        assert b"".join(blocks) + collapser.end() + colours.end() == shown


def test_a_sequence_without_an_end() -> None:
    """Text is not held back for ever."""
    colours = Colours()
    assert colours.feed(b"\x1b]0;") == b""
    shown = b"".join(colours.feed(b"x" * 1000) for _ in range(9))
    assert shown.count(b"x") >= 4000
    assert b"\x1b" not in shown
