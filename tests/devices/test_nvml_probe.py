"""What the probe makes of each thing that a driver can say, and what it keeps of its accounting."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pynvml
import pytest

from stoker.core.device import Account, Process, Snapshot
from stoker.devices.interface import owner_name, user_name
from stoker.devices.nvidia import NvidiaAbsent, NvidiaDevices
from stoker.devices.nvml_probe import AccountBook
from support.nvml import (
    DRIVER_NOT_LOADED,
    GIB,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    RESET_REQUIRED,
    UNKNOWN,
    VERSION_MISMATCH,
    Bench,
    FakeAccount,
    FakeGpu,
    FakeLink,
    FakeMachine,
    FakeProcess,
    FakeSlice,
    compiled,
)
from support.wait import ending

ME = pwd.getpwuid(os.getuid()).pw_name
GONE = 1_000_000_000
"""Larger than any PID that Linux gives out."""
NO_USER = 1_987_654_321
SENSORS = ("UtilizationRates", "TemperatureV", "Temperature", "PowerUsage", "MemoryInfo_v2", "MemoryInfo")


def read(bench: Bench, machine: FakeMachine) -> Snapshot:
    """The first snapshot of the machine."""
    bench.write(machine)
    devices = NvidiaDevices(environment=bench.environment)
    try:
        return devices.first(20)
    finally:
        devices.close()


def absence(bench: Bench, machine: FakeMachine) -> str:
    """Why there is no snapshot of the machine."""
    with pytest.raises(NvidiaAbsent) as caught:
        read(bench, machine)
    return caught.value.reason


def with_processes(*processes: FakeProcess) -> FakeMachine:
    return FakeMachine((FakeGpu("GPU-1", processes=processes),))


def with_fault(code: int, *symbols: str) -> FakeMachine:
    """A machine whose first GPU fails in some calls, and whose second is well."""
    broken = FakeGpu("GPU-1", faults={f"nvmlDeviceGet{symbol}": code for symbol in symbols})
    return FakeMachine((broken, FakeGpu("GPU-2")))


def test_a_gpu_in_full(bench: Bench) -> None:
    """A GPU is addressed by UUID, called by its index, and all that the driver measures is read."""
    gpu = FakeGpu("GPU-1", reserved=GIB, base=2 * GIB, utilisation=87, celsius=61, power_milliwatts=243_500)
    snapshot = read(bench, FakeMachine((gpu,)))
    (device,) = snapshot.devices
    assert (device.id, device.visible, device.claims) == ("GPU-1", "GPU-1", ("GPU-1",))
    assert (device.kind, device.label, device.model) == ("nvidia", "0", "NVIDIA A100-SXM4-40GB")
    reading = snapshot.reading("GPU-1")
    assert (reading.used, reading.utilisation, reading.temperature) == (2 * GIB, 87, 61)
    assert (reading.power, reading.problem, snapshot.note) == (243.5, "", "")


def test_memory_is_what_jobs_can_get(bench: Bench) -> None:
    """What the driver keeps for itself is neither a job's to use nor in use."""
    snapshot = read(bench, FakeMachine((FakeGpu("GPU-1", total=40 * GIB, reserved=GIB),)))
    assert snapshot.devices[0].memory == 39 * GIB
    assert snapshot.reading("GPU-1").used == 0


def test_processes_have_their_owner_and_command(bench: Bench) -> None:
    """A process is shown with the user it belongs to and the command it runs."""
    with ending(subprocess.Popen(["sleep", "300"])) as child:
        snapshot = read(bench, with_processes(FakeProcess(child.pid, GIB)))
        child.kill()
    assert snapshot.reading("GPU-1").processes == (Process(child.pid, GIB, ME, "sleep 300"),)


def test_a_process_of_several_lists_is_one(bench: Bench) -> None:
    """A process that computes, draws and uses MPS is listed once, with its memory where any list has it."""
    kinds = (FakeProcess(os.getpid(), None, "graphics"), FakeProcess(os.getpid(), GIB, "compute"))
    snapshot = read(bench, with_processes(*kinds, FakeProcess(os.getpid(), GIB, "mps")))
    assert [(found.pid, found.memory) for found in snapshot.reading("GPU-1").processes] == [(os.getpid(), GIB)]


