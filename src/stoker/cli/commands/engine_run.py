"""`stoker engine run`: be the engine; what `start` and the systemd unit call."""

from __future__ import annotations

import click

from stoker.cli.commands.engine_start import service_options
from stoker.store.paths import paths_for


@click.command(name="run", hidden=True)
@service_options
@click.option("--ready-fd", type=int, help="Descriptor to tell when it works.")
def command(sim: str | None, stay: bool, ready_fd: int | None, **flags: int | None) -> int:
    """Be the engine, in the foreground."""
    from stoker.cli.commands.engine_start import serve_queue

    serve_queue(paths_for(sim), sim, ready_fd, stay=stay, flags=flags)
    return 0
