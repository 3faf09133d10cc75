"""An engine beside bookings: its preemptible jobs leave in time, and what its user booked is left to no other."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from stoker.core.booking import Booking
from stoker.core.job import Running, state_word
from stoker.core.planner.fairshare import Demand
from stoker.core.planner.reasons import Booked
from stoker.ledger import Ledger
from stoker.sites.machine import site as machine_site
from stoker.sites.machine.observation import REFRESH_INTERVAL, Observation
from support.fakes import START, EngineOnFakeRunner, FakeDevices

HOUR = 3600.0


def book(world: EngineOnFakeRunner, monkeypatch: pytest.MonkeyPatch, after: float, *, of_another: bool = True) -> None:
    """Book the first device for an hour; the wall clock goes with that of the engine."""
    monkeypatch.setattr(time, "time", world.clock)
    now = time.time()
    ledger = Ledger(world.ledger.path)
    assert isinstance(
        ledger.agreements.book(Booking("", 0, ("name:0",), now + after, now + after + HOUR, "deadline")), str
    )
    if of_another:
        monkeypatch.setattr(
            machine_site, "of_others", lambda bookings, uid: [replace(booking, uid=uid + 1) for booking in bookings]
        )


def look(world: EngineOnFakeRunner) -> None:
    world.clock.pass_seconds(REFRESH_INTERVAL)
    world.turn(2)


def device_of(world: EngineOnFakeRunner, job_id: int) -> tuple[str, ...]:
    state = world.job(job_id).state
    return getattr(state, "devices", ())


def test_preemptible_jobs_leave_before_it_begins(world: EngineOnFakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on the booked device, whatever else they may: early enough to save; others run on."""
    ids = world.add(preemptible="save", save_time=10.0), world.add(preemptible="save", save_time=10.0)
    keys = {job_id: world.run(job_id) for (job_id,) in ids}
    world.turn()
    (booked,) = [job_id for job_id in keys if device_of(world, job_id) == ("0",)]
    book(world, monkeypatch, 60.0)
    look(world)
    assert world.runner.called("give_way") == []
    world.clock.pass_seconds(45.0)
    look(world)
    assert [call[1] for call in world.runner.called("give_way")] == [keys[booked]]
    state = world.job(booked).state
    assert isinstance(state, Running)
    assert state.giving_way is not None
    assert "who has booked its GPU" in state.giving_way.note
    world.runner.exited(keys[booked], 75, "preempted")
    look(world)
    assert state_word(world.job(booked)) == "waiting"
    assert isinstance(world.site.reason(world.job(booked)), Booked)


def test_a_booking_of_ones_own_stops_nothing(world: EngineOnFakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its devices are not offered to a user who has used less."""
    book(world, monkeypatch, 0.0, of_another=False)
    look(world)
    ledger = Ledger(world.ledger.path)
    held = ledger.demand(Demand(0, "", 0.0, 0.0, 2))
    (first,), (second,) = world.add(), world.add()
    look(world)
    ledger.retract(held)
    assert ("0",) in {device_of(world, first), device_of(world, second)}


def test_bookings_follow_the_wall_clock(world: EngineOnFakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """If that jumps, the times by the engine's own clock jump, too."""
    observation = Observation(FakeDevices(), world.ledger, START)
    book(world, monkeypatch, 100.0)
    observation.refresh(START, (), waiting=False)
    assert observation.bookings[0].since == pytest.approx(START + 100.0, abs=5.0)
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 50.0)
    observation.expire()
    observation.refresh(START + 1.0, (), waiting=False)
    assert observation.bookings[0].since == pytest.approx(START + 51.0, abs=5.0)
