"""`stoker sweep stop` and `extend`."""

from __future__ import annotations

import click

from stoker.app.control.requests import opened
from stoker.cli.options import StokerCommand, controlling, wants_json, write_json
from stoker.core.units import count_text
from stoker.features.sweep.view import chosen_sweep
from stoker.store.paths import Paths


@click.command(name="stop", cls=StokerCommand)
@click.argument("sweep", required=False)
@click.option("--now", is_flag=True, help="Also stop running trials: SIGTERM, SIGKILL after their grace period.")
@controlling
def stop(*, sweep: str | None, now: bool, as_json: bool, paths: Paths) -> int:
    """Start no further trials of a sweep. Running trials finish, and count.

    Trials that are withdrawn or stopped end as `stopped`, which is no failure. `stoker sweep extend` continues.

    \b
      stoker sweep stop 12
      stoker sweep stop 12 --now
    """
    from stoker.features.sweep import change as sweep_change

    with opened(paths) as control:
        done = sweep_change.stop(control, chosen_sweep(control.store, sweep), now=now)
    if wants_json(as_json):
        write_json(done)
        return 0
    parts = [f"{count_text(done.withdrawn, 'waiting trial')} withdrawn"]
    parts += [f"stopping {count_text(done.stopping, 'trial')}"] if done.stopping else []
    parts += [f"{count_text(done.running, 'running trial')} will finish (--now stops them)"] if done.running else []
    print(f"sweep {done.id} stopped: {', '.join(parts)}")
    return 0


@click.command(name="extend", cls=StokerCommand)
@click.argument("sweep")
@click.argument("more", type=click.IntRange(1), metavar="N")
@controlling
def extend(*, sweep: str, more: int, as_json: bool, paths: Paths) -> int:
    """Let a sweep visit N points more. A sweep that was stopped goes on with N points.

    \b
      stoker sweep extend 12 20
      stoker sweep extend last 20
    """
    from stoker.features.sweep import change as sweep_change

    with opened(paths) as control:
        done = sweep_change.extend(control, chosen_sweep(control.store, sweep), more)
    if wants_json(as_json):
        write_json(done)
    else:
        print(f"sweep {done.id}: {count_text(done.added, 'trial')} more, {done.total} in all")
    return 0
