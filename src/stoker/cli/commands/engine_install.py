"""`stoker engine install`: let systemd start the engine with the machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from stoker.core.text import printable
from stoker.queue.systemd_unit import NAME, unit_path, unit_text, write_unit
from stoker.store.engine_lock import QUEUE, process_of
from stoker.store.paths import paths_for


@click.command(name="install")
@click.option("--print", "only_print", is_flag=True, help="Print the unit, and write nothing.")
def command(only_print: bool) -> int:
    """Let systemd start the engine with the machine: write a unit of your own, for which no root is needed.

    It says what to type next. A stop or restart of the unit leaves running jobs alone.
    """
    text = unit_text(program(), os.environ)
    if only_print:
        print(text, end="")
        return 0
    path = unit_path(os.environ)
    write_unit(path, text)
    print(f"wrote {printable(str(path))}; now type:", file=sys.stderr)
    for line in _next_steps():
        print(f"  {line}", file=sys.stderr)
    return 0


def program() -> list[str]:
    """The words that start this very program from anywhere."""
    script = Path(sys.executable).parent / "stoker"
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-P", "-m", "stoker"]


def _next_steps() -> list[str]:
    runs = process_of(paths_for(simulated=False), QUEUE) is not None
    return [
        *(["stoker engine stop                        # the one that runs now; jobs go on"] if runs else []),
        "systemctl --user daemon-reload",
        f"systemctl --user enable --now {NAME}",
        "loginctl enable-linger                    # it starts with the machine, and outlives your logout",
    ]
