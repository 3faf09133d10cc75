"""The stand-in behaves as NVIDIA's library: asked by nvidia-ml-py, and by programs that are not ours."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from support.nvml import (
    GIB,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    Bench,
    FakeAccount,
    FakeGpu,
    FakeLink,
    FakeMachine,
    FakeProcess,
    FakeSlice,
    Kind,
    compiled,
)
from support.wait import ending

A100 = FakeGpu("GPU-11111111-2222-3333-4444-000000000000", utilisation=87, celsius=61, power_milliwatts=243_000)
RTX = FakeGpu("GPU-11111111-2222-3333-4444-000000000001", name="NVIDIA GeForce RTX 4090", total=24 * GIB)
SLICES = (
    FakeSlice("MIG-aaaaaaaa-2222-3333-4444-000000000000"),
    FakeSlice("MIG-aaaaaaaa-2222-3333-4444-000000000001"),
)


def handle(index: int = 0) -> object:
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def failure(code: int) -> type[Exception]:
    """The class that nvidia-ml-py has for an error code."""
    return type(pynvml.NVMLError(code))


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]
) -> None:
    """A machine without a C compiler skips these tests, but in CI they fail."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="needs a C compiler"):
        compiled(tmp_path)


def test_a_device_is_found_by_index_uuid_and_bus(driver: Bench) -> None:
    """Index, UUID and PCI bus lead to the same device."""
    driver.write(FakeMachine((A100, RTX)))
    assert pynvml.nvmlDeviceGetCount() == 2
    bus = pynvml.nvmlDeviceGetPciInfo(handle(1)).busId
    found = [pynvml.nvmlDeviceGetHandleByUUID(RTX.uuid), pynvml.nvmlDeviceGetHandleByPciBusId(bus)]
    assert [pynvml.nvmlDeviceGetName(device) for device in found] == [RTX.name] * 2
    assert bus == "00000000:08:00.0"


def test_nothing_is_told_before_initialisation(driver: Bench) -> None:
    """A call outside of nvmlInit and nvmlShutdown is refused."""
    driver.write(FakeMachine((A100,)))
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()


def test_memory_in_both_layouts(driver: Bench) -> None:
    """The old layout counts the driver's own memory as used, the new one has it apart."""
    gpu = FakeGpu("GPU-1", total=40 * GIB, reserved=GIB, base=2 * GIB, processes=(FakeProcess(os.getpid(), 3 * GIB),))
    driver.write(FakeMachine((gpu,)))
    old, new = (
        pynvml.nvmlDeviceGetMemoryInfo(handle()),
        pynvml.nvmlDeviceGetMemoryInfo(handle(), pynvml.nvmlMemory_v2),
    )
    assert (old.total, old.used, old.free) == (40 * GIB, 6 * GIB, 34 * GIB)
    assert (new.total, new.reserved, new.used, new.free) == (40 * GIB, GIB, 5 * GIB, 34 * GIB)


def test_a_structure_of_an_unknown_version_is_refused(driver: Bench) -> None:
    """The version in a structure is checked, as the driver does."""
    driver.write(FakeMachine((A100,)))
    with pytest.raises(failure(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)):
        pynvml.nvmlDeviceGetMemoryInfo(handle(), pynvml.nvmlMemory_v2 + 1)


@pytest.mark.parametrize("kind", ["compute", "graphics", "mps"])
def test_process_lists_by_kind(driver: Bench, kind: Kind) -> None:
    """Each list has the processes of its kind, in the v2 and v3 layout; unknown memory is None."""
    symbol = {"compute": "Compute", "graphics": "Graphics", "mps": "MPSCompute"}[kind]
    here = FakeProcess(os.getpid(), None, kind)
    driver.write(FakeMachine((FakeGpu("GPU-1", processes=(here,)),)))
    for version in ("_v2", "_v3"):
        (found,) = getattr(pynvml, f"nvmlDeviceGet{symbol}RunningProcesses{version}")(handle())
        assert (found.pid, found.usedGpuMemory, found.gpuInstanceId) == (os.getpid(), None, 0xFFFFFFFF)


