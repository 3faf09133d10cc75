"""Engines, forkservers and workers killed at random: nothing runs twice, no exit code is lost, nothing is left over."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from support.cli import Stoker
from support.storm.background import QueueStorm
from support.storm.foreground import RunStorm
from support.storm.settings import CHECK, SHARED, StormSettings

pytestmark = pytest.mark.timeout(600)


def test_a_storm_over_foreground_runs_does_no_harm(stoker: Stoker) -> None:
    """What jobs wrote down themselves is what the store says, attempt by attempt, whoever was killed meanwhile."""
    with contextlib.closing(RunStorm(stoker, StormSettings(seed=1))) as storm:
        storm.run()
        assert storm.faults() == []
        assert (storm.disruptions["engine"], storm.disruptions["forkserver"], storm.disruptions["worker"]) == (12, 4, 4)


def test_a_storm_over_the_queue_does_no_harm(tmp_path: Path) -> None:
    """Jobs of all kinds, meddled with while their engine dies again and again, end as they were asked to."""
    with contextlib.closing(QueueStorm(tmp_path, CHECK)) as storm:
        storm.run()
        assert storm.faults() == [], "once more: make faults FAULTS='--only storm --rounds 1'"
        assert (storm.disruptions["engine"], storm.disruptions["forkserver"], storm.disruptions["worker"]) == (35, 7, 7)


def test_a_storm_over_shared_gpus_does_no_harm(tmp_path: Path) -> None:
    """Jobs that share GPUs, some of them taking too much, have room meanwhile, and none pays for its company."""
    with contextlib.closing(QueueStorm(tmp_path, SHARED)) as storm:
        storm.run()
        assert storm.faults() == [], "once more: make faults FAULTS='--only storm-shared --rounds 1'"
        assert (storm.disruptions["engine"], storm.disruptions["forkserver"], storm.disruptions["worker"]) == (16, 4, 5)
