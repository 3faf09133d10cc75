"""How often files of other machines are looked at."""

from __future__ import annotations

import pytest

from stoker.features.slurm.pace import PollPace


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