def test_the_array_that_is_too_small(driver: Bench) -> None:
    """A list that does not fit leaves the error 7 and the size that is needed; the v1 layout has 16 bytes."""
    lot = tuple(FakeProcess(1_000_000_000 + i, i, ghost=True) for i in range(3))
    driver.write(FakeMachine((FakeGpu("GPU-1", processes=lot),)))
    count, room = ctypes.c_uint(2), (ctypes.c_ulonglong * 6)()
    first_layout = pynvml.nvmlLib.nvmlDeviceGetComputeRunningProcesses
    assert (first_layout(handle(), ctypes.byref(count), room), count.value) == (7, 3)
    assert (first_layout(handle(), ctypes.byref(count), room), count.value) == (0, 3)
    assert [(entry & 0xFFFFFFFF) for entry in room[::2]] == [process.pid for process in lot]


def test_a_dead_process_is_not_listed_and_holds_nothing(driver: Bench) -> None:
    """When a process dies the driver forgets it and takes its memory back, even before it is waited for."""
    with ending(subprocess.Popen(["sleep", "60"])) as child:
        driver.write(FakeMachine((FakeGpu("GPU-1", processes=(FakeProcess(child.pid, GIB),)),)))
        assert [found.pid for found in pynvml.nvmlDeviceGetComputeRunningProcesses(handle())] == [child.pid]
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle()) == []
        assert pynvml.nvmlDeviceGetMemoryInfo(handle(), pynvml.nvmlMemory_v2).used == 0


def test_a_job_can_report_its_own_memory(driver: Bench) -> None:
    """A line appended to the state file is enough, and a later one replaces it."""
    driver.write(FakeMachine((A100,)))
    for size in (1, 2):
        with driver.state.open("a") as state:
            state.write(f"process 0 {os.getpid()} {size} compute -1\n")
    assert [found.usedGpuMemory for found in pynvml.nvmlDeviceGetComputeRunningProcesses(handle())] == [2]


def test_accounting_outlives_the_process(driver: Bench) -> None:
    """Accounting keeps the peak of a process that is gone, and only root may switch it."""
    account = FakeAccount(1_000_000_000, 7 * GIB, utilisation=55, milliseconds=1234)
    driver.write(FakeMachine((FakeGpu("GPU-1", accounting=10, accounts=(account,)),)))
    assert pynvml.nvmlDeviceGetAccountingMode(handle()) == pynvml.NVML_FEATURE_ENABLED
    assert pynvml.nvmlDeviceGetAccountingPids(handle()) == [account.pid]
    stats = pynvml.nvmlDeviceGetAccountingStats(handle(), account.pid)
    assert (stats.maxMemoryUsage, stats.gpuUtilization, stats.time, stats.isRunning) == (7 * GIB, 55, 1234, 0)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetAccountingStats(handle(), os.getpid())
    with pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlDeviceSetAccountingMode(handle(), pynvml.NVML_FEATURE_DISABLED)


def test_accounting_is_off_by_default(driver: Bench) -> None:
    """Where it is not switched on nothing is kept; under MIG it is not supported."""
    here = (FakeProcess(os.getpid(), GIB),)
    driver.write(FakeMachine((FakeGpu("GPU-1", processes=here), FakeGpu("GPU-2", mig=True, accounting=10))))
    assert pynvml.nvmlDeviceGetAccountingMode(handle()) == pynvml.NVML_FEATURE_DISABLED
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetAccountingPids(handle())
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetAccountingStats(handle(), os.getpid())
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetAccountingMode(handle(1))


