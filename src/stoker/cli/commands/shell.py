"""`stoker shell`: an interactive session on GPUs of its own."""

from __future__ import annotations

import os
from typing import Any

import click

from stoker.cli.commands.run import run_session
from stoker.cli.job_options import TypedCommand, job_options, option
from stoker.cli.options import sim_option
from stoker.core.spec import shell_of


@click.command(name="shell", cls=TypedCommand, context_settings={"allow_interspersed_args": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]")
@job_options
@option("--idle", metavar="DUR", help="Warn, then end the session after this time without keyboard, GPU or CPU use.")
@option("--devices", metavar="IDS", help="Use only these devices; without a driver, any names.")
@sim_option
@option("--max-use", type=click.IntRange(1), metavar="N", help="Use at most N GPUs at once, including your other runs.")
@option("--min-free", type=click.IntRange(0), metavar="N", help="Leave N free GPUs to others.")
def command(words: tuple[str, ...], **values: Any) -> int:
    """Start an interactive session with GPUs in this terminal.

    \b
      stoker shell -G 1 -t 2h              your shell, with one GPU for two hours
      stoker shell -m 8G python            Python with 8G of a shared GPU
      stoker shell --idle 30m jupyter lab  shows the ssh command that forwards its port

    It waits until the GPUs are free, and shows why and about when; Ctrl-C stops waiting. The session is a job like any
    other: status shows it, cancel ends it, edit changes its time limit. When this terminal goes away (ssh), it ends,
    as a login shell does; use it inside tmux to keep it. Its exit code is that of the command.
    """
    return run_session(values, words or (shell_of(os.environ),), forward_ports=bool(words))
