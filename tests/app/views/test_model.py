"""How much is set aside for a job, by what it asks for and what was learnt."""

from __future__ import annotations

import msgspec
import pytest

from stoker.core.amounts import amount_now, amount_to_come, mode_of, resources_of_attempts
from stoker.core.device import Device
from stoker.core.job import Assigned, Edited, Event, Started
from stoker.core.spec import JobSpec, Resources
from support.build import GIB, simulated

SMALL, LARGE = (
    msgspec.structs.replace(device, model=model)
    for device, model in zip(simulated(24, 80), ("small", "large"), strict=True)
)
KNOWN = Resources(auto=True, predicted=(("large", 9 * GIB), ("small", 7 * GIB)))


@pytest.mark.parametrize(
    ("resources", "mode"),
    [
        (Resources(), "all"),
        (Resources(memory=GIB), "size"),
        (Resources(auto=True), "auto"),
        (Resources(gpus=0), "none"),
    ],
)
def test_modes(resources: Resources, mode: str) -> None:
    """A size, what is learnt, the whole card, or no card at all."""
    assert mode_of(resources) == mode


@pytest.mark.parametrize(
    ("resources", "devices", "amount"),
    [
        (Resources(), (SMALL,), None),
        (Resources(memory=GIB), (SMALL,), GIB),
        (Resources(memory=GIB), (), GIB),
        (KNOWN, (SMALL,), 7 * GIB),
        (KNOWN, (SMALL, LARGE), 7 * GIB),
        (Resources(auto=True), (SMALL,), None),
    ],
)
def test_a_job_that_runs(resources: Resources, devices: tuple[Device, ...], amount: int | None) -> None:
    """What it can count on, on each of its GPUs."""
    assert amount_now(resources, devices) == amount


@pytest.mark.parametrize(
    ("resources", "devices", "amount"),
    [
        (Resources(), (SMALL,), None),
        (Resources(memory=30 * GIB), (SMALL, LARGE), 30 * GIB),
        (KNOWN, (SMALL, LARGE), 9 * GIB),
        (msgspec.structs.replace(KNOWN, model="small"), (SMALL, LARGE), 7 * GIB),
        (KNOWN, (), 9 * GIB),
        (Resources(auto=True), (SMALL,), None),
        (Resources(gpus=0, memory=GIB), (SMALL,), None),
    ],
)
def test_a_job_that_waits(resources: Resources, devices: tuple[Device, ...], amount: int | None) -> None:
    """The most that it will get on a GPU that suits it."""
    assert amount_to_come(resources, devices) == amount


def test_attempts() -> None:
    """Each had what was decided when it was assigned, or what it asked for; before a change nobody knows that."""
    first, plain = Assigned("k", ("0",), "", 1.0, resources=KNOWN), Assigned("k", ("0",), "", 2.0)
    events: list[Event] = [first, Started(1, 1.0), plain]
    assert resources_of_attempts(events, Resources(auto=True)) == [KNOWN, Resources(auto=True)]
    changed = Edited(3.0, JobSpec(resources=Resources(memory=GIB)), "")
    assert resources_of_attempts([*events, changed, plain], Resources()) == [KNOWN, None, Resources(memory=GIB)]
    assert amount_now(None, (SMALL,)) is None
