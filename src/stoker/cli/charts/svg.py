"""Draw SVG: scales, axes and shapes. All text is escaped, so that no name of a job can become markup."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stoker.app.jobs.local_time import tick_seconds, ticks
from stoker.core.units import DAY

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
FONT_SIZE = 11.0
CHARACTER = 0.58
"""Width of a character, as a part of the font size."""
INK = "#1f2328"
FAINT = "#6e7781"
GRID = "#d8dee4"
PAPER = "#ffffff"
RED = "#cf222e"
PALETTE = ("#2f7ec0", "#e08a1e", "#2c9c78", "#a35ac0", "#1b9cb5", "#6d8f1f", "#d0629b", "#5b6fd1")
"""Colours of groups, the same as on the page (`--series-0` and so on in web/src/style.css)."""


def escape(text: str) -> str:
    """The text for an element or an attribute; characters that XML forbids become a replacement character."""
    shown = "".join(
        character if character in "\t\n" or character.isprintable() or character == " " else "\ufffd"
        for character in text
    )
    for character, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ('"', "&quot;"), ("'", "&#39;")):
        shown = shown.replace(character, entity)
    return shown


def tinted(colour: str, part: float) -> str:
    """A part of a colour on white, so that it looks the same on every background."""
    return "#" + "".join(f"{round(255 - part * (255 - channel)):02x}" for channel in _channels(colour))


def ink_on(colour: str) -> str:
    """Dark or white, whichever can be read better on a colour."""
    return max((INK, PAPER), key=lambda ink: contrast(ink, colour))


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG defines it, from 1 to 21."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (
        part / 12.92 if (part := channel / 255) <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for channel in _channels(colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _channels(colour: str) -> list[int]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def fitted(text: str, width: float, size: float = FONT_SIZE) -> str:
    """As much of a text as fits about so many pixels; empty if that is less than three characters."""
    most = int(width / (size * CHARACTER))
    if len(text) <= most:
        return text
    return f"{text[: most - 1]}…" if most >= 4 else ""


# -- time ------------------------------------------------------------------------------------------


class Clock(NamedTuple):
    """Seconds since the epoch from one pixel to another, with local times as ticks."""

    low: float
    high: float
    start: float
    end: float

    def at(self, moment: float) -> float:
        return self.start + (moment - self.low) / ((self.high - self.low) or 1.0) * (self.end - self.start)

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Even moments, at most about so many, and their texts."""
        form = "%H:%M" if tick_seconds(self.low, self.high, most) < DAY else "%b %d"
        return [(at, _clock(at, form)) for at in ticks(self.low, self.high, most)]


def _clock(at: float, form: str) -> str:
    local = time.localtime(at)
    midnight = form == "%H:%M" and local[3:5] == (0, 0)
    return time.strftime("%b %d" if midnight else form, local)


# -- shapes ----------------------------------------------------------------------------------------


