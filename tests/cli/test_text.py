"""Text, tables, bars and colours for terminals."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.screens.text import (
    Column,
    Span,
    cells,
    clip,
    fit_titles,
    fitting,
    line_cells,
    memory_bar,
    painted,
    sparkline,
    table_lines,
    terminal_size,
    wants_colour,
)
from stoker.core.units import amount_text
from support.views import texts

GIB = 2**30
SIZES = st.integers(0, 50 * GIB)


@pytest.mark.parametrize(
    ("ours", "reserved", "others", "bar"),
    [
        (0, 0, 0, "░" * 20),
        (20, 30, 4, "█" * 10 + "▒" * 5 + "▓" * 2 + "░" * 3),
        (20, 10, 0, "█" * 10 + "░" * 10),
        (40, 40, 40, "█" * 20),
        (0, 40, 4, "▒" * 18 + "▓" * 2),
        (0.5, 0, 0, "█" + "░" * 19),
    ],
)
def test_a_bar(ours: float, reserved: int, others: int, bar: str) -> None:
    """Held, reserved but not used, of others, and free; a little of something is still seen."""
    spans = memory_bar(20, 40 * GIB, int(ours * GIB), reserved * GIB, others * GIB)
    assert "".join(span.text for span in spans) == bar
    assert memory_bar(20, None) == (Span(" " * 20),)


@given(SIZES, SIZES, SIZES, st.integers(1, 60))
def test_a_bar_is_as_long_as_it_should_be(ours: int, reserved: int, others: int, columns: int) -> None:
    """Whatever the amounts say, also where they contradict each other."""
    assert sum(len(span.text) for span in memory_bar(columns, 24 * GIB, ours, reserved, others)) == columns


@pytest.mark.parametrize(
    ("curve", "line"),
    [
        ([], ""),
        ([(0.0, GIB)], ""),
        ([(0.0, 0), (9.0, 0)], ""),
        ([(0.0, 0), (1.0, GIB), (2.0, 2 * GIB), (3.0, 4 * GIB)], "▁▁▂▂▂▄▄█"),
        ([(0.0, GIB), (0.0, 2 * GIB)], "█" * 8),
        ([(5.0, 4 * GIB), (6.0, 0), (13.0, 0)], "█▁▁▁▁▁▁▁"),
    ],
)
def test_a_curve(curve: list[tuple[float, int]], line: str) -> None:
    """From the first to the last look, as high as what was held at most; where nobody looked it stays as it was."""
    assert sparkline(curve, 8) == line


def test_amounts() -> None:
    """Whole sizes without a point."""
    assert amount_text(34 * GIB, 40 * GIB) == "34.0/40G"
    assert amount_text(None, int(6.94 * GIB)) == "?/6.9G"


@given(st.integers(1, 60), st.integers(0, 20), st.booleans())
def test_a_table(width: int, least: int, header: bool) -> None:
    """All rows end their columns at the same place, whatever is dropped; a cell may consist of several spans."""
    mixed = Column("B", [(Span("x"), Span("yy", "good")), Span("z")], 1, right=True)
    kept = Column("C", [Span("名前"), Span("long " * 20)], 5, most=9, always=True)
    columns = [Column("A", [Span("1"), Span("22")], 9), mixed, kept]
    lines = table_lines(columns, "LAST" if header else None, [(Span("|"),), (Span("|"),)], width, least)
    assert len({line_cells(line[:-1]) for line in lines}) == 1
    assert len(lines) == 2 + header


def test_a_table_drops_what_matters_least() -> None:
    """The first column and those marked always stay."""
    columns = [Column(name, [Span(name * 3)], weight) for name, weight in (("A", 1), ("B", 2), ("C", 3))]
    shown = [texts(table_lines(columns, None, [(Span("|"),)], width, 5))[0] for width in (40, 20, 10)]
    assert shown == [" AAA  BBB  CCC  |", " AAA  CCC  |", " AAA  |"]


def test_parts_that_do_not_fit() -> None:
    """Are left out, but never the first; a later one may still fit."""
    assert fitting(["stoker", "a long part", "b"], 12) == "stoker · b"
    assert fitting(["stoker", "", "x"], 3) == "stoker"


def test_wide_characters_take_two_columns() -> None:
    """Names in any script are measured as a terminal shows them."""
    assert [cells("abc"), cells("数据"), cells("e\u0301")] == [3, 4, 1]
    assert [clip("数据集", 5), clip("数据集", 6), clip("abc", 0)] == ["数据…", "数据集", ""]


class TestPaint:
    """From pieces to characters."""

    LINES = ((Span("█▒▓░", "good"), Span(" é … 名")),)

    def test_colour(self) -> None:
        """Codes around what has a look, and none elsewhere."""
        assert painted(self.LINES, colour=True, encoding="utf-8") == "\x1b[32m█▒▓░\x1b[0m é … 名\n"
        assert painted(self.LINES, colour=False, encoding="UTF-8") == "█▒▓░ é … 名\n"

    def test_without_utf8(self) -> None:
        """Bars stay bars, and what cannot be said is a question mark."""
        assert painted(self.LINES, colour=False, encoding="ascii") == "#=x. ? > ?\n"

    @pytest.mark.parametrize(
        ("choice", "environment", "expected"),
        [
            ("auto", {"TERM": "xterm"}, False),
            ("always", {"NO_COLOR": "1"}, True),
            ("never", {"FORCE_COLOR": "1"}, False),
            ("auto", {"FORCE_COLOR": "1"}, True),
            ("auto", {"FORCE_COLOR": "0"}, False),
            ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        ],
    )
    def test_when_to_use_colour(self, choice: str, environment: dict[str, str], expected: bool) -> None:
        """The option goes first, then what all programs heed; a stream that is no terminal has none."""
        assert wants_colour(choice, environment, io.StringIO()) is expected

    def test_a_terminal_has_colour_unless_it_is_dumb(self) -> None:
        """By the name of the terminal."""

        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        assert wants_colour("auto", {"TERM": "xterm"}, Terminal())
        assert not wants_colour("auto", {"TERM": "dumb"}, Terminal())

    def test_the_size_can_be_set(self) -> None:
        """By the variables that shells set, and nonsense in them is passed over."""
        assert terminal_size({"COLUMNS": "33", "LINES": "7"}) == (33, 7)
        assert min(terminal_size({"COLUMNS": "wide", "LINES": ""})) > 0


def test_titles_that_begin_alike_are_told_apart() -> None:
    """A title that is too long loses the words that others begin with, too; it takes all the room that is left."""
    titles = [f"python train.py --epochs 100 --seed {seed} --batch-size 64 --fp16" for seed in (1, 2)]
    fit = fit_titles([*titles, "python eval.py"])
    assert [fit((Span(title), Span(" (exit 1)")), 45) for title in titles] == [
        (Span(f"… --seed {seed} --batch-size 64 --fp16"), Span(" (exit 1)")) for seed in (1, 2)
    ]
    assert fit((Span(titles[0]),), 100) == (Span(titles[0]),)
    assert fit((Span("python eval.py"), Span(" (no such file or directory)")), 30)[0] == Span("python eval.py")
