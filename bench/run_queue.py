"""Runs a list through Stoker's queue in the background, and prints the seconds from the first start to the last end."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from pathlib import Path

from cost import spend
from handing_in import hand_in, wait_until_over
from programs import OURS, SHELL, SLOTS
from stoker.core.spec import Command
from stoker.store.paths import Places, find_places


def main(commands: list[str]) -> float:
    """The engine starts when all is in the queue, so that submitting takes nothing from it."""
    variables = {**os.environ, "STOKER_DEVICES": ",".join(map(str, range(SLOTS)))}
    places = find_places(variables, os.uname().nodename, simulated=False)
    here = Path.cwd()
    hand_in(places, [Command((command,), SHELL) for command in commands], variables, str(here))
    stoker = str(OURS / "stoker")
    spend([stoker, "engine", "start"], here, variables)
    try:
        wait_until_over(places)
    finally:
        spend([stoker, "engine", "stop"], here, variables)
    return _seconds(places)


def _seconds(places: Places) -> float:
    with contextlib.closing(sqlite3.connect(places.database)) as database:
        ((first, last),) = database.execute("SELECT min(started), max(ended) FROM attempts").fetchall()
    return float(last - first)


if __name__ == "__main__":
    print(main(Path(sys.argv[1]).read_text().splitlines()))
