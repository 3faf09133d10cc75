"""Jobs of a foreground run that is gone, and what they need to go on in the background."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stoker.cli.control.wishes import Control
from stoker.core.attempt import INHERIT
from stoker.core.job import Job
from stoker.core.terms import Terms
from stoker.queue import is_served
from stoker.store import choosing


def abandoned(control: Control, jobs: Sequence[Job]) -> set[int]:
    """Ids of those jobs whose foreground run is gone."""
    owners = choosing.owners_of(control.store, [job.id for job in jobs])
    gone = [owner for owner in owners if not is_served(control.places, owner)]
    return {job_id for owner in gone for job_id in owners[owner]}


def terms_in_the_queue(control: Control, terms: Terms) -> Terms:
    """The same terms, with a log file in place of the terminal that the run had."""
    if INHERIT not in (terms.out, terms.err):
        return terms
    control.places.logs.mkdir(mode=0o700, exist_ok=True)
    log = default_log(control)
    out = log if terms.out == INHERIT else terms.out
    return msgspec.structs.replace(terms, out=out, err="" if terms.err == INHERIT else terms.err)


def default_log(control: Control) -> str:
    """Where the output of a job goes that says nothing about it."""
    return str(control.places.logs).replace("%", "%%") + "/%j.log"
