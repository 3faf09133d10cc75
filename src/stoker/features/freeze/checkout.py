"""`stoker checkout`: the frozen code of a job as files of one's own."""

from __future__ import annotations

import os
from pathlib import Path

import click

from stoker.app.views.facts import read_facts
from stoker.cli.console import say
from stoker.cli.options import StokerCommand, complete_jobs, sim_option
from stoker.core.errors import StokerError, UsageError
from stoker.core.job import id_text
from stoker.core.units import count_text
from stoker.features.freeze.code_view import frozen_version, job_named, store_of
from stoker.store.paths import Paths


@click.command(name="checkout", cls=StokerCommand)
@click.argument("job", metavar="ID", shell_complete=complete_jobs)
@click.argument("folder", metavar="DIR")
@sim_option
def command(*, job: str, folder: str, paths: Paths) -> int:
    """Write the frozen code of a job into a new or empty directory, as files of your own.

    \b
      stoker checkout 12 /tmp/job12
    """
    with read_facts(paths) as facts:
        chosen = job_named(facts, job)
    snapshot, _ = frozen_version(paths, chosen)
    place = Path(os.path.abspath(folder))
    if os.path.lexists(place) and (not place.is_dir() or any(place.iterdir())):
        raise UsageError(f"{folder} is not an empty directory", "name a new one: nothing there is overwritten")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        store_of(paths, chosen).check_out(snapshot, place)
    except OSError as error:
        raise StokerError(
            f"cannot write {error.filename or place}: {error.strerror}", f"remove what is in {place}, and try again"
        ) from error
    say(f"wrote {count_text(len(snapshot.files), 'file')} of job {id_text(chosen)} to {place}")
    return 0