@pytest.mark.parametrize(
    ("first", "second", "faults", "expected"),
    [
        (40, 0, {}, [40, 0]),
        (0, 0, {}, [0, 0]),
        (40, 0, {"nvmlDeviceGetProcessUtilization": NOT_SUPPORTED}, [None, None]),
        (40, 0, {"nvmlDeviceGetProcessUtilization": NO_PERMISSION}, [None, None]),
    ],
)
def test_who_computes_on_a_gpu(
    bench: Bench, first: int, second: int, faults: Mapping[str, int], expected: list[int | None]
) -> None:
    """The load of each process of several; unknown if the driver does not tell."""
    with ending(subprocess.Popen(["sleep", "300"])) as child:
        pids = sorted([os.getpid(), child.pid])
        processes = (FakeProcess(pids[0], GIB, load=first), FakeProcess(pids[1], GIB, load=second))
        snapshot = read(bench, FakeMachine((FakeGpu("GPU-1", processes=processes, faults=faults),)))
        child.kill()
    assert [process.load for process in snapshot.reading("GPU-1").processes] == expected


def test_clients_of_the_mps_daemon_have_no_load_of_their_own(bench: Bench) -> None:
    """The driver may count what they do as the daemon's."""
    with ending(subprocess.Popen(["sleep", "300"])) as child:
        processes = (FakeProcess(os.getpid(), GIB, load=40), FakeProcess(child.pid, GIB, "mps"))
        snapshot = read(bench, with_processes(*processes))
        child.kill()
    assert [process.load for process in snapshot.reading("GPU-1").processes] == [None, None]


def test_a_process_that_is_gone_has_no_owner(bench: Bench) -> None:
    """A PID that is not in /proc, as inside a container, is listed with an unknown owner."""
    snapshot = read(bench, with_processes(FakeProcess(GONE, GIB, ghost=True)))
    assert snapshot.reading("GPU-1").processes == (Process(GONE, GIB, "?"),)


def test_a_user_without_a_name_is_a_number() -> None:
    """What owns a process is shown by name, and by number where no directory has a name for it."""
    assert owner_name(os.getpid()) == user_name(os.getuid()) == ME
    assert user_name(NO_USER) == str(NO_USER)
    assert owner_name(GONE) == "?"


def test_memory_of_a_process_may_be_unknown(bench: Bench) -> None:
    """Where the driver does not know the memory of a process, it is None, not zero."""
    snapshot = read(bench, with_processes(FakeProcess(GONE, None, ghost=True)))
    assert snapshot.reading("GPU-1").processes[0].memory is None


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_a_sensor_that_is_silent_is_none(bench: Bench, code: int) -> None:
    """What is not supported or not permitted is None, and the GPU stays usable."""
    snapshot = read(bench, with_fault(code, *SENSORS))
    reading = snapshot.reading("GPU-1")
    assert (reading.used, reading.utilisation, reading.temperature, reading.power) == (None, None, None, None)
    assert (reading.problem, snapshot.devices[0].memory) == ("", None)


def test_hidden_processes_are_noted(bench: Bench) -> None:
    """Where the driver does not list processes, the snapshot says for which GPU."""
    lists = ("ComputeRunningProcesses_v3", "ComputeRunningProcesses_v2")
    snapshot = read(bench, with_fault(NO_PERMISSION, *lists))
    assert snapshot.note == "the driver does not list the processes of GPU 0"
    assert snapshot.reading("GPU-1").problem == ""


def test_a_driver_that_has_only_the_second_layout(bench: Bench) -> None:
    """Drivers before 510 list processes by an older symbol, and that is used."""
    gpu = FakeGpu(
        "GPU-1",
        processes=(FakeProcess(os.getpid(), GIB),),
        faults={"nvmlDeviceGetComputeRunningProcesses_v3": NOT_SUPPORTED},
    )
    assert len(read(bench, FakeMachine((gpu,))).reading("GPU-1").processes) == 1