class Drawing:
    """Collects shapes. Colours are attributes, which all programs know; classes let a page replace them."""

    def __init__(self, width: float, height: float, title: str) -> None:
        """`title` says what the chart shows, for those who cannot see it."""
        self.width = width
        self.height = height
        self._title = title
        self._parts: list[str] = []

    def svg(self, *, background: bool = True) -> str:
        """The whole document; without a background it takes that of a page."""
        size = f'width="{self.width:g}" height="{self.height:g}" viewBox="0 0 {self.width:g} {self.height:g}"'
        paper = f'<rect class="paper" width="100%" height="100%" fill="{PAPER}"/>' if background else ""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="{FONT}" font-size="{FONT_SIZE:g}">'
            f"<title>{escape(self._title)}</title>{paper}"
        )
        return "\n".join([head, *self._parts, "</svg>"]) + "\n"

    def rect(
        self,
        box: tuple[float, float, float, float],
        fill: str,
        *,
        opacity: float = 1.0,
        stroke: str = "",
        dashed: bool = False,
        rounded: float = 0.0,
        tip: str = "",
    ) -> None:
        """A rectangle by its left, top, width and height; `tip` is shown when the mouse is above it."""
        x, y, width, height = box
        line = f' stroke="{stroke}"' + (' stroke-dasharray="3 2"' if dashed else "") if stroke else ""
        shape = (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}"'
            f' fill="{fill}" fill-opacity="{opacity:g}"{line}' + (f' rx="{rounded:g}"' if rounded else "")
        )
        self._parts.append(f"{shape}><title>{escape(tip)}</title></rect>" if tip else f"{shape}/>")

    def line(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        stroke: str = GRID,
        width: float = 1.0,
        kind: str = "grid",
    ) -> None:
        self._parts.append(
            f'<line class="{kind}" x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
            f' stroke="{stroke}" stroke-width="{width:g}"/>'
        )

    def path(self, steps: str, stroke: str, width: float = 1.5) -> None:
        """A line by SVG's path commands, such as M0 0L10 5."""
        self._parts.append(f'<path d="{steps}" fill="none" stroke="{stroke}" stroke-width="{width:g}"/>')

    def circle(
        self, centre: tuple[float, float], radius: float, fill: str, *, opacity: float = 0.7, tip: str = ""
    ) -> None:
        shape = (
            f'<circle cx="{centre[0]:.1f}" cy="{centre[1]:.1f}" r="{radius:g}" fill="{fill}" fill-opacity="{opacity:g}"'
        )
        self._parts.append(f"{shape}><title>{escape(tip)}</title></circle>" if tip else f"{shape}/>")

    def text(
        self,
        at: tuple[float, float],
        words: str,
        *,
        anchor: str = "start",
        fill: str = INK,
        size: float = FONT_SIZE,
        bold: bool = False,
        kind: str = "ink",
        turned: bool = False,
        halo: bool = False,
    ) -> None:
        """Words at the base line; `anchor` is start, middle or end. A halo keeps them readable on lines."""
        more = ' font-weight="600"' if bold else ""
        more += f' transform="rotate(-90 {at[0]:.1f} {at[1]:.1f})"' if turned else ""
        more += f' stroke="{PAPER}" stroke-width="3" paint-order="stroke"' if halo else ""
        self._parts.append(
            f'<text class="{kind}" x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" font-size="{size:g}"'
            f' fill="{fill}"{more}>{escape(words)}</text>'
        )

    # -- axes -------------------------------------------------------------------------------------

    def axis_below(self, ticks: Iterable[tuple[float, str]], top: float, bottom: float, name: str = "") -> None:
        """Vertical lines from top to bottom at pixels, and their texts below."""
        for x, words in ticks:
            self.line((x, top), (x, bottom))
            self.text((x, bottom + 14), words, anchor="middle", fill=FAINT, size=10, kind="faint")
        if name:
            self.text((self.width / 2, bottom + 32), name, anchor="middle", fill=FAINT, kind="faint")

    def axis_left(self, ticks: Iterable[tuple[float, str]], left: float, right: float, name: str = "") -> None:
        """Horizontal lines from left to right at pixels, and their texts on the left."""
        for y, words in ticks:
            self.line((left, y), (right, y))
            self.text((left - 6, y + 4), words, anchor="end", fill=FAINT, size=10, kind="faint")
        if name:
            self.text((14, self.height / 2), name, anchor="middle", fill=FAINT, kind="faint", turned=True)

    @staticmethod
    def legend_width(names: Sequence[tuple[str, str]]) -> float:
        return sum(26 + len(name) * FONT_SIZE * CHARACTER for name, _ in names)

    def legend(self, names: Sequence[tuple[str, str]], at: tuple[float, float]) -> None:
        """Names with their colours, in one row from a point."""
        x, y = at
        for name, colour in names:
            self.rect((x, y - 9, 10, 10), colour, rounded=2)
            self.text((x + 14, y), name, fill=FAINT, kind="faint")
            x += 26 + len(name) * FONT_SIZE * CHARACTER
