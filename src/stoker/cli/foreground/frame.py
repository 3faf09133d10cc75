"""The lines of the live display: a scene put into words for a terminal of some width and height."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stoker.cli.foreground.recent import Notice
from stoker.cli.foreground.scene import Counts, Occupant, Row, Scene
from stoker.cli.screens.memory_bar import Amounts, amount_text, memory_bar
from stoker.cli.screens.pieces import EMPTY, Line, Piece, cells, clip, clipped, line_cells, padded
from stoker.core.units import count_text, duration_text

GAP = "  "
SPARE_ROWS = 2
"""Rows of the terminal left alone, so that a sentence above the display can be seen."""
SPARE_COLUMNS = 4
"""Columns of the last line left alone, for the ^C that a terminal echoes there."""
MOST_NOTICES = 10
LONGEST_BAR = 40
SHORTEST_BAR = 8
LEAST_SAID = 16
"""Columns of a failure's own words that go before the hint how to see more of them."""


class Detail(NamedTuple):
    """How much is told of each job on a device."""

    name: int
    time: bool
    progress: int | None = None
    """Columns of the bar that shows how far it is; with none of them the time left is still told."""


DETAILS = (
    Detail(40, time=True, progress=8),
    Detail(20, time=True, progress=8),
    Detail(20, time=True, progress=0),
    Detail(24, time=True),
    Detail(12, time=True),
    Detail(12, time=False),
    Detail(6, time=False),
    Detail(0, time=False),
)
"""From much to little: names tell more than times."""


def frame(scene: Scene, width: int, height: int) -> list[Line]:
    """All lines, none wider and all together not taller than the terminal."""
    room = max(1, height - SPARE_ROWS - 2)
    rows = row_lines(scene.rows, width, max(1, room - min(2, len(scene.notices))))
    room -= len(rows)
    news = news_lines(scene, width, room)
    room -= len(news)
    above = [EMPTY] if room >= 2 else []
    below = [EMPTY] if room >= 2 and news else []
    lines = [heading_line(scene, width), *above, *rows, *below, *news, bar_line(scene, width)]
    return [clipped(line, width) for line in lines]


# -- heading and bar -----------------------------------------------------------------------------


def heading_line(scene: Scene, width: int) -> Line:
    """What runs; parts that do not fit are left out, the least important first."""
    badge = [Piece(" SIM ", "simulated"), Piece(" ")] if scene.simulated else []
    room = width - line_cells(badge)
    text = scene.heading[0]
    for part in scene.heading[1:]:
        if cells(text) + cells(part) + 3 <= room:
            text = f"{text} · {part}"
    return (*badge, Piece(text, "heading"))


def bar_line(scene: Scene, width: int) -> Line:
    """`━━━━━━───  6/24  5 ok 1 failed 6 running 12 waiting  [01:24<03:40]`."""
    room = width - SPARE_COLUMNS
    clock = f"[{duration_text(scene.elapsed)}<{left_text(scene.left)}]"
    told = next((line for line in _counts_lines(scene.counts, clock) if line_cells(line) <= room), None)
    if told is None:
        return (Piece(f" {scene.counts.ended}/{scene.counts.total}"),)
    space = min(LONGEST_BAR, room - line_cells(told) - 1)
    bar = _bar(scene.counts, space) if space >= SHORTEST_BAR else EMPTY
    return (Piece(" "), *bar, *told)


def _counts_lines(counts: Counts, clock: str) -> Iterator[Line]:
    """The counts in words, then ever shorter."""
    share = f" {counts.ended}/{counts.total}{'+' if counts.open_ended else ''}  "
    failed = [Piece(f"{counts.failed} failed ", "bad")] if counts.failed else []
    rest = f"{counts.running} running {counts.waiting} waiting  "
    yield Piece(share), Piece(f"{counts.ok} ok ", "good"), *failed, Piece(rest), Piece(clock, "faint")
    yield Piece(share), Piece(f"{counts.ok} ok ", "good"), *failed, Piece(f" {clock}", "faint")
    yield Piece(share), *failed


def _bar(counts: Counts, space: int) -> Line:
    total = max(1, counts.total)
    good = counts.ok * space // total
    over = counts.ended * space // total
    return Piece("━" * good, "good"), Piece("━" * (over - good), "bad"), Piece("─" * (space - over), "faint")


