"""What the end of a log says of a failed attempt."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stoker.core.job import Job, Running
from stoker.core.spec import Resources
from stoker.sites.machine.ref import WorkerRef
from stoker.sites.machine.worker_events import NOTHING, AttemptUse, Diagnosis, diagnose
from support.build import GIB, a_job, simulated

GPU = simulated(24)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 24.00 GiB "
    "of which 1.00 GiB is free. {others}Including non-PyTorch memory, this process has 12.00 GiB memory in use. Of the "
    "allocated memory 11.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated.\n"
)
FAULT = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
SHARED = AttemptUse(shared=True)


def failed(directory: Path, text: str, resources: Resources | None = None, log_start: int = 0) -> Job:
    """A job whose attempt wrote this."""
    log = directory / "log"
    log.write_text(text)
    state = Running(1, WorkerRef("w1", "", log_start).text, ("0",), 0.0, str(log))
    return a_job(1, resources or Resources(memory=10 * GIB), state=state)


def test_an_ordinary_failure_is_nothing(tmp_path: Path) -> None:
    """Nor is one without devices, or that never started."""
    assert diagnose(failed(tmp_path, "Traceback: ValueError\n"), GPU, SHARED) is NOTHING
    job = failed(tmp_path, OOM.format(others=""))
    assert diagnose(job, (), SHARED) is NOTHING
    assert diagnose(msgspec.structs.replace(job, state=a_job(1).state), GPU, SHARED) is NOTHING


def test_out_of_memory_on_an_exclusive_gpu(tmp_path: Path) -> None:
    """The job does not fit, and what it needs is known."""
    found = diagnose(failed(tmp_path, OOM.format(others="")), GPU, AttemptUse())
    assert (found.cause, found.floor, found.needs, found.shared) == ("oom", 0, 16 * GIB, False)
    assert found.note.startswith("needs more than a whole GPU (24.0G): ")


def test_out_of_memory_by_its_own_fault_beside_others(tmp_path: Path) -> None:
    """It used more than was reserved, and needs at least that."""
    found = diagnose(failed(tmp_path, OOM.format(others="")), GPU, SHARED)
    assert (found.cause, found.shared, found.needs) == ("oom", True, 16 * GIB)
    assert found.floor >= 16 * GIB
    assert found.note.startswith("out of GPU memory while sharing: ")


def test_out_of_memory_by_the_fault_of_others(tmp_path: Path) -> None:
    """It kept to what was reserved: nothing is learnt of it."""
    found = diagnose(failed(tmp_path, OOM.format(others=""), Resources(memory=20 * GIB)), GPU, SHARED)
    assert (found.cause, found.floor, found.needs, found.shared) == ("oom", 0, None, True)
    assert found.note.startswith("out of GPU memory, taken by other processes on the GPU: ")


@pytest.mark.parametrize(("own", "shared"), [({77}, False), (set(), True)])
def test_a_process_in_the_message_may_be_foreign(tmp_path: Path, own: set[int], shared: bool) -> None:
    """Unless it is one of the attempt's own."""
    text = OOM.format(others="Process 77 has 11.00 GiB memory in use. ")
    assert diagnose(failed(tmp_path, text), GPU, AttemptUse(processes=own)).shared == shared


def test_what_was_in_the_log_before_does_not_count(tmp_path: Path) -> None:
    """Another job may have written to the same file."""
    text = OOM.format(others="")
    assert diagnose(failed(tmp_path, text + "killed\n", log_start=len(text)), GPU, SHARED) is NOTHING


@pytest.mark.parametrize(("mps", "seen", "cause"), [(50, SHARED, "fault"), (50, AttemptUse(), ""), (None, SHARED, "")])
def test_a_cuda_fault_counts_beside_other_clients_of_mps(
    tmp_path: Path, mps: int | None, seen: AttemptUse, cause: str
) -> None:
    """They all get the error of one of them."""
    found: Diagnosis = diagnose(failed(tmp_path, FAULT, Resources(memory=GIB, mps=mps)), GPU, seen)
    assert found.cause == cause
