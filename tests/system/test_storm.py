"""Engines, forkservers and keepers killed at random: nothing runs twice, no exit code is lost, nothing is left over."""

from __future__ import annotations

import contextlib

from support.cli import Stoker
from support.storm import Judgement, Storm, Weather


def test_a_storm_does_no_harm(stoker: Stoker) -> None:
    """What jobs wrote down themselves is what the store says, attempt by attempt, whoever was killed meanwhile."""
    with contextlib.closing(Storm(stoker, Weather(seed=1, jobs=150))) as storm:
        storm.rage()
        judgement = Judgement(storm)
        assert judgement.faults() == []
        assert judgement.repeated() == {}
        assert (storm.blows["engine"], storm.blows["forkserver"], storm.blows["keeper"]) == (12, 4, 4)
