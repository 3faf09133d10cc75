"""Who does not follow the rules of the machine, as the ledger shows it."""

from __future__ import annotations

import os

from stoker import __version__
from stoker.core.booking import Booking
from stoker.core.device import Drain
from stoker.core.lease import Claim, Lease
from stoker.features.lab.check import rule_breaches
from stoker.ledger import LedgerView

NOW = 1_700_000_000.0
NAME = f"{os.getuid()}.{'0' * 16}.lease"


def lease(since: float, *names: str) -> Lease:
    return Lease(tuple(map(Claim, names)), "alice", 1, "stoker", since, job="12")


def said(view: LedgerView, **locked: object) -> list[str]:
    return [verdict.text for verdict in rule_breaches(view, locked, NOW)]


def test_leases_on_booked_gpus() -> None:
    """Those that began after the booking; a job that ran before runs on, and the user's own count nothing."""
    booking = Booking("bob", 7, ("A",), NOW - 600.0, NOW + 600.0)
    for since, made, breaks in ((-500.0, -900.0, True), (-700.0, -900.0, False), (-500.0, -400.0, False)):
        view = LedgerView({NAME: lease(NOW + since, "A")}, bookings={"x": booking_made(booking, NOW + made)})
        assert bool(said(view)) is breaks
    view = LedgerView({NAME: lease(NOW - 500.0, "A")}, bookings={"x": booking})
    assert ["job 12 of alice has held A" in text and "booked by bob" in text for text in said(view)] == [True]
    own = Booking("alice", 8, ("A",), NOW - 600.0, NOW + 600.0)
    assert not said(LedgerView({NAME: lease(NOW - 500.0, "A")}, bookings={"x": own}))


def booking_made(booking: Booking, made: float) -> Booking:
    return Booking(booking.owner, booking.uid, booking.claims, booking.since, booking.until, "", made)


def test_leases_on_drained_gpus() -> None:
    """Those that began after the GPU was drained for all."""
    for since, count in ((-500.0, 1), (-700.0, 0)):
        view = LedgerView({NAME: lease(NOW + since, "A")}, drained={"A": Drain(NOW - 600.0, "root")})
        assert len(said(view)) == count


def test_more_gpus_than_allowed() -> None:
    """By the limit of the owner of the leases."""
    view = LedgerView({NAME: lease(NOW, "A", "B")})
    assert not said(view)
    assert not said(view, gpus=2)
    (text,) = said(view, gpus=1)
    assert "holds 2 GPUs; the rule gpus of" in text


def test_engines_of_other_versions() -> None:
    """And those that do not tell theirs."""
    assert not said(LedgerView({}, programs={"alice": frozenset([__version__])}))
    texts = said(LedgerView({}, programs={"alice": frozenset(["0.0.1", ""]), "bob": frozenset([__version__])}))
    assert len(texts) == 2
    assert "runs Stoker 0.0.1" in texts[1]