def left_text(seconds: float | None) -> str:
    """A guess with no more digits than it deserves."""
    if seconds is None:
        return "?"
    step = 5 if seconds < 120 else 30 if seconds < 1200 else 300
    return duration_text(-(-seconds // step) * step)


# -- devices -------------------------------------------------------------------------------------


def row_lines(rows: Sequence[Row], width: int, room: int) -> list[Line]:
    """A line for each device, or for as many as there is room for and one that tells of the others."""
    shown = rows if len(rows) <= room else rows[: max(0, room - 1)]
    label = max((cells(row.label) for row in rows), default=0)
    amount = max((len(_amount(row.memory, row.memory)) for row in rows), default=0)
    bar = 0 if not amount or width < 72 else 10 if width < 100 else 18
    lines = [_row_line(row, label, amount, bar, width) for row in shown]
    hidden = rows[len(shown) :]
    if hidden:
        busy = sum(bool(row.occupants) for row in hidden)
        lines.append((Piece(f" … {count_text(len(hidden), 'more GPU')}: {busy} busy, {len(hidden) - busy} idle"),))
    return lines


def _row_line(row: Row, label: int, amount: int, bar: int, width: int) -> Line:
    start = [Piece(" " + padded(row.label, label) + " ")]
    if bar:
        start += [*_memory_bar(row, bar), Piece(" ")]
    if amount:
        start.append(Piece(_amount(row.used, row.memory).rjust(amount) + GAP))
    room = width - line_cells(start)
    return *start, *(occupants_line(row.occupants, room) if row.occupants else (Piece(row.idle, "faint"),))


def _memory_bar(row: Row, space: int) -> Line:
    known = row.memory if row.used is not None else None
    return memory_bar(Amounts(known, (row.used or 0) - row.others, row.reserved, row.others), space)


def _amount(used: int | None, memory: int | None) -> str:
    return "" if memory is None else amount_text(used, memory)


def occupants_line(occupants: Sequence[Occupant], room: int) -> Line:
    """The jobs on a device, each with as much detail as lets all be seen."""
    for detail in DETAILS:
        line = _joined([occupant_line(occupant, detail) for occupant in occupants])
        if line_cells(line) <= room:
            return line
    shown = [occupant_line(occupant, DETAILS[-1]) for occupant in occupants]
    while shown and line_cells(_joined(shown)) + len(f"{GAP}+{len(occupants)} more") > room:
        shown.pop()
    return *_joined(shown), Piece(f"{GAP if shown else ''}+{len(occupants) - len(shown)} more")


def occupant_line(occupant: Occupant, detail: Detail) -> Line:
    """`#3 lr=1e-3 00:41 ▕▇▇▇▇▇▁▁▏~00:22`."""
    name = f" {clip(occupant.name, detail.name)}" if detail.name else ""
    wide = f" ×{occupant.gpus}" if occupant.gpus > 1 and detail.name else ""
    state = f" {occupant.word or duration_text(occupant.seconds or 0.0)}" if detail.time else ""
    progress = "" if detail.progress is None else progress_text(occupant, detail.progress)
    return Piece(f"#{occupant.id}", "id"), Piece(f"{name}{wide}"), Piece(state + progress, "faint")


def progress_text(occupant: Occupant, columns: int) -> str:
    """How far a job is by what such jobs take; nothing once it has taken longer."""
    if occupant.expected is None or occupant.seconds is None or occupant.seconds >= occupant.expected:
        return ""
    full = int(columns * occupant.seconds / occupant.expected)
    bar = f"▕{'▇' * full}{'▁' * (columns - full)}▏" if columns else ""
    return f" {bar}~{duration_text(occupant.expected - occupant.seconds + 1)}"


def _joined(lines: Sequence[Line]) -> Line:
    parts = [part for line in lines for part in (Piece(GAP), *line)]
    return tuple(parts[1:])


# -- news ----------------------------------------------------------------------------------------


def news_lines(scene: Scene, width: int, room: int) -> list[Line]:
    """The newest failures, the newest successes, and what comes next, as far as there is room."""
    successes = [successes_line(scene.successes, width)] if scene.successes and room > 1 else []
    waits = [(Piece(" … ", "faint"), Piece(scene.waits))] if scene.waits and room > 2 else []
    space = min(MOST_NOTICES, room - len(successes) - len(waits))
    notices = scene.notices[-space:] if space > 0 else ()
    columns = Columns.of(notices, width)
    lines = [notice_line(notice, columns, width, simulated=scene.simulated) for notice in notices]
    return [*lines, *successes, *waits]


class Columns(NamedTuple):
    """Widths that let notices stand below each other."""

    id: int
    name: int
    what: int

    @classmethod
    def of(cls, notices: Sequence[Notice], width: int) -> Columns:
        """As wide as the widest, but names no wider than a fourth of the screen."""
        name = max((cells(notice.name) for notice in notices), default=0)
        return cls(
            max((len(str(notice.id)) for notice in notices), default=0),
            min(name, width // 4),
            max((cells(notice.what) for notice in notices), default=0),
        )


def notice_line(notice: Notice, columns: Columns, width: int, *, simulated: bool) -> Line:
    """`✗ #5  lr=1.0  exit 1 after 00:09  RuntimeError: loss is nan  stoker logs 5`."""
    mark = {"failed": Piece(" ✗ ", "bad"), "again": Piece(" ↻ ", "odd"), "note": Piece(" ! ", "odd")}[notice.mark]
    name = padded(clip(notice.name, columns.name), columns.name)
    start = (
        mark,
        Piece(f"#{notice.id}".ljust(columns.id + 1), "id"),
        Piece(f" {name}  {padded(notice.what, columns.what)}  "),
    )
    show = f"  stoker logs {'--sim ' if simulated else ''}{notice.id}" if notice.mark == "failed" else ""
    room = width - line_cells(start)
    show = show if room - len(show) >= LEAST_SAID else ""
    room = max(0, room - len(show))
    return *start, Piece(padded(clip(notice.said, room), room)), Piece(show, "faint")


def successes_line(ids: Sequence[int], width: int) -> Line:
    """`✓ #1 #2 #6`, the newest where not all fit."""
    text = ""
    for number in reversed(ids):
        longer = f" #{number}{text}"
        if len(longer) + 6 > width:
            text = f" …{text}"
            break
        text = longer
    return Piece(" ✓", "good"), Piece(text)
