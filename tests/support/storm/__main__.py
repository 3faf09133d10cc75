"""Storms by hand, which is what `make storm` does; what went wrong stays to be looked at."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from support.cli import Stoker
from support.signals import reset_for_children
from support.storm.background import QueueStorm
from support.storm.foreground import RunStorm
from support.storm.promises import tally
from support.storm.sharing import tally_of_sharing
from support.storm.weather import CHECK, LONG, SHARED, SIMULATED, Weather


def main(arguments: Sequence[str] | None = None) -> int:
    """Storms with several seeds, one after the other; 1 where anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from the seed on")
    parser.add_argument("--check", action="store_true", help="as large as the one of make check")
    parser.add_argument("--shared", action="store_true", help="as large as the one of make check over shared GPUs")
    parser.add_argument("--foreground", action="store_true", help="over foreground runs in place of the queue")
    for name, value in vars(LONG).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value))
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value is not None}
    count, check, shared, foreground = [given.pop(name) for name in ("seeds", "check", "shared", "foreground")]
    usual = replace(Weather() if foreground else CHECK if check else SHARED if shared else LONG, **given)
    weathers = [_with_seed(usual, usual.seed + step) for step in range(count)]
    return max([_weathered(weather, foreground=foreground) for weather in weathers])


def _with_seed(weather: Weather, seed: int) -> Weather:
    """Every second storm is over simulated devices: jobs share them, and a driver is asked between two attempts."""
    return replace(weather, seed=seed, sim=weather.sim or (SIMULATED if seed % 2 == 0 else ""))


def _weathered(weather: Weather, *, foreground: bool) -> int:
    home = Path(tempfile.mkdtemp(prefix="storm-"))
    began = time.monotonic()
    try:
        faults = _run_storm(weather, home) if foreground else _queue_storm(weather, home)
    except AssertionError as error:
        faults = [f"it never came to its end: {error}"]
    print(f"seed {weather.seed}: {len(faults)} faults, {time.monotonic() - began:.0f} s", *faults, sep="\n", flush=True)
    if faults:
        print(f"see {home}")
    else:
        shutil.rmtree(home)
    return 1 if faults else 0


def _run_storm(weather: Weather, home: Path) -> list[str]:
    with contextlib.closing(Stoker(home)) as stoker, contextlib.closing(RunStorm(stoker, weather)) as storm:
        storm.rage()
        print(storm.evidence().counts(), dict(storm.blows), sep="; ")
        return storm.faults()


def _queue_storm(weather: Weather, home: Path) -> list[str]:
    with contextlib.closing(QueueStorm(home, weather)) as storm:
        storm.rage()
        evidence = storm.evidence()
        print(evidence.counts(), tally_of_sharing(evidence), tally(storm.book), dict(storm.blows), sep="; ")
        return storm.faults()


if __name__ == "__main__":
    reset_for_children()
    sys.exit(main())