def test_an_old_library_tells_what_it_can(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A library without the newer symbols gives memory and temperature by the old ones, and no processes."""
    old = Bench(compiled(tmp_path_factory.getbasetemp(), old=True), bench.state)
    snapshot = read(old, FakeMachine((FakeGpu("GPU-1", reserved=GIB, celsius=61),)))
    reading = snapshot.reading("GPU-1")
    assert (snapshot.devices[0].memory, reading.used, reading.temperature) == (40 * GIB, GIB, 61)
    assert snapshot.note == "the driver does not list the processes of GPU 0"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (GPU_IS_LOST, "fallen off the bus"),
        (RESET_REQUIRED, "must be reset"),
        (UNKNOWN, "the driver reports an error (Unknown Error)"),
    ],
)
@pytest.mark.parametrize("symbol", [*SENSORS[:2], "MemoryInfo_v2", "ComputeRunningProcesses_v3"])
def test_a_gpu_in_trouble_is_listed_with_its_problem(bench: Bench, code: int, words: str, symbol: str) -> None:
    """An error that means trouble, in whatever call, makes the GPU unusable and leaves the others alone."""
    snapshot = read(bench, with_fault(code, symbol))
    assert [device.id for device in snapshot.devices] == ["GPU-1", "GPU-2"]
    assert words in snapshot.reading("GPU-1").problem
    assert snapshot.reading("GPU-2").problem == ""


@pytest.mark.parametrize("symbol", ["HandleByIndex_v2", "UUID"])
def test_a_forbidden_gpu_has_a_placeholder(bench: Bench, symbol: str) -> None:
    """A GPU that is counted but refused is listed by its index, with the reason."""
    snapshot = read(bench, with_fault(NO_PERMISSION, symbol))
    assert [(device.id, device.label) for device in snapshot.devices] == [("nvidia:0", "0"), ("GPU-2", "1")]
    assert snapshot.reading("nvidia:0").problem == "no permission to use it"


def test_mig_slices_stand_for_their_gpu(bench: Bench) -> None:
    """A divided GPU is not listed; its slices are, with their own memory and the board's temperature."""
    slices = (FakeSlice("MIG-a", total=5 * GIB, base=GIB), FakeSlice("MIG-b", total=10 * GIB))
    here = FakeProcess(os.getpid(), GIB, slice=1)
    divided = FakeGpu("GPU-1", mig=True, slices=slices, processes=(here,), celsius=61)
    snapshot = read(bench, FakeMachine((FakeGpu("GPU-0"), divided)))
    assert [(device.id, device.label) for device in snapshot.devices] == [
        ("GPU-0", "0"),
        ("MIG-a", "1:0"),
        ("MIG-b", "1:1"),
    ]
    assert [device.memory for device in snapshot.devices[1:]] == [5 * GIB, 10 * GIB]
    first, second = snapshot.reading("MIG-a"), snapshot.reading("MIG-b")
    assert (first.used, first.temperature, first.utilisation, first.processes) == (GIB, 61, None, ())
    assert (second.used, [found.pid for found in second.processes]) == (GIB, [os.getpid()])


def test_the_nearest_gpus_come_first(bench: Bench) -> None:
    """NVLink is nearer than any way over PCI, and a shared switch nearer than the system's top."""
    gpus = tuple(FakeGpu(f"GPU-{index}") for index in range(4))
    links = (FakeLink(0, 3, 50, nvlink=True), FakeLink(0, 2, 10))
    snapshot = read(bench, FakeMachine(gpus, links))
    assert snapshot.devices[0].near == ("GPU-3", "GPU-2", "GPU-1")


def test_unknown_topology_is_empty(bench: Bench) -> None:
    """Where the driver does not know the topology, no GPU is near another."""
    machine = FakeMachine(
        (FakeGpu("GPU-1"), FakeGpu("GPU-2")), faults={"nvmlDeviceGetTopologyCommonAncestor": NOT_SUPPORTED}
    )
    assert [device.near for device in read(bench, machine).devices] == [(), ()]


def test_no_library(tmp_path: Path) -> None:
    """Without a library that can be loaded, the reason names it."""
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    assert "libnvidia-ml.so.1 was not found" in absence(Bench(tmp_path, tmp_path / "state"), FakeMachine())


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (FakeMachine(init=DRIVER_NOT_LOADED), "the NVIDIA driver is not loaded"),
        (FakeMachine(init=VERSION_MISMATCH), "have different versions"),
        (FakeMachine(init=NO_PERMISSION), "no permission to open"),
        (FakeMachine(init=UNKNOWN), "cannot query the NVIDIA driver (Unknown Error)"),
        (FakeMachine(), "shows no usable GPU"),
        (FakeMachine((FakeGpu("GPU-1", mig=True),)), "shows no usable GPU"),
    ],
)
def test_the_ways_to_have_no_gpu(bench: Bench, machine: FakeMachine, words: str) -> None:
    """Each way in which a driver can have nothing to offer has its own message."""
    assert words in absence(bench, machine)


STATS = "nvmlDeviceGetAccountingStats"


@pytest.fixture
def book() -> AccountBook:
    return AccountBook()


def machine(
    *accounts: FakeAccount,
    running: tuple[FakeProcess, ...] = (),
    on: bool = True,
    faults: Mapping[str, int] | None = None,
) -> FakeMachine:
    """A machine of one GPU with such accounts and processes."""
    room = 4000 if on else 0
    return FakeMachine((FakeGpu("GPU-1", accounting=room, accounts=accounts, processes=running, faults=faults or {}),))


def accounts(book: AccountBook, now: float = 0.0, running: tuple[int, ...] = ()) -> tuple[Account, ...] | None:
    return book.read(pynvml.nvmlDeviceGetHandleByIndex(0), running, now)


def test_accounting_that_is_off_is_none(driver: Bench, book: AccountBook) -> None:
    """Accounting that is off differs from accounting without processes."""
    driver.write(machine(on=False))
    assert accounts(book) is None
    driver.write(machine())
    assert accounts(book, 30) == ()


