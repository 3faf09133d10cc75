"""Whether the engine goes by what is configured here, or by what it was started with."""

from __future__ import annotations

from stoker.core.settings import KEYS, EngineSettings
from stoker.published import View

_OF_DOORS = {"secrets"}
"""What no engine goes by."""


def not_in_force(settings: EngineSettings, view: View | None) -> str:
    """A sentence on settings that the engine of a view does not go by; empty where there are none.

    It reads changed files again, but keeps its devices, and what flags and variables said when it was started.
    """
    if view is None or view.settings is None:
        return ""
    others = [key for key in KEYS if key not in _OF_DOORS and getattr(settings, key) != getattr(view.settings, key)]
    if not others:
        return ""
    verb = "takes" if len(others) == 1 else "take"
    return f"the engine was started with other settings: {', '.join(others)} {verb} effect after stoker engine stop"
