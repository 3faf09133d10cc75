"""`stoker engine run`: be the engine; what `start` and the systemd unit call."""

from __future__ import annotations

import click

from stoker.cli.engine import places_for
from stoker.cli.room.start import service_options


@click.command(name="run", hidden=True)
@service_options
@click.option("--ready-fd", type=int, help="Descriptor to tell when it works.")
def command(sim: str | None, stay: bool, ready_fd: int | None, **flags: int | None) -> int:
    """Be the engine, in the foreground."""
    from stoker.cli.room.background import serve_queue

    serve_queue(places_for(sim), sim, ready_fd, stay=stay, flags=flags)
    return 0