@pytest.mark.parametrize("symbol", ["Mode", "Pids"])
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_accounting_that_may_not_be_asked_is_none(driver: Bench, book: AccountBook, symbol: str, code: int) -> None:
    """What is not supported or not permitted is as if it were off."""
    driver.write(machine(running=(FakeProcess(os.getpid(), GIB),), faults={f"nvmlDeviceGetAccounting{symbol}": code}))
    assert accounts(book, running=(os.getpid(),)) is None


def test_trouble_is_not_hidden(driver: Bench, book: AccountBook) -> None:
    """An error that means more than a missing value is raised, so that the GPU gets a problem."""
    driver.write(machine(running=(FakeProcess(os.getpid(), GIB),), faults={STATS: GPU_IS_LOST}))
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        accounts(book, running=(os.getpid(),))


def test_the_mode_is_asked_twice_a_minute(driver: Bench, book: AccountBook) -> None:
    """Accounting that is switched on is noticed within half a minute, and at once when it is switched off."""
    driver.write(machine(on=False))
    assert accounts(book, 100) is None
    driver.write(machine())
    assert accounts(book, 129) is None
    assert accounts(book, 130) == ()
    driver.write(machine(on=False))
    assert accounts(book, 131) is None


def test_a_clock_that_is_set_back_does_not_stop_the_question(driver: Bench, book: AccountBook) -> None:
    """The mode is asked again although the time of day jumped to the past."""
    driver.write(machine(on=False))
    assert accounts(book, 10_000) is None
    driver.write(machine())
    assert accounts(book, 100) == ()


def test_who_runs_has_an_account(driver: Bench, book: AccountBook) -> None:
    """A process on the GPU has its peak and mean utilisation from the first reading on."""
    driver.write(machine(running=(FakeProcess(os.getpid(), GIB, load=40),)))
    assert accounts(book, running=(os.getpid(),)) == (Account(os.getpid(), GIB, 40, True),)


def test_utilisation_may_be_unknown(driver: Bench, book: AccountBook) -> None:
    """Where the driver has no mean of the utilisation it is None; without a peak there is no account at all."""
    driver.write(machine(FakeAccount(os.getpid(), GIB, utilisation=0xFFFFFFFF), FakeAccount(1, 2**64 - 1)))
    assert accounts(book, running=(os.getpid(), 1)) == (Account(os.getpid(), GIB, None, True),)


def test_long_gone_processes_are_not_asked_for(driver: Bench, book: AccountBook) -> None:
    """Of thousands of old processes none is asked for, neither at the first reading nor later."""
    old = tuple(FakeAccount(GONE + index, GIB) for index in range(4000))
    driver.write(machine(*old, faults={STATS: UNKNOWN}))
    assert accounts(book, 0) == accounts(book, 1) == ()


def test_an_end_is_told_for_a_minute(driver: Bench, book: AccountBook) -> None:
    """The account of a process that ran at the last reading is kept with its last peak for a minute."""
    ghost = FakeProcess(GONE, GIB, ghost=True)
    driver.write(machine(running=(ghost,)))
    assert accounts(book, 0, (GONE,)) == (Account(GONE, GIB, 0, True),)
    driver.write(machine(FakeAccount(GONE, 7 * GIB, utilisation=55)))
    last = (Account(GONE, 7 * GIB, 55, False),)
    assert accounts(book, 10) == last
    driver.write(machine(FakeAccount(GONE, 7 * GIB), faults={STATS: UNKNOWN}))
    assert accounts(book, 70) == last
    assert accounts(book, 71) == ()


def test_who_came_and_went_between_two_looks_is_told(driver: Bench, book: AccountBook) -> None:
    """A short job between two readings is found by its account."""
    old = FakeAccount(GONE, GIB)
    driver.write(machine(old))
    assert accounts(book, 0) == ()
    driver.write(machine(old, FakeAccount(GONE + 1, 3 * GIB)))
    assert accounts(book, 1) == (Account(GONE + 1, 3 * GIB, 0, False),)


def test_a_number_that_comes_again_is_a_new_process(driver: Bench, book: AccountBook) -> None:
    """Once a PID runs again, what was kept of its earlier process is forgotten."""
    driver.write(machine())
    accounts(book, 0)
    driver.write(machine(FakeAccount(GONE, 9 * GIB)))
    assert accounts(book, 1) == (Account(GONE, 9 * GIB, 0, False),)
    driver.write(machine(FakeAccount(GONE, 9 * GIB), running=(FakeProcess(GONE, GIB, ghost=True),)))
    assert accounts(book, 2, (GONE,)) == (Account(GONE, GIB, 0, True),)
