"""Want of memory in words."""

from __future__ import annotations

import msgspec
import pytest

from stoker.core.job import Cancelled, Exited, Job, Running, Waiting
from stoker.core.spec import Resources
from stoker.queue.view_builder import last_mishap, oom_advice, sparing_text, vram_text
from support.build import GIB, a_job, simulated

OWN = Exited(1, 1, 0, 9.0, cause="oom", shared=True, floor=9 * GIB)
NEIGHBOURS = Exited(1, 1, 0, 9.0, cause="oom", shared=True)
FAULT = Exited(1, 1, 0, 9.0, cause="fault", shared=True)
ALONE = Exited(1, 1, 0, 9.0, cause="oom")
WAITS, RUNS = Waiting(9.0), Running(2, "k", ("0",), 10.0)


def spared(shared_failures: int, floor: int = 0, state: Waiting | Running = WAITS) -> Job:
    """A job that company has cost so many attempts."""
    job = a_job(1, Resources(memory=6 * GIB), state=state)
    return msgspec.structs.replace(job, shared_failures=shared_failures, floor=floor)


@pytest.mark.parametrize(
    ("job", "event", "words"),
    [
        (spared(1, 9 * GIB), OWN, "ran out of GPU memory beside others; again with 9.0G set aside"),
        (spared(1, 9 * GIB, RUNS), OWN, "ran out of GPU memory beside others; now with 9.0G set aside"),
        (spared(2, 9 * GIB), OWN, "ran out of GPU memory beside others; next time alone"),
        (spared(2, 9 * GIB, RUNS), OWN, "ran out of GPU memory beside others; now alone"),
        (spared(1), NEIGHBOURS, "found the GPU's memory taken by others; again with as much set aside as before"),
        (spared(2), FAULT, "died of a fault that all clients of MPS were told; next time alone"),
    ],
)
def test_a_job_that_company_harmed(job: Job, event: Exited, words: str) -> None:
    """What happened, and what is different now or the next time."""
    assert sparing_text(job, event) == words


def test_the_last_mishap() -> None:
    """An end that nobody else had to do with is none."""
    assert last_mishap([OWN, Cancelled(1.0), FAULT, ALONE, Exited(3, 1, 0, 9.0, shared=True)]) == FAULT
    assert last_mishap([ALONE]) is None


@pytest.mark.parametrize(
    ("event", "sizes", "words"),
    [
        (ALONE, (24, 24), "needs a larger GPU, a smaller batch, or more GPUs (-G)"),
        (ALONE, (24, 80), "there are larger GPUs: stoker retry 1 --vram 25G"),
        (NEIGHBOURS, (24, 24), "others on its GPU had that memory; try again alone: stoker retry 1 --vram all"),
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
