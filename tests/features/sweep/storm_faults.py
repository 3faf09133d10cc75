"""Faults of sweeps for the campaign."""

from __future__ import annotations

import contextlib

from features.sweep.storm import SweepStorm
from support.background import Background
from support.disk import small_disk
from support.faults.table import fault
from support.storm.background import QueueStorm


@fault("full-state-of-sweep", "an adaptive sweep goes on by itself when there is space again", needs=("root",))
def full_state_of_sweep(trial: QueueStorm) -> None:
    """No byte is free where the queue, the study and the log of the tuner are, while trials run."""
    trial.feed(1)
    home = trial.home / "sweep"
    home.mkdir()
    with small_disk(home / "state", "size=24m,mode=700") as disk, contextlib.closing(Background(home)) as background:
        storm = SweepStorm(background, trial.settings.seed, count=24)
        trial.broken += storm.fill(disk)
        trial.disruptions.update(storm.disruptions)


@fault("storm-of-sweeps", "no trial of a sweep is double, forgotten, or without an end", devices="declared")
def storm_of_sweeps(trial: QueueStorm) -> None:
    """Over an adaptive sweep: its tuner, engine, workers and trials, alone or all at once, and its study."""
    trial.feed(1)
    home = trial.home / "sweep"
    home.mkdir()
    with contextlib.closing(Background(home)) as background:
        storm = SweepStorm(background, trial.settings.seed, count=24)
        trial.broken += storm.run(kills=30)
        trial.disruptions.update(storm.disruptions)
