"""Files of the ledger are removed while jobs of several queues run and wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.background import Background
from support.cli import until
from support.nvml import FakeGpu, FakeMachine, compiled
from support.nvml.queue import NvmlQueue
from support.wait import wait_until

NewQueue = Callable[[str], Background]


@pytest.fixture(params=["simulated", "nvml"])
def new_queue(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NewQueue]:
    """Makes queues on the same GPU, with one ledger. Their jobs hold no memory that the driver could show."""
    library = compiled(tmp_path_factory.getbasetemp()) if request.param == "nvml" else None
    with contextlib.ExitStack() as closing:

        def made(name: str) -> Background:
            (tmp_path / name).mkdir()
            queue = (
                NvmlQueue(tmp_path / name, library, FakeMachine((FakeGpu("GPU-a"),)))
                if library
                else Background(tmp_path / name, "1x24G")
            )
            queue.environment["STOKER_LEDGER"] = str(tmp_path / "ledger")
            return closing.enter_context(contextlib.closing(queue))

        yield made


def test_no_second_job_gets_the_gpu(new_queue: NewQueue, tmp_path: Path) -> None:
    """Neither of a queue that waited for the GPU, nor of one that is used for the first time."""
    holder, waiting, late = new_queue("holder"), new_queue("waiting"), new_queue("late")
    (long,) = holder.submit(until("go"))
    holder.wait_word("running", long)
    (first,) = waiting.submit("echo first >> started")
    wait_until(lambda: "held by" in waiting("status", str(first), "--json").out)
    leases = set((tmp_path / "ledger").glob("*.lease"))
    for path in leases:
        path.unlink()
    (second,) = late.submit("echo second >> started")
    wait_until(lambda: set((tmp_path / "ledger").glob("*.lease")) == leases)
    wait_until(lambda: "held by" in late("status", str(second), "--json").out)
    assert "the lease on GPU 0 was removed; it was reclaimed" in holder("status", "--table").out
    assert (waiting.word(first), late.word(second)) == ("waiting", "waiting")
    holder.open_gate("go")
    waiting.wait_over(first)
    late.wait_over(second)