def test_the_account_of_a_process_has_its_peak(driver: Bench) -> None:
    """The largest memory that a job ever reported stays, while it runs and when it has less again."""
    driver.write(FakeMachine((FakeGpu("GPU-1", accounting=10),)))
    with driver.state.open("a") as state:
        for size in (1, 9, 2):
            state.write(f"process 0 {os.getpid()} {size} compute -1 40\n")
    stats = pynvml.nvmlDeviceGetAccountingStats(handle(), os.getpid())
    assert (stats.maxMemoryUsage, stats.gpuUtilization, stats.isRunning) == (9, 40, 1)


def test_jobs_can_use_the_gpus(driver: Bench) -> None:
    """A job holds memory along its curve, its peak stays in its account, and where a GPU is full it dies."""
    driver.write(FakeMachine((FakeGpu("GPU-1", total=10 * GIB, reserved=0, accounting=10),)))
    with driver.start("--curve", "0:2G,0.1:8G,0.2:2G", "--seconds", "0.4", gpus="GPU-1") as job:
        assert job.wait(60) == 0
    stats = pynvml.nvmlDeviceGetAccountingStats(handle(), job.pid)
    assert 2 * GIB < stats.maxMemoryUsage <= 8 * GIB
    assert (stats.isRunning, pynvml.nvmlDeviceGetComputeRunningProcesses(handle())) == (0, [])
    with driver.start("--memory", "11G", gpus="GPU-1") as large:
        assert "torch.OutOfMemoryError: CUDA out of memory." in large.communicate(timeout=60)[1]
    assert large.returncode == 1


def test_the_buffer_forgets_the_oldest(driver: Bench) -> None:
    """Only so many processes are kept, of each GPU; a PID that came again stands for its last process."""
    accounts = tuple(FakeAccount(1_000_000_000 + index % 4, index) for index in range(6))
    driver.write(FakeMachine((FakeGpu("GPU-1", accounting=3, accounts=accounts), FakeGpu("GPU-2", accounting=3))))
    assert pynvml.nvmlDeviceGetAccountingPids(handle()) == [1_000_000_003, 1_000_000_000, 1_000_000_001]
    assert pynvml.nvmlDeviceGetAccountingStats(handle(), 1_000_000_001).maxMemoryUsage == 5
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetAccountingStats(handle(), 1_000_000_002)
    assert pynvml.nvmlDeviceGetAccountingPids(handle(1)) == []


def test_processes_have_their_own_utilisation(driver: Bench) -> None:
    """A process that works is sampled, one that does nothing is not, and where none works nothing is found."""
    idle, busy = FakeProcess(1, GIB, ghost=True), FakeProcess(os.getpid(), GIB, load=40)
    driver.write(FakeMachine((FakeGpu("GPU-1", processes=(idle, busy)), FakeGpu("GPU-2"))))
    (sample,) = pynvml.nvmlDeviceGetProcessUtilization(handle(), 0)
    assert (sample.pid, sample.smUtil) == (os.getpid(), 40)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(handle(1), 0)


def test_mig_slices_are_enumerated(driver: Bench) -> None:
    """A divided GPU has handles for its slices, each with its memory and processes, but no utilisation."""
    here = FakeProcess(os.getpid(), GIB, slice=1)
    driver.write(FakeMachine((FakeGpu("GPU-1", mig=True, slices=SLICES, processes=(here,)),)))
    slices = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), index) for index in range(2)]
    assert [pynvml.nvmlDeviceGetUUID(part) for part in slices] == [part.uuid for part in SLICES]
    assert [pynvml.nvmlDeviceGetMemoryInfo(part).used for part in slices] == [0, GIB]
    assert [len(pynvml.nvmlDeviceGetComputeRunningProcesses(part)) for part in slices] == [0, 1]
    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle())[0].gpuInstanceId == 2
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle(), 2)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetUtilizationRates(handle())


