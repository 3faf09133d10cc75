"""`stoker status`: the GPUs, what runs on them, what waits and why."""

from __future__ import annotations

import os
import socket
import sys
import time

import click
import msgspec

from stoker.cli import engine_views
from stoker.cli.knowledge import Knowledge, user_here
from stoker.cli.queue_plain import jobs_plain
from stoker.cli.queue_scene import Status
from stoker.cli.queue_status import status_of
from stoker.places import Places, find_places
from stoker.queue import open_store

MOST_LINES = 200
"""How many waiting jobs are read where nobody asked for all."""


@click.command(name="status")
@click.option("-a", "--all", "everything", is_flag=True, help="Every job, and every task of an array.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON value.")
@click.option("--plain", is_flag=True, help="TAB separated; the default where the output is no terminal.")
@click.option("--sim", is_flag=True, help="The queue of simulated GPUs.")
def command(everything: bool, as_json: bool, plain: bool, sim: bool) -> int:
    """The GPUs, what runs on them, what waits and why.

    \b
      stoker status          the first screen; so does stoker alone
      stoker status 12       everything about job 12
      stoker status --json   for programs
    """
    status = read_status(places_here(sim), None if everything else MOST_LINES, everything=everything)
    if as_json or os.environ.get("STOKER_OUTPUT") == "json":
        sys.stdout.write(msgspec.json.encode(status).decode() + "\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in jobs_plain(status.jobs)))
    return 0


def places_here(sim: bool) -> Places:
    """The state directory, that of simulated GPUs where they are meant."""
    simulated = sim or bool(os.environ.get("STOKER_SIM"))
    return find_places(os.environ, socket.gethostname(), simulated=simulated)


def read_status(places: Places, limit: int | None, *, everything: bool = False) -> Status:
    """The queue now."""
    now = time.time()
    views = engine_views.look(places, now)
    store = open_store(places)
    try:
        with store.glance():
            knowledge = Knowledge(store, views, now, user_here())
            return status_of(knowledge, socket.gethostname(), limit, each_task=everything)
    finally:
        store.close()
