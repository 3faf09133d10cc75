"""`stoker logs`: show the output of a job."""

from __future__ import annotations

import os
import shutil
import socket
import sys

import click

from stoker.core.errors import NoSuchJob
from stoker.places import find_places
from stoker.queue import newest_attempt, open_store


@click.command(name="logs")
@click.argument("job", type=int, required=False)
@click.option("--path", "only_path", is_flag=True, help="Print the name of the log file instead.")
@click.option("--sim", is_flag=True, help="A job of a run on simulated GPUs.")
def command(job: int | None, only_path: bool, sim: bool) -> None:
    """Show the output of a job, of the newest one where none is named.

    \b
      stoker logs            the newest job's output
      stoker logs 5          job 5's
      stoker logs 5 --path   where it is
    """
    simulated = sim or bool(os.environ.get("STOKER_SIM"))
    store = open_store(find_places(os.environ, socket.gethostname(), simulated=simulated))
    try:
        attempt = newest_attempt(store, job)
    finally:
        store.close()
    if attempt.log == "-":
        raise NoSuchJob(f"job {attempt.job} wrote to the terminal it was started from", "there is no file of it")
    if only_path:
        print(attempt.log)
        return
    try:
        for path in filter(None, (attempt.log, attempt.errors)):
            with open(path, "rb") as log:
                shutil.copyfileobj(log, sys.stdout.buffer)
    except OSError as error:
        raise NoSuchJob(f"the log of job {attempt.job} cannot be read: {error.strerror}", attempt.log) from error
