"""When a session counts as idle."""

from __future__ import annotations

from functools import partial

from stoker.cli.session import Idle, Use


def checked(idle: Idle, *checks: tuple[float, float, int, bool]) -> list[str]:
    """What is said at each check: the time, CPU seconds, GPU load, and whether keys were pressed."""
    return [idle.check(partial(Use, cpu, gpu), at, keys=keys) for at, cpu, gpu, keys in checks]


def test_nothing_is_used() -> None:
    """A warning comes once, a quarter before the end, then the end."""
    idle = Idle(100.0)
    said = checked(idle, (0, 5, 0, False), (50, 5, 0, False), (80, 5, 0, False), (90, 5, 0, False))
    assert ([bool(text) for text in said], idle.over) == ([False, False, True, False], False)
    checked(idle, (101, 5, 0, False))
    assert idle.over


def test_any_use_counts() -> None:
    """A key, load of the GPU, or CPU time starts the count again; a little CPU time does not."""
    for use in ((80.0, 5.0, 0, True), (80.0, 5.0, 10, False), (80.0, 20.0, 0, False)):
        idle = Idle(100.0)
        checked(idle, (0, 5, 0, False), use, (101, use[1], 0, False))
        assert not idle.over, use
    idle = Idle(100.0)
    checked(idle, (0, 5, 0, False), (80, 6, 0, False), (101, 6.2, 0, False))
    assert idle.over


def test_a_new_warning_after_use() -> None:
    """Use after a warning takes it back, and the next idle time is warned of again."""
    idle = Idle(100.0)
    said = checked(idle, (0, 0, 0, False), (80, 0, 0, False), (90, 0, 0, True), (170, 0, 0, False))
    assert [bool(text) for text in said] == [False, True, False, True]
