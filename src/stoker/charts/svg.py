"""Draw charts as SVG: one file without scripts, fonts or links, readable on light and dark backgrounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from stoker.core.chart import Axis, Chart, Parallel, Series
from stoker.core.errors import StokerError

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 44, 56
TONES = {"main": "#1668a8", "good": "#c2410c", "bad": "#8b95a1", "faint": "#9db4c8"}
"""Colours that differ in lightness, too, so that they can be told apart without colour."""
TEXT, GRID, PAPER = "#24292f", "#d9dee3", "#ffffff"
WORST, BEST = (0xB8, 0xC4, 0xD0), (0xC2, 0x41, 0x0C)
PNG_SCALE = 2.0
FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans', sans-serif"
"""Named, since the PNG renderer does not know which font of the machine is its sans-serif."""


def chart_svg(chart: Chart | Parallel) -> str:
    """The chart as a file."""
    body = _parallel(chart) if isinstance(chart, Parallel) else _chart(chart)
    title = escape(chart.title)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
            f' font-family="{FONTS}" font-size="12" role="img">',
            f"<title>{title}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>',
            _text(LEFT, 24, chart.title, size=15),
            *body,
            "</svg>",
            "",
        )
    )


def write_chart(chart: Chart | Parallel, path: Path) -> None:
    """Write an SVG, or a PNG where the name ends so."""
    text = chart_svg(chart)
    data = _png(text) if path.suffix.lower() == ".png" else text.encode()
    try:
        path.write_bytes(data)
    except OSError as error:
        raise StokerError(f"cannot write {path}: {error.strerror}", "name another file") from error


def _png(text: str) -> bytes:
    try:
        import resvg_py
    except ImportError:
        raise StokerError(
            "a PNG needs resvg-py, which is not installed", "pip install 'stoker[plot]', or write an SVG: -o FILE.svg"
        ) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=text, width=int(WIDTH * PNG_SCALE)))


def _chart(chart: Chart) -> Iterator[str]:
    yield from _grid(chart.x, chart.y)
    for series in chart.series:
        yield from _series(series, chart)
    yield from _legend([series for series in chart.series if series.name])


def _x(axis: Axis, value: float) -> float:
    return LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM)


def _grid(x: Axis, y: Axis) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value, text in x.ticks(8):
        at = _x(x, value)
        yield f'<path d="M{at:.1f} {TOP}V{bottom}" stroke="{GRID}"/>'
        yield _text(at, bottom + 18, text, anchor="middle")
    for value, text in y.ticks(6):
        at = _y(y, value)
        yield f'<path d="M{LEFT} {at:.1f}H{right}" stroke="{GRID}"/>'
        yield _text(LEFT - 8, at + 4, text, anchor="end")
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="{TEXT}"/>'
    yield _text((LEFT + right) / 2, HEIGHT - 14, x.title, anchor="middle")
    yield _text(16, (TOP + bottom) / 2, y.title, anchor="middle", turned=True)


def _series(series: Series, chart: Chart) -> Iterator[str]:
    colour = TONES[series.tone]
    places = [(_x(chart.x, x), _y(chart.y, y)) for x, y in series.points]
    if series.kind == "points":
        for x, y in places:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}" fill-opacity="0.75"/>'
        return
    if places:
        width = 1 if series.tone == "faint" else 2
        path = _path(places, steps=series.kind == "steps")
        yield f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _path(places: Sequence[tuple[float, float]], *, steps: bool) -> str:
    (x, y), *rest = places
    words = [f"M{x:.1f} {y:.1f}"]
    for x, y in rest:
        words.append(f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}")
    return "".join(words)


def _legend(series: Sequence[Series]) -> Iterator[str]:
    right = WIDTH - RIGHT
    for one in reversed(series):
        yield _text(right, 24, one.name, anchor="end")
        right -= 7 * len(one.name) + 14
        yield f'<rect x="{right:.0f}" y="15" width="10" height="10" fill="{TONES[one.tone]}"/>'
        right -= 14


def _parallel(chart: Parallel) -> Iterator[str]:
    count = max(1, len(chart.axes) - 1)
    places = [LEFT + number * (WIDTH - LEFT - RIGHT - 40) / count for number in range(len(chart.axes))]
    order = sorted(range(len(chart.lines)), key=lambda number: chart.goodness[number])
    for number in order:  # the best on top
        yield _parallel_line(chart, number, places)
    for axis, x in zip(chart.axes, places, strict=True):
        yield f'<path d="M{x:.1f} {TOP + 16}V{HEIGHT - BOTTOM}" stroke="{TEXT}"/>'
        yield _text(x, HEIGHT - BOTTOM + 22, axis.title, anchor="middle")
        for value, text in axis.ticks(6):
            yield _text(x + 5, _parallel_y(axis, value) + 4, text, halo=True)


def _parallel_y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - axis.place(value) * (HEIGHT - TOP - BOTTOM - 16)


def _parallel_line(chart: Parallel, number: int, places: Sequence[float]) -> str:
    values = chart.lines[number]
    known = [
        (x, _parallel_y(axis, value))
        for axis, x, value in zip(chart.axes, places, values, strict=True)
        if value is not None
    ]
    share = chart.goodness[number]
    colour = "#" + "".join(f"{round(low + (high - low) * share):02x}" for low, high in zip(WORST, BEST, strict=True))
    width = 1 + 1.5 * share
    return (
        f'<path d="{_path(known, steps=False)}" fill="none" stroke="{colour}" stroke-width="{width:.1f}"/>'
        if known
        else ""
    )


def _text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", turned: bool = False, halo: bool = False
) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    around = f' stroke="{PAPER}" stroke-width="3" paint-order="stroke"' if halo else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{TEXT}"{turn}{around}>'
        f"{escape(text)}</text>"
    )
