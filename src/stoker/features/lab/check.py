"""Which engines do not follow the rules of the machine (`stoker engine check`)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from stoker import __version__
from stoker.app.jobs.config import load_config
from stoker.app.jobs.limits import limits_of
from stoker.app.jobs.local_time import clock_text
from stoker.app.service.doctor import Subject, Verdict, note, ok
from stoker.app.views.summary import ledger_here
from stoker.core.errors import StokerError
from stoker.core.lease import Lease
from stoker.core.settings import LockedLimits
from stoker.ledger import LedgerView
from stoker.ledger.files import owner_name

GRACE_SECONDS = 10.0
"""How long an engine may take to see a booking or a drained device."""


def check(subject: Subject) -> Iterator[Verdict]:
    """Leases against bookings, drains and limits, and engines of another version."""
    view, now = ledger_here(subject.paths).live(), time.time()
    yield from rule_breaches(view, _locked(subject), now) or [
        ok("all engines follow bookings, drained GPUs and limits")
    ]


def rule_breaches(view: LedgerView, locked: Mapping[str, Any], now: float) -> list[Verdict]:
    return [
        *_against_bookings(view, now),
        *_against_drains(view, now),
        *_beyond_limits(view, locked),
        *_other_versions(view),
    ]


def _locked(subject: Subject) -> Mapping[str, Any]:
    try:
        return load_config(subject.environment, None).locked
    except StokerError:  # which the check of the configuration reports
        return {}


def _against_bookings(view: LedgerView, now: float) -> Iterator[Verdict]:
    for booking in view.bookings.values():
        binding_from = max(booking.since, booking.made) + GRACE_SECONDS
        for lease in view.leases.values():
            names = {claim.name for claim in lease.claims}.intersection(booking.claims)
            if names and lease.owner != booking.owner and lease.since > binding_from:
                since = clock_text(booking.since, now)
                yield _broken(lease, names, f"booked by {booking.owner} from {since}", now)


def _against_drains(view: LedgerView, now: float) -> Iterator[Verdict]:
    for lease in view.leases.values():
        for claim in lease.claims:
            drain = view.drained.get(claim.name)
            if drain is not None and lease.since > drain.since + GRACE_SECONDS:
                yield _broken(lease, {claim.name}, f"drained for all by {drain.by}", now)


def _beyond_limits(view: LedgerView, locked: Mapping[str, Any]) -> Iterator[Verdict]:
    """Users who hold more GPUs at once than they may."""
    held: dict[str, set[str]] = {}
    for name, lease in view.leases.items():
        held.setdefault(name.partition(".")[0], set()).update(claim.name for claim in lease.claims)
    for uid, names in held.items() if locked else ():
        most = limits_of(locked, int(uid)).gpus
        if most is not None and len(names) > most:
            text = f"{owner_name(int(uid))} holds {len(names)} GPUs; {LockedLimits.named('gpus')} allows {most}"
            yield note(text, "jobs that ran before the rule may run on; an older Stoker does not know it")


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
