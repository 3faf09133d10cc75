"""Waiting for what a test expects, instead of sleeping for luck."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_SECONDS = 30.0


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until the condition holds; fail when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.01)
