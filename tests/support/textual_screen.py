"""The screen of a Textual application as text."""

from __future__ import annotations

import re
from typing import Any

from textual.app import App
from textual.pilot import Pilot

PATIENCE_SECONDS = 30.0


def screen_text(app: App[Any]) -> str:
    """What a terminal would show now."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


def without_times(text: str) -> str:
    """The text with all digits of clocks and durations as 0, so that it can be compared."""
    return re.sub(r"(?<![.\d])\d+(?=[:smhd]\d?\d?)|(?<=:)\d+", lambda found: "0" * len(found[0]), text)


async def wait_for_text(pilot: Pilot[Any], *texts: str) -> str:
    """The screen as soon as it shows all the texts."""
    steps = 0
    while not all(text in (screen := screen_text(pilot.app)) for text in texts):
        assert steps < PATIENCE_SECONDS / 0.05, f"never saw {texts} on\n{screen}"
        steps += 1
        await pilot.pause(0.05)
    return screen
