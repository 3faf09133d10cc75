"""How much is set aside for a job, by what it asks for and what was learnt."""

from __future__ import annotations

import msgspec
import pytest

from stoker.core.device import Device
from stoker.core.job import Assigned, Edited, Event, Started
from stoker.core.spec import Need, Terms
from stoker.queue.view_model import amount_now, amount_to_come, mode_of, needs_of_attempts
from support.build import GIB, simulated

SMALL, LARGE = (
    msgspec.structs.replace(device, model=model)
    for device, model in zip(simulated(24, 80), ("small", "large"), strict=True)
)
KNOWN = Need(auto=True, predicted=(("large", 9 * GIB), ("small", 7 * GIB)))


@pytest.mark.parametrize(
    ("need", "mode"),
    [(Need(), "all"), (Need(memory=GIB), "size"), (Need(auto=True), "auto"), (Need(gpus=0), "none")],
)
def test_modes(need: Need, mode: str) -> None:
    """A size, what is learnt, the whole card, or no card at all."""
    assert mode_of(need) == mode


@pytest.mark.parametrize(
    ("need", "devices", "amount"),
    [
        (Need(), (SMALL,), None),
        (Need(memory=GIB), (SMALL,), GIB),
        (Need(memory=GIB), (), GIB),
        (KNOWN, (SMALL,), 7 * GIB),
        (KNOWN, (SMALL, LARGE), 7 * GIB),
        (Need(auto=True), (SMALL,), None),
    ],
)
def test_a_job_that_runs(need: Need, devices: tuple[Device, ...], amount: int | None) -> None:
    """What it can count on, on each of its GPUs."""
    assert amount_now(need, devices) == amount


@pytest.mark.parametrize(
    ("need", "devices", "amount"),
    [
        (Need(), (SMALL,), None),
        (Need(memory=30 * GIB), (SMALL, LARGE), 30 * GIB),
        (KNOWN, (SMALL, LARGE), 9 * GIB),
        (msgspec.structs.replace(KNOWN, model="small"), (SMALL, LARGE), 7 * GIB),
        (KNOWN, (), 9 * GIB),
        (Need(auto=True), (SMALL,), None),
        (Need(gpus=0, memory=GIB), (SMALL,), None),
    ],
)
def test_a_job_that_waits(need: Need, devices: tuple[Device, ...], amount: int | None) -> None:
    """The most that it will get on a GPU that suits it."""
    assert amount_to_come(need, devices) == amount


def test_attempts() -> None:
    """Each had what was decided when it was assigned, or what it asked for; before a change nobody knows that."""
    first, plain = Assigned("k", ("0",), "", 1.0, need=KNOWN), Assigned("k", ("0",), "", 2.0)
    events: list[Event] = [first, Started(1, 1.0), plain]
    assert needs_of_attempts(events, Need(auto=True)) == [KNOWN, Need(auto=True)]
    changed = Edited(3.0, Terms(need=Need(memory=GIB)), "")
    assert needs_of_attempts([*events, changed, plain], Need()) == [KNOWN, None, Need(memory=GIB)]
    assert amount_now(None, (SMALL,)) is None
