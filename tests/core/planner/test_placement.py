"""Which resources a machine can meet, and which set of devices is best."""

from __future__ import annotations

import msgspec
import pytest

from stoker.core.device import Device
from stoker.core.planner.placement import DeviceOffer, choose
from stoker.core.planner.reasons import most_at_once, never_fits
from stoker.core.spec import Resources
from support.build import a_need, declared, simulated

FOUR = simulated(24, 24, 24, 24)
MIXED = simulated(24, 8)


def near(devices: tuple[Device, ...], *pairs: str) -> tuple[Device, ...]:
    """The devices, each closest to the other of its pair."""
    partner = {pair[0]: pair[1] for pair in pairs} | {pair[1]: pair[0] for pair in pairs}
    ids = [device.id for device in devices]

    def order(own: str) -> tuple[str, ...]:
        return tuple(sorted((other for other in ids if other != own), key=lambda other: other != partner[own]))

    return tuple(msgspec.structs.replace(device, near=order(device.id)) for device in devices)


def chosen(devices: tuple[Device, ...], count: int, *ranks: float) -> list[str] | None:
    """Ids of the best set, where the devices are listed in order and have these ranks."""
    offers = [DeviceOffer((ranks[index] if ranks else 0,), index, device) for index, device in enumerate(devices)]
    best = choose(offers, count)
    return None if best is None else [device.id for device in best]


@pytest.mark.parametrize(
    ("resources", "devices", "sentence"),
    [
        (a_need(5), FOUR, "needs 5 GPUs; this machine has 4"),
        (a_need(1), (), "needs 1 GPU; this machine has none"),
        (a_need(1, gib=48), MIXED, "needs 48.0G on a GPU; the largest has 24.0G"),
        (a_need(2, gib=20), MIXED, "needs 2 GPUs of 20.0G; this machine has 1"),
        (a_need(1, allowed=["7"]), simulated(24, 24, 24), "no device 7; known devices: 0, 1, 2"),
        (a_need(3, allowed=["0", "1"]), FOUR, "needs 3 GPUs; 2 are allowed"),
        (a_need(2, allowed=["0"]), FOUR, "needs 2 GPUs; 1 is allowed"),
        (a_need(2), declared("0", "0"), "needs 2 GPUs; this machine has 1"),
        (Resources(model="a100"), declared("0"), "needs a GPU of type 'a100'; available: none of known type"),
        (
            Resources(model="a100"),
            (msgspec.structs.replace(FOUR[0], model="NVIDIA A40"),),
            "needs a GPU of type 'a100'; available: NVIDIA A40",
        ),
    ],
)
def test_why_resources_never_fit(resources: Resources, devices: tuple[Device, ...], sentence: str) -> None:
    """The sentence names what is asked for and what exists."""
    assert never_fits(resources, devices) == sentence


@pytest.mark.parametrize(
    ("resources", "devices"),
    [
        (a_need(0), ()),
        (a_need(4), FOUR),
        (a_need(1, gib=24), MIXED),
        (a_need(1, gib=48), declared("0")),
        (a_need(1, allowed=["0", "7"]), MIXED),
        (a_need(2), declared("0", "0", "1")),
    ],
)
def test_resources_that_fit_have_no_sentence(resources: Resources, devices: tuple[Device, ...]) -> None:
    """A GPU of exactly the size fits, a device of unknown memory fits, one allowed device is enough."""
    assert never_fits(resources, devices) is None


def test_the_lowest_rank_then_the_first_listed_is_taken() -> None:
    """Rank says how good a device is, order breaks ties."""
    assert chosen(FOUR, 1, 1, 0, 0, 1) == ["1"]
    assert chosen(FOUR, 3, 1, 0, 1, 0) == ["1", "3", "0"]


def test_near_devices_are_chosen_together() -> None:
    """Among equals the set with the shortest distances is chosen."""
    assert chosen(near(FOUR, "02", "13"), 2) == ["0", "2"]
    assert chosen(near(FOUR, "01", "23")[1:], 2) == ["2", "3"]


def test_rank_counts_more_than_nearness() -> None:
    """A preferred device is worth a longer distance."""
    assert chosen(near(FOUR, "01", "23"), 2, 0, 1, 0, 1) == ["0", "2"]


def test_a_job_never_gets_the_same_claim_twice() -> None:
    """A GPU that is listed twice is still one GPU to a job."""
    assert chosen(declared("0", "0", "1"), 2) == ["0", "1"]
    assert chosen(declared("0", "0"), 2) is None


def test_slots_of_several_gpus_do_not_hide_the_single_ones() -> None:
    """Wide slots that come first in the list do not reduce the number of devices found."""
    words = ["0,1", "2,3", "0", "1", "2", "3"]
    devices = tuple(Device(word, word, word, tuple(word.split(",")), "declared", share=2) for word in words)
    assert most_at_once(devices) == 4
    assert chosen(devices, 4) == ["0", "1", "2", "3"]
