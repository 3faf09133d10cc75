"""How long devices were busy, however many jobs shared them."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.device import Device
from stoker.core.job import Event, Exited, JobEvent, Lost, Started
from stoker.core.run_result import BusyTime
from support.build import a_job, simulated

DEVICES = simulated(24, 24)


def tell(busy: BusyTime, job: int, event: Event, devices: tuple[Device, ...], started: float | None = None) -> None:
    """Let something happen to a job."""
    known = msgspec.structs.replace(a_job(job), kind="vit")
    busy.note(JobEvent(known, event, devices, log=f"{job}.log", started=started))


def run(busy: BusyTime, *spans: tuple[float, float], devices: tuple[Device, ...] = DEVICES[:1]) -> None:
    """Let a job run through each of the spans, all told in the order in which things happened."""
    starts = [(begin, 0, job, begin) for job, (begin, _) in enumerate(spans)]
    ends = [(end, 1, job, begin) for job, (begin, end) in enumerate(spans)]
    for at, kind, job, begin in sorted(starts + ends):
        event = Exited(1, 0, 0, at, shared=True) if kind else Started(1, at)
        tell(busy, job, event, devices, begin if kind else None)


def test_time_together_counts_once() -> None:
    """Three jobs, two of them at once, and a while of nothing."""
    busy = BusyTime()
    run(busy, (0.0, 10.0), (5.0, 15.0), (20.0, 21.0))
    assert busy.seconds == 16.0


def test_several_devices() -> None:
    """Each counts for itself."""
    busy = BusyTime()
    run(busy, (0.0, 10.0), (5.0, 15.0), devices=DEVICES)
    assert busy.seconds == 30.0


def test_a_job_that_was_taken_over() -> None:
    """Another engine saw its start; its end says when that was."""
    busy = BusyTime()
    tell(busy, 1, Started(1, 5.0), DEVICES[:1])
    tell(busy, 2, Lost(1, 8.0), DEVICES[:1], 1.0)
    tell(busy, 1, Exited(1, 0, 0, 9.0), DEVICES[:1], 5.0)
    assert busy.seconds == 8.0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), max_size=12))
def test_it_is_the_length_of_the_union(spans: list[tuple[int, int]]) -> None:
    """Whatever begins and ends when."""
    busy = BusyTime()
    run(busy, *((float(begin), float(begin + length)) for begin, length in spans))
    assert busy.seconds == len({second for begin, length in spans for second in range(begin, begin + length)})
