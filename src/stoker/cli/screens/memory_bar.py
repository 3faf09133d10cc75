"""The memory of a device as a bar, and what was held of one over time as a small curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stoker.cli.screens.pieces import Line, Piece

GIB = 2**30
HEIGHTS = "▁▂▃▄▅▆▇█"


class Amounts(NamedTuple):
    """Bytes of a device, by who has them."""

    total: int | None
    ours: int = 0
    """In use by our jobs."""
    reserved: int = 0
    """Set aside for our jobs, whether they use it or not."""
    others: int = 0
    """Used or claimed by anybody else."""


def memory_bar(amounts: Amounts, cells: int) -> Line:
    """Held by our jobs, reserved by them but not used yet, other people's, and free."""
    total = amounts.total
    if not total:
        return (Piece(" " * cells),)
    ours = _share(amounts.ours, total, cells)
    others = min(cells - ours, _share(amounts.others, total, cells))
    reserved = max(0, min(cells - others, round(amounts.reserved * cells / total)) - ours)
    free = cells - ours - reserved - others
    return (
        Piece("█" * ours, "good"),
        Piece("▒" * reserved, "good"),
        Piece("▓" * others, "odd"),
        Piece("░" * free, "faint"),
    )


def amount_text(used: int | None, total: int) -> str:
    """`34.1/40G`."""
    return f"{'?' if used is None else f'{used / GIB:.1f}'}/{short_size(total)}"


def short_size(size: int) -> str:
    """`40G`, `6.9G`."""
    return f"{size / GIB:.1f}".removesuffix(".0") + "G"


def sparkline(curve: Sequence[tuple[float, int]], cells: int) -> str:
    """What was held from the beginning to the last look, in so many columns; the highest is the most that was held."""
    if len(curve) < 2 or not (most := max(size for _, size in curve)):
        return ""
    begin, length = curve[0][0], curve[-1][0] - curve[0][0]
    levels: list[int] = [-1] * cells
    for seconds, size in curve:
        cell = min(cells - 1, int((seconds - begin) * cells / length)) if length else 0
        levels[cell] = max(levels[cell], size)
    for cell in range(1, cells):  # nobody looked in between
        levels[cell] = levels[cell - 1] if levels[cell] < 0 else levels[cell]
    return "".join(HEIGHTS[size * (len(HEIGHTS) - 1) // most] for size in levels)


def _share(amount: int, total: int, cells: int) -> int:
    """Cells of an amount; a little of something is still seen."""
    full = min(cells, round(amount * cells / total))
    return max(1, full) if amount > total // 100 else full
