"""What all screens show of devices and of the queue."""

from __future__ import annotations

import pytest

from stoker.app.jobs.local_time import exactly
from stoker.app.views.engines import EngineStatuses
from stoker.app.views.model import Counts, LeaseLine
from stoker.app.views.status import Holders, expected_empty, memory_split
from stoker.core.device import Process, Reading
from stoker.store.status_file import EngineStatus
from support.build import GIB, a_job, simulated

(DEVICE,) = simulated(24)
JOB = a_job(1)
OURS = Process(1, 6 * GIB, "me")
ALICE = Process(2, 4 * GIB, "alice")
MIB = 2**20
TOLERANCE = 300 * MIB


def split(used: float, holders: Holders, *, settling: bool = False) -> tuple[float, float]:
    """GiB of ours and of others."""
    reading = Reading(used=int(used * GIB))
    ours, others = memory_split(DEVICE, reading, holders, TOLERANCE, settling=settling)
    return round(ours / GIB, 1), round(others / GIB, 1)


@pytest.mark.parametrize(
    ("used", "holders", "expected"),
    [
        (10.2, Holders([JOB], [], [OURS], [ALICE], measured=True), (6.2, 4.0)),
        (14.0, Holders([JOB], [], [OURS], [ALICE], measured=True), (6.0, 8.0)),
        (14.0, Holders([JOB], [], [], [ALICE], measured=False), (10.0, 4.0)),
        (14.0, Holders([JOB], [], [], [Process(2, None, "alice")], measured=False), (0.0, 14.0)),
        (0.2, Holders([], [], [], [], measured=True), (0.0, 0.0)),
        (5.0, Holders([], [], [], [], measured=True), (0.0, 5.0)),
    ],
)
def test_memory_without_a_process(used: float, holders: Holders, expected: tuple[float, float]) -> None:
    """It is ours until our jobs are measured, and of others only beyond the planner's tolerance."""
    assert split(used, holders) == expected


def test_what_a_job_leaves_behind_for_a_moment() -> None:
    """Memory that a job of ours still holds after its end is not of others."""
    assert split(9.0, Holders([], [], [], [], measured=True), settling=True) == (0.0, 0.0)
    assert split(9.0, Holders([JOB], [], [OURS], [], measured=True), settling=True) == (9.0, 0.0)


def test_claims_of_others_count_even_if_unused() -> None:
    """A lease counts with what it claims: the whole device, or a size."""
    whole, part = (LeaseLine("bob", 7, "stoker", size, exactly(0.0)) for size in (None, 5 * GIB))
    assert split(0.0, Holders([], [whole], [], [], measured=True)) == (0.0, 24.0)
    assert split(6.0, Holders([JOB], [part], [OURS], [], measured=True)) == (6.0, 5.0)


@pytest.mark.parametrize(
    ("lives", "counts", "shown"),
    [
        (True, Counts(1, 0, 0), True),
        (True, Counts(0, 1, 0), True),
        (True, Counts(0, 0, 0), False),
        (True, Counts(0, 0, 1), False),
        (False, Counts(1, 0, 0), False),
    ],
)
def test_an_empty_queue_has_no_expected_end(lives: bool, counts: Counts, shown: bool) -> None:
    """The engine's forecast may be older than the end of the last job."""
    status = EngineStatus("queue", "", 1, "1", 0.0, 9.0, 0, 0, (), {}, "", "", False, (), (), empty=600.0)
    expected = expected_empty(EngineStatuses(status, lives), counts)
    assert expected == (exactly(600.0) if shown else None)
