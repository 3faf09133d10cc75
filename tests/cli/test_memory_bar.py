"""Memory as bars and curves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.views.text import Amounts, amount_text, memory_bar, sparkline

GIB = 2**30
SIZES = st.integers(0, 50 * GIB)


@pytest.mark.parametrize(
    ("amounts", "bar"),
    [
        (Amounts(40 * GIB), "░" * 20),
        (Amounts(40 * GIB, ours=20 * GIB, reserved=30 * GIB, others=4 * GIB), "█" * 10 + "▒" * 5 + "▓" * 2 + "░" * 3),
        (Amounts(40 * GIB, ours=20 * GIB, reserved=10 * GIB), "█" * 10 + "░" * 10),
        (Amounts(40 * GIB, ours=40 * GIB, reserved=40 * GIB, others=40 * GIB), "█" * 20),
        (Amounts(40 * GIB, reserved=40 * GIB, others=4 * GIB), "▒" * 18 + "▓" * 2),
        (Amounts(40 * GIB, ours=GIB // 2), "█" + "░" * 19),
        (Amounts(None), " " * 20),
    ],
)
def test_a_bar(amounts: Amounts, bar: str) -> None:
    """Held, reserved but not used, of others, and free; a little of something is still seen."""
    assert "".join(span.text for span in memory_bar(amounts, 20)) == bar


@given(SIZES, SIZES, SIZES, st.integers(1, 60))
def test_a_bar_is_as_long_as_it_should_be(ours: int, reserved: int, others: int, cells: int) -> None:
    """Whatever the amounts say, also where they contradict each other."""
    assert sum(len(span.text) for span in memory_bar(Amounts(24 * GIB, ours, reserved, others), cells)) == cells


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
