"""Storms: hundreds of kills of engines, forkservers and workers on one queue."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from support.cli import Stoker
from support.faults.kills import AGAIN
from support.faults.table import fault
from support.storm.background import QueueStorm
from support.storm.foreground import RunStorm
from support.storm.settings import CHECK, LONG, SHARED, StormSettings


@fault("storm", AGAIN, devices="declared")
def storm(trial: QueueStorm) -> None:
    """On devices without memory."""
    _rage(trial, CHECK)


@fault("storm-shared", AGAIN, devices="simulated")
def storm_shared(trial: QueueStorm) -> None:
    """On devices with memory, which jobs share."""
    _rage(trial, SHARED)


@fault("storm-of-runs", "a foreground run that is killed goes on with --resume where it was", devices="declared")
def storm_of_runs(trial: QueueStorm) -> None:
    """Over lists of `stoker run --resume`, beside a queue that has nothing to do."""
    trial.feed(1)
    home = trial.home / "runs"
    home.mkdir()
    settings = StormSettings(seed=trial.settings.seed, lists=2, engines=2)
    with contextlib.closing(Stoker(home)) as stoker, contextlib.closing(RunStorm(stoker, settings)) as runs:
        runs.run()
        trial.broken += runs.faults()
        trial.disruptions.update(runs.disruptions)


@fault("storm-long", AGAIN, usual=False)
def storm_long(trial: QueueStorm) -> None:
    """5,000 jobs and 300 kills."""
    _rage(trial, LONG)


def _rage(trial: QueueStorm, settings: StormSettings) -> None:
    trial.settings = replace(settings, seed=trial.settings.seed, sim=trial.sim)
    trial.run()
