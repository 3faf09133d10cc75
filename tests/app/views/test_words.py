"""Times, sizes and mishaps in words."""

from __future__ import annotations

import msgspec
import pytest

from stoker.app.jobs.local_time import clock_text, midnight
from stoker.app.views.columns import vram_text
from stoker.app.views.job import last_shared_failure, shared_failure_text
from stoker.app.views.job_details import oom_advice
from stoker.core.job import Cancelled, Exited, Job, Running, Waiting
from stoker.core.spec import Resources
from stoker.core.units import ago_text, watch_text
from support.build import GIB, a_job, simulated

OWN = Exited(1, 1, 0, 9.0, cause="oom", shared=True, floor=9 * GIB)
NEIGHBOURS = Exited(1, 1, 0, 9.0, cause="oom", shared=True)
FAULT = Exited(1, 1, 0, 9.0, cause="fault", shared=True)
ALONE = Exited(1, 1, 0, 9.0, cause="oom")
WAITS, RUNS = Waiting(9.0), Running(2, "k", ("0",), 10.0)
NOON = 1_794_052_800.0
"""2026-11-07 12:00 UTC, a Saturday."""
DAY = 86400.0

pytestmark = pytest.mark.usefixtures("utc")


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (NOON + 9120, "14:32"),
        (NOON + DAY, "Sun 12:00"),
        (NOON - DAY, "Fri 12:00"),
        (NOON + 30 * DAY, "Dec 07"),
        (NOON + 400 * DAY, "2027-12-12"),
    ],
)
def test_no_more_of_a_date_than_is_needed(at: float, text: str) -> None:
    """Today is told by the clock alone."""
    assert clock_text(at, NOON) == text


def test_watches() -> None:
    """What has passed is told to the second, with days as Slurm writes them, or by its largest unit."""
    assert [watch_text(seconds) for seconds in (0, 4323, 2 * DAY + 10800)] == ["0:00:00", "1:12:03", "2-03:00:00"]
    assert ago_text(NOON - 7300, NOON) == "2h ago"


def test_today_begins_at_midnight() -> None:
    """By the clock of this place."""
    assert midnight(NOON) == NOON - DAY / 2


def spared(shared_failures: int, floor: int = 0, state: Waiting | Running = WAITS) -> Job:
    """A job that company has cost so many attempts."""
    job = a_job(1, Resources(memory=6 * GIB), state=state)
    return msgspec.structs.replace(job, shared_failures=shared_failures, floor=floor)


@pytest.mark.parametrize(
    ("job", "event", "words"),
    [
        (spared(1, 9 * GIB), OWN, "out of GPU memory while sharing; retrying with 9.0G reserved"),
        (spared(1, 9 * GIB, RUNS), OWN, "out of GPU memory while sharing; now with 9.0G reserved"),
        (spared(2, 9 * GIB), OWN, "out of GPU memory while sharing; retrying exclusive"),
        (spared(2, 9 * GIB, RUNS), OWN, "out of GPU memory while sharing; now exclusive"),
        (spared(1), NEIGHBOURS, "GPU memory was taken by others; retrying with the same memory reserved"),
        (spared(2), FAULT, "killed by an MPS fault of a job on the same GPU; retrying exclusive"),
    ],
)
def test_a_job_that_company_harmed(job: Job, event: Exited, words: str) -> None:
    """What happened, and what is different now or the next time."""
    assert shared_failure_text(job, event) == words


def test_the_last_shared_failure() -> None:
    """An end that nobody else had to do with is none."""
    assert last_shared_failure([OWN, Cancelled(1.0), FAULT, ALONE, Exited(3, 1, 0, 9.0, shared=True)]) == FAULT
    assert last_shared_failure([ALONE]) is None


@pytest.mark.parametrize(
    ("event", "sizes", "words"),
    [
        (ALONE, (24, 24), "needs a larger GPU, a smaller batch, or more GPUs (-G)"),
        (ALONE, (24, 80), "retry on a larger GPU: stoker retry 1 --vram 25G"),
        (
            NEIGHBOURS,
            (24, 24),
            "other processes on its GPU used the memory; retry on an exclusive GPU: stoker retry 1 --vram all",
        ),
    ],
)
def test_what_may_help(event: Exited, sizes: tuple[int, ...], words: str) -> None:
    """A retry is only named where it can bring something else."""
    devices = simulated(*sizes)
    assert oom_advice(a_job(1), event, devices[:1], devices, " 1") == words


def test_what_was_asked_for() -> None:
    """A size, or a word."""
    assert [vram_text("size", 6 * GIB), vram_text("auto", None), vram_text("all", None)] == ["6.0G", "auto", "all"]
    assert vram_text("none", None) == "-"
