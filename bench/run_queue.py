"""Runs a list through Stoker's queue in the background, and prints the seconds from the first start to the last end."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from pathlib import Path

from cost import spend
from programs import OURS, SHELL, SLOTS
from stoker.core.spec import Command
from stoker.store.paths import Paths, find_paths
from submit_jobs import submit_all, wait_until_over


def main(commands: list[str]) -> float:
    """The engine starts when all is in the queue, so that submitting takes nothing from it."""
    variables = {**os.environ, "STOKER_DEVICES": ",".join(map(str, range(SLOTS)))}
    paths = find_paths(variables, os.uname().nodename, simulated=False)
    here = Path.cwd()
    submit_all(paths, [Command((command,), SHELL) for command in commands], variables, str(here))
    stoker = str(OURS / "stoker")
    spend([stoker, "engine", "start"], here, variables)
    try:
        wait_until_over(paths)
    finally:
        spend([stoker, "engine", "stop"], here, variables)
    return _seconds(paths)


def _seconds(paths: Paths) -> float:
    with contextlib.closing(sqlite3.connect(paths.database)) as database:
        ((first, last),) = database.execute("SELECT min(started), max(ended) FROM attempts").fetchall()
    return float(last - first)


if __name__ == "__main__":
    print(main(Path(sys.argv[1]).read_text().splitlines()))