def test_topology(driver: Bench) -> None:
    """A link gives two GPUs a common ancestor and perhaps NVLink; others meet at the top of the system."""
    driver.write(FakeMachine((A100, RTX, FakeGpu("GPU-3")), (FakeLink(0, 1, pynvml.NVML_TOPOLOGY_SINGLE, True),)))
    one, two, three = (handle(index) for index in range(3))
    levels = [pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other) for other in (two, three)]
    assert levels == [pynvml.NVML_TOPOLOGY_SINGLE, pynvml.NVML_TOPOLOGY_SYSTEM]
    links = [pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK) for other in (two, three)]
    assert links == [pynvml.NVML_P2P_STATUS_OK, pynvml.NVML_P2P_STATUS_NOT_SUPPORTED]


def test_no_event_ever_comes(driver: Bench) -> None:
    """Waiting for events ends with a timeout."""
    driver.write(FakeMachine((A100,)))
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle(), pynvml.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait_v2(events, 1)
    pynvml.nvmlEventSetFree(events)


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST])
def test_a_call_can_be_made_to_fail(driver: Bench, code: int) -> None:
    """Any symbol can return any error for one GPU, while others answer."""
    broken = FakeGpu("GPU-1", faults={"nvmlDeviceGetPowerUsage": code})
    driver.write(FakeMachine((broken, A100)))
    with pytest.raises(failure(code)):
        pynvml.nvmlDeviceGetPowerUsage(handle(0))
    assert pynvml.nvmlDeviceGetPowerUsage(handle(1)) == A100.power_milliwatts


def test_a_lost_gpu_fails_in_every_call(driver: Bench) -> None:
    """A GPU off the bus is still counted, but does not even give its handle."""
    driver.write(FakeMachine((FakeGpu("GPU-1", faults={"*": GPU_IS_LOST}), A100)))
    assert pynvml.nvmlDeviceGetCount() == 2
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        handle(0)


@pytest.fixture
def busy(bench: Bench) -> Iterator[int]:
    """A machine of two GPUs with a real process on the first; its PID."""
    with ending(subprocess.Popen(["sleep", "300"])) as child:
        process = FakeProcess(child.pid, 6 * GIB, load=43)
        gpu = FakeGpu(A100.uuid, utilisation=87, celsius=61, accounting=4000, processes=(process,))
        machine = FakeMachine((gpu, RTX))
        bench.write(machine)
        yield child.pid
        child.kill()


def judged(bench: Bench, *command: str) -> list[str]:
    """What a program beside our own interpreter prints, with the stand-in as its driver."""
    program = Path(sys.executable).parent / command[0]
    environment = {**bench.environment, "COLUMNS": "120", "TERM": "dumb"}
    done = subprocess.run(
        [program, *command[1:]], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def line_with(lines: list[str], *words: str) -> str:
    """The line that has all these words in it."""
    found = [line for line in lines if all(word in line for word in words)]
    assert found, "\n".join(lines)
    return found[0]


def test_gpustat_shows_the_machine(bench: Bench, busy: int) -> None:
    """Gpustat, unmodified, prints names, temperature, utilisation, memory and the process."""
    lines = judged(bench, "gpustat", "--no-color", "--no-header", "--show-pid", "--show-user")
    line_with(lines, "[0]", A100.name, "61°C", "87 %", "6144 / 40960 MB", f"/{busy}(6144M)")
    assert "(" not in line_with(lines, "[1]", RTX.name, "0 / 24576 MB")


def test_nvitop_shows_the_machine(bench: Bench, busy: int) -> None:
    """Nvitop, unmodified, prints names, bus, utilisation, memory and the process."""
    lines = judged(bench, "nvitop", "-1", "--ascii")
    line_with(lines, "A100-SXM4-40GB", "00000000:07:00.0")
    line_with(lines, "61C", "6144MiB / 40.00GiB", "87%")
    line_with(lines, "GeForce RTX 4090", "00000000:08:00.0")
    line_with(lines, f" {busy} C", "6144MiB", " 43 ", "sleep 300")
