"""How a script that starts a scheduler can be read in an instance's process without starting another one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_reading = False


class FarEnough(BaseException):
    """A script has come to the scheduler's start: all that instances need of it is defined."""


def read_up_to_the_scheduler(script: Callable[[], None]) -> None:
    """Run a script to its end, or until it starts a scheduler."""
    global _reading
    _reading = True
    try:
        script()
    except FarEnough:
        pass
    finally:
        _reading = False


def stop_if_only_read() -> None:
    """Called by a scheduler that is to start."""
    if _reading:
        raise FarEnough
