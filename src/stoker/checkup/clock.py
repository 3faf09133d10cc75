"""Whether the clock can be trusted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from stoker.checkup.verdict import Subject, Verdict, note, ok, output_of, problem
from stoker.core.units import duration_text
from stoker.presence import QUEUE, engine_lives
from stoker.published import read_view

OLDEST = 1_704_067_200.0
"""The start of 2024, before which nobody had this program."""
JUMP = 5.0
"""Seconds by which an engine's clock may differ from the machine's."""


def look_at_clock(subject: Subject) -> Iterator[Verdict]:
    """The date, its source, and whether somebody has set it while the engine ran."""
    if subject.now < OLDEST:
        yield problem("clock", "the machine's clock is years behind", "set it: timedatectl set-ntp true")
        return
    jump = _jump(subject)
    if abs(jump) > JUMP:
        way = "forward" if jump > 0 else "back"
        text = (
            f"the clock was set {way} by {duration_text(abs(jump))} since the engine started, which goes by the old one"
        )
        yield note("clock", text, "stoker engine stop && stoker engine start; jobs go on")
    answer = output_of(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    if answer is not None and answer.strip() == "no":
        yield note("clock", "the clock is not synchronised with others", "timedatectl set-ntp true")
    elif abs(jump) <= JUMP:
        yield ok("clock", "nothing is wrong with it" if answer is None else "synchronised")


def _jump(subject: Subject) -> float:
    """How far the machine's clock has gone ahead of a living engine's, which no setting moves."""
    path = subject.places.bulletin(QUEUE)
    view = read_view(path)
    if view is not None and engine_lives(subject.places, QUEUE):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime - view.at
    return 0.0
