"""The screen of a Textual application as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from textual.app import App
from textual.pilot import Pilot

PATIENCE_SECONDS = 30.0
PAUSE_SECONDS = 0.05


def screen_text(app: App[Any]) -> str:
    """What a terminal would show now."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips)


def without_times(text: str) -> str:
    """The text with all digits of clocks and durations as 0, so that it can be compared."""
    return re.sub(r"(?<![.\d])\d+(?=[:smhd]\d?\d?)|(?<=:)\d+", lambda found: "0" * len(found[0]), text)


async def wait_for_text(pilot: Pilot[Any], *texts: str) -> str:
    """The screen as soon as it shows all the texts."""
    return await wait_for_screen(pilot, lambda screen: all(text in screen for text in texts), f"{texts}")


async def wait_for_screen(pilot: Pilot[Any], condition: Callable[[str], bool], what: str, *keys: str) -> str:
    """The screen as soon as it meets the condition; until then, the keys are pressed again and again."""
    steps = 0
    while not condition(screen := screen_text(pilot.app)):
        assert steps < PATIENCE_SECONDS / PAUSE_SECONDS, f"never saw {what} on\n{screen}"
        steps += 1
        if keys:
            await pilot.press(*keys)
        await pilot.pause(PAUSE_SECONDS)
    return screen
