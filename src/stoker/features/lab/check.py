"""Which engines do not follow the rules of the machine (`stoker engine check`)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from stoker import __version__
from stoker.app.jobs.local_time import clock_text
from stoker.app.service.doctor import Subject, Verdict, note, ok
from stoker.app.views.summary import ledger_here
from stoker.core.lease import Lease
from stoker.ledger import LedgerView

GRACE_SECONDS = 10.0
"""How long an engine may take to see a booking or a drained device."""


def check(subject: Subject) -> Iterator[Verdict]:
    """Leases against bookings and drains of others, and engines of another version."""
    view, now = ledger_here(subject.paths).live(), time.time()
    found = [*_against_bookings(view, now), *_against_drains(view, now), *_other_versions(view)]
    yield from found or [ok("all engines follow the bookings and the GPUs that are drained for all")]


def _against_bookings(view: LedgerView, now: float) -> Iterator[Verdict]:
    for booking in view.bookings.values():
        known = max(booking.since, booking.made) + GRACE_SECONDS
        for lease in view.leases.values():
            names = {claim.name for claim in lease.claims}.intersection(booking.claims)
            if names and lease.owner != booking.owner and lease.since > known:
                since = clock_text(booking.since, now)
                yield _broken(lease, names, f"booked by {booking.owner} from {since}", now)


def _against_drains(view: LedgerView, now: float) -> Iterator[Verdict]:
    for lease in view.leases.values():
        for claim in lease.claims:
            drain = view.drained.get(claim.name)
            if drain is not None and lease.since > drain.since + GRACE_SECONDS:
                yield _broken(lease, {claim.name}, f"drained for all by {drain.by}", now)


def _broken(lease: Lease, names: set[str], rule: str, now: float) -> Verdict:
    job = f"job {lease.job} of {lease.owner}" if lease.job else lease.owner
    text = f"{job} has held {', '.join(sorted(names))} since {clock_text(lease.since, now)}, which is {rule}"
    return note(text, f"ask {lease.owner}: an older Stoker does not know such rules")


def _other_versions(view: LedgerView) -> Iterator[Verdict]:
    for owner, versions in sorted(view.programs.items()):
        for version in sorted(versions - {__version__}):
            runs = f"Stoker {version}" if version else "a Stoker that does not tell its version"
            yield note(
                f"an engine of {owner} runs {runs}, yours is {__version__}", "stoker engine restart, as that user"
            )
