"""Pauses between looks, and waiting for a condition."""

from __future__ import annotations

import time
from itertools import accumulate

import pytest

from stoker.python.connection import LATENESS
from stoker.store.waiting import Backoff, PollPace, wait_until


def test_pauses_grow_up_to_the_longest() -> None:
    """By half each time, and begin again after something has happened."""
    pauses = Backoff(0.1, 0.3)
    assert [pauses.next() for _ in range(5)] == pytest.approx([0.1, 0.15, 0.225, 0.3, 0.3])
    pauses.reset()
    assert pauses.next() == 0.1


def test_slow_results_are_seen_soon() -> None:
    """The watcher of the Python interface looks again after a twentieth of the time since the last end."""
    pauses = Backoff(0.004, growth=1 + LATENESS)
    waited = [pauses.next() for _ in range(95)]
    for idle, pause in zip(accumulate(waited), waited[1:], strict=False):
        assert pause == pytest.approx(0.004 + LATENESS * idle)
    assert [pauses.next() for _ in range(10)][-1] == 0.5


def test_a_condition_that_holds_is_not_waited_for() -> None:
    """Not even if there is no time for it."""
    assert wait_until(lambda: True, -1.0)


def test_a_condition_is_tried_until_it_holds() -> None:
    """It is tried once more when the time is over."""
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), 60.0)
    began = time.monotonic()
    assert not wait_until(lambda: False, 0.05)
    assert time.monotonic() - began >= 0.05


def test_looks_follow_each_other_quickly_while_there_are_news() -> None:
    """Without news they become rare, up to the slowest pace; one with news makes them frequent again."""
    pace, now = PollPace(0.02, 0.5, 100), 10.0
    pace.looked(now, 0.001, news=True)
    assert pace.at == pytest.approx(10.02)
    waits = []
    for _ in range(12):
        pace.looked(now, 0.001, news=False)
        waits.append(pace.at - now)
    assert waits == sorted(waits)
    assert [waits[0], waits[-1]] == pytest.approx([0.1, 0.5])
    pace.looked(now, 0.001, news=True)
    assert pace.at == pytest.approx(10.02)


def test_a_slow_look_without_news_is_rare() -> None:
    """It takes at most one part in so many of the time; one with news is no waste."""
    pace = PollPace(0.02, 0.5, 100)
    pace.looked(10.0, 0.03, news=False)
    assert pace.at == pytest.approx(13.0)
    pace.looked(10.0, 0.03, news=True)
    assert pace.at == pytest.approx(10.02)
