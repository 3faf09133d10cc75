"""What GPUs did in a minute, in one sample each."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.device import Reading
from stoker.core.job import Running, Starting
from stoker.core.spec import Resources
from stoker.engine.sampler import Sampler
from stoker.store.samples import Sample
from support.build import GIB, a_job, a_snapshot, declared, simulated

START = 1_000_020.0
MINUTE = int(START // 60)
DEVICES = simulated(24, 24)
ON_FIRST = Running(1, "w1", ("0",), START, "")


def test_a_minute_is_summed_up() -> None:
    """Mean load and power, the most memory and heat; memory is reserved by jobs that have started."""
    jobs = [
        a_job(1, Resources(memory=6 * GIB), state=ON_FIRST),
        a_job(2, Resources(), state=Running(1, "w2", ("1",), START, "")),
        a_job(3, Resources(memory=GIB), state=Starting(1, "w3", ("0",), START, "")),
    ]
    sampler = Sampler()
    looks = [Reading(3 * GIB, 10, 50, 100.0), Reading(5 * GIB, 40, 70, 300.0), Reading(GIB, None, 60, None)]
    for second, reading in enumerate(looks):
        assert sampler.note(a_snapshot(DEVICES, gpu0=reading), jobs, START + second) == []
    first, second_device = sampler.note(a_snapshot(DEVICES), [], START + 60)
    assert first == Sample(MINUTE, "0", 25, 5 * GIB, 6 * GIB, 70, 200.0)
    assert second_device == Sample(MINUTE, "1", None, 0, 24 * GIB, None, None)


def test_minutes_without_a_look_have_no_sample() -> None:
    """A stopped engine leaves a gap."""
    sampler = Sampler()
    sampler.note(a_snapshot(DEVICES), [], START)
    assert [one.minute for one in sampler.note(a_snapshot(DEVICES), [], START + 600)] == [MINUTE] * 2
    assert [one.minute for one in sampler.note(a_snapshot(DEVICES), [], START + 660)] == [MINUTE + 10] * 2


def test_only_whole_gpus_are_sampled() -> None:
    """Declared devices have no readings, and inside of a job only a part of a GPU is seen."""
    part = replace(DEVICES[0], whole=80 * GIB)
    sampler = Sampler()
    sampler.note(a_snapshot([part, *declared("x")]), [], START)
    assert sampler.note(a_snapshot([part]), [], START + 60) == []
