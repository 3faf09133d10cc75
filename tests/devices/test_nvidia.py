"""The engine's side of the NVIDIA probe: never waits, never believes silence, recovers by itself."""

from __future__ import annotations

import itertools
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from stoker.core.device import Account, Reading, Snapshot
from stoker.devices.nvidia import NvidiaAbsent, NvidiaDevices
from support.nvml import (
    DRIVER_NOT_LOADED,
    GIB,
    GPU_IS_LOST,
    Bench,
    FakeGpu,
    FakeMachine,
    FakeProcess,
    FakeSlice,
)
from support.wait import PATIENCE_SECONDS, ending, line_from

TWO = FakeMachine((FakeGpu("GPU-1"), FakeGpu("GPU-2")))
HUNG = FakeMachine(TWO.gpus, blocked={"nvmlDeviceGetUtilizationRates": 600})
LOST = FakeMachine((FakeGpu("GPU-1", faults={"*": GPU_IS_LOST}), FakeGpu("GPU-2")))
SILENT = "the NVIDIA driver does not answer"
PATIENCE = PATIENCE_SECONDS
"""Seconds of real time after which a condition that was waited for counts as a failure."""


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.write(TWO)
    return bench


@pytest.fixture
def devices(bench: Bench) -> Iterator[NvidiaDevices]:
    """The client, with an interval of a second and a deadline of five on the clock that a test gives it."""
    made = NvidiaDevices(environment=bench.environment)
    yield made
    made.close()


def probes() -> list[psutil.Process]:
    """The probe processes that this process has started and that still live."""
    return [child for child in psutil.Process().children() if "stoker.devices.nvml_probe" in command_of(child)]


def command_of(process: psutil.Process) -> list[str]:
    """The command of a process, waited for: for a moment after its start the kernel shows none."""
    end = time.monotonic() + PATIENCE
    try:
        while not (words := process.cmdline()):
            assert time.monotonic() < end, process
    except psutil.NoSuchProcess:
        return []
    return words


def problems(snapshot: Snapshot) -> list[str]:
    return [snapshot.reading(device.id).problem for device in snapshot.devices]


def wait_answer(devices: NvidiaDevices) -> None:
    """Wait until there is something to read."""
    assert select.select([devices.fileno()], [], [], PATIENCE)[0], "no answer"


def wait_look(devices: NvidiaDevices, clock: Iterator[int], wanted: Callable[[Snapshot], bool]) -> Snapshot:
    """Take snapshots, a second of the test's clock apart, until one is as wanted."""
    end = time.monotonic() + PATIENCE
    while not wanted(snapshot := devices.snapshot(next(clock))):
        assert time.monotonic() < end, snapshot
        select.select([devices.fileno()], [], [], 0.01)
    return snapshot


@contextmanager
def engine(bench: Bench) -> Iterator[psutil.Popen]:
    """A process with a client of its own, killed in the end; it prints what modules it has when all is up."""
    script = """
import sys, time
from stoker.devices.nvidia import NvidiaDevices
devices = NvidiaDevices()
devices.first(60)
print(*sys.modules, flush=True)
time.sleep(600)
"""
    command = [sys.executable, "-c", script]
    with psutil.Popen(command, env=bench.environment, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@contextmanager
def held_at_exit(process: psutil.Process) -> Iterator[None]:
    """Stop the death of a process halfway by tracing its exit, as one that sleeps in the kernel does not die."""
    script = """
import ctypes, sys
SEIZE, TRACE_EXIT = 0x4206, 0x40
trace = ctypes.CDLL(None).ptrace
trace.argtypes = [ctypes.c_long] * 4
print("traced" if trace(SEIZE, int(sys.argv[1]), 0, TRACE_EXIT) == 0 else "refused", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", script, str(process.pid)]
    with psutil.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tracer:
        if words_of(tracer) == ["refused"]:
            pytest.skip("this user may not trace processes")
        yield


def words_of(process: psutil.Popen) -> list[str]:
    """The words on the next line that a process prints."""
    line: str = line_from(process.stdout)
    assert line, "it printed nothing"
    return line.split()


def kill_probe() -> None:
    (probe,) = probes()
    probe.kill()
    psutil.wait_procs([probe], timeout=PATIENCE)


def test_the_engine_does_not_load_the_driver(bench: Bench) -> None:
    """Only the probe imports nvidia-ml-py: a hanging driver must not reach the engine."""
    with engine(bench) as process:
        assert "pynvml" not in words_of(process)
        (probe,) = process.children()
        assert any("libnvidia-ml" in mapped.path for mapped in probe.memory_maps())


def test_the_first_look_waits(devices: NvidiaDevices) -> None:
    """The first snapshot is waited for and has all devices."""
    assert [device.id for device in devices.first(PATIENCE).devices] == ["GPU-1", "GPU-2"]


def test_look_brings_news(bench: Bench, devices: NvidiaDevices) -> None:
    """A snapshot sends a request, and a later one has the answer."""
    devices.first(PATIENCE)
    bench.write(FakeMachine((FakeGpu("GPU-1", base=GIB), FakeGpu("GPU-2"))))
    snapshot = wait_look(devices, itertools.count(), lambda seen: seen.reading("GPU-1").used == GIB)
    assert problems(snapshot) == ["", ""]


def test_questions_keep_their_distance(bench: Bench, devices: NvidiaDevices) -> None:
    """Within the interval no second question is put, so none is overdue later."""
    devices.first(PATIENCE)
    devices.snapshot(100.0)
    wait_answer(devices)
    bench.write(HUNG)
    devices.snapshot(100.9)
    assert problems(devices.snapshot(106.0)) == ["", ""]
    assert all(problems(devices.snapshot(111.1)))


def test_no_answer_in_time_is_absence(bench: Bench, devices: NvidiaDevices) -> None:
    """A driver that hangs from the start is reported differently from a missing one, and leaves no process."""
    bench.write(HUNG)
    with pytest.raises(NvidiaAbsent, match=r"no answer within 0.3 s"):
        devices.first(0.3)
    assert probes() == []


def test_a_probe_that_cannot_start_is_absence(bench: Bench) -> None:
    """When the probe ends without a word, that is said, and not waited out."""
    devices = NvidiaDevices(environment={**bench.environment, "PYTHONHOME": "/nonexistent"})
    with pytest.raises(NvidiaAbsent, match="ended without an answer"):
        devices.first(PATIENCE)


def test_absence_says_what_to_do(bench: Bench, devices: NvidiaDevices) -> None:
    """The error has a hint for the user."""
    bench.write(FakeMachine(init=DRIVER_NOT_LOADED))
    with pytest.raises(NvidiaAbsent) as caught:
        devices.first(PATIENCE)
    assert "nvidia-smi" in caught.value.hint


def test_a_hanging_driver_is_unknown_not_free(bench: Bench, devices: NvidiaDevices) -> None:
    """After the deadline every device has a problem and no numbers; the call itself returns at once."""
    devices.first(PATIENCE)
    bench.write(HUNG)
    assert problems(devices.snapshot(100.0)) == ["", ""]
    assert problems(devices.snapshot(105.0)) == ["", ""]
    begun = time.monotonic()
    snapshot = devices.snapshot(112.0)
    assert time.monotonic() - begun < 10  # it hangs for ever
    assert problems(snapshot) == [SILENT] * 2
    assert snapshot.reading("GPU-1").used is None
    assert snapshot.note == SILENT


def test_nothing_old_is_told_of_a_silent_driver(bench: Bench, devices: NvidiaDevices) -> None:
    """Earlier processes and accounts disappear, and return when the driver answers again."""
    here = (FakeProcess(os.getpid(), GIB),)
    busy = FakeGpu("GPU-1", accounting=10, processes=here)
    bench.write(FakeMachine((busy,)))
    before = devices.first(PATIENCE).reading("GPU-1")
    assert [account.peak for account in before.accounts or ()] == [GIB]
    bench.write(FakeMachine((busy,), blocked=HUNG.blocked))
    devices.snapshot(100.0)
    assert devices.snapshot(112.0).reading("GPU-1") == Reading(problem=SILENT)
    bench.write(FakeMachine((busy,)))
    after = wait_look(devices, itertools.repeat(113), lambda seen: not any(problems(seen)))
    assert (after.reading("GPU-1").processes, after.reading("GPU-1").accounts) == (before.processes, before.accounts)


def test_a_silence_is_told_in_the_same_words(bench: Bench, devices: NvidiaDevices) -> None:
    """However long it lasts, the snapshot stays the same, so that a change is reported once."""
    devices.first(PATIENCE)
    bench.write(HUNG)
    devices.snapshot(100.0)
    silent = devices.snapshot(106.0)
    assert silent.note == SILENT
    assert all(devices.snapshot(106.0 + seconds) == silent for seconds in range(300))


def test_a_hanging_probe_is_never_doubled(bench: Bench, devices: NvidiaDevices) -> None:
    """However long the driver hangs, and though its probes are given up, one process at most waits for it."""
    devices.first(PATIENCE)
    bench.write(HUNG)
    for now in range(0, 1000, 7):
        devices.snapshot(now)
        assert len(probes()) <= 1


def test_a_probe_that_does_not_die_is_not_replaced(bench: Bench, devices: NvidiaDevices) -> None:
    """One that was killed but sleeps on in the driver stays the only one, until it is dead."""
    devices.first(PATIENCE)
    bench.write(HUNG)
    (before,) = probes()
    devices.snapshot(0)
    with held_at_exit(before):
        for now in range(60, 1000, 7):
            devices.snapshot(now)
            assert probes() == [before]
    bench.write(TWO)
    wait_look(devices, itertools.count(1000), lambda seen: not any(problems(seen)))
    assert before not in probes()


def test_a_hanging_probe_is_given_time(bench: Bench, devices: NvidiaDevices) -> None:
    """For twelve deadlines a probe is left alone, as its answer may still come."""
    devices.first(PATIENCE)
    bench.write(HUNG)
    devices.snapshot(100.0)
    (before,) = probes()
    devices.snapshot(159.9)
    bench.write(TWO)
    wait_look(devices, itertools.repeat(159), lambda seen: not any(problems(seen)))
    assert probes() == [before]


def test_a_probe_that_hangs_by_itself_is_replaced(bench: Bench, devices: NvidiaDevices) -> None:
    """Where only the probe is stuck and the driver is well, a new probe makes the devices usable again."""
    devices.first(PATIENCE)
    (before,) = probes()
    before.suspend()
    devices.snapshot(100.0)
    assert all(problems(devices.snapshot(159.9)))
    wait_look(devices, itertools.count(160), lambda seen: not any(problems(seen)))
    (after,) = probes()
    assert after != before


def test_a_new_probe_has_its_own_time(bench: Bench, devices: NvidiaDevices) -> None:
    """The silence of the probe before it does not count against a new one."""
    devices.first(PATIENCE)
    bench.write(HUNG)
    devices.snapshot(100.0)
    kill_probe()
    devices.snapshot(159.0)
    (after,) = probes()
    devices.snapshot(218.9)
    assert probes() == [after]
    assert after.is_running()
    devices.snapshot(219.0)
    assert psutil.wait_procs([after], timeout=PATIENCE)[0] == [after]


def test_a_driver_that_wakes_is_believed_again(bench: Bench, devices: NvidiaDevices) -> None:
    """When the late answer comes, the devices are usable again without any help."""
    devices.first(PATIENCE)
    bench.write(HUNG)
    devices.snapshot(100.0)
    assert all(problems(devices.snapshot(150.0)))
    bench.write(TWO)
    snapshot = wait_look(devices, itertools.repeat(151), lambda seen: not any(problems(seen)))
    assert [device.id for device in snapshot.devices] == ["GPU-1", "GPU-2"]


def test_a_dead_probe_makes_devices_unknown_at_once(devices: NvidiaDevices) -> None:
    """Without a probe the very next snapshot has problems."""
    devices.first(PATIENCE)
    kill_probe()
    assert all(problems(devices.snapshot(100.0)))


def test_a_dead_probe_is_replaced(devices: NvidiaDevices) -> None:
    """A probe that was killed is started again, and its first answer makes the devices usable."""
    devices.first(PATIENCE)
    kill_probe()
    wait_look(devices, itertools.count(100), lambda seen: not any(problems(seen)))
    assert len(probes()) == 1


def test_a_probe_that_keeps_dying_is_not_started_in_a_hurry(bench: Bench, devices: NvidiaDevices) -> None:
    """There are some seconds between two starts."""
    devices.first(PATIENCE)
    bench.write(HUNG)
    kill_probe()
    devices.snapshot(100.0)
    kill_probe()
    devices.snapshot(104.9)
    assert probes() == []
    devices.snapshot(105.0)
    assert len(probes()) == 1


def test_a_driver_that_goes_away_gives_its_reason(bench: Bench, devices: NvidiaDevices) -> None:
    """A driver update under a running engine shows as the problem of every device, and mends by itself."""
    devices.first(PATIENCE)
    bench.write(FakeMachine(TWO.gpus, init=DRIVER_NOT_LOADED, faults={"nvmlDeviceGetCount_v2": DRIVER_NOT_LOADED}))
    clock = itertools.count(100)
    gone = wait_look(devices, clock, lambda seen: "driver is not loaded" in problems(seen)[0])
    assert [device.id for device in gone.devices] == ["GPU-1", "GPU-2"]
    bench.write(TWO)
    wait_look(devices, clock, lambda seen: not any(problems(seen)))


def test_a_probe_without_a_driver_makes_room_for_the_next(bench: Bench, devices: NvidiaDevices) -> None:
    """A loaded library does not change with an update, so a probe that failed ends and a new one loads it."""
    devices.first(PATIENCE)
    (before,) = probes()
    bench.write(FakeMachine())
    clock = itertools.count(100)
    wait_look(devices, clock, lambda seen: "shows no usable GPU" in problems(seen)[0])
    bench.write(TWO)
    wait_look(devices, clock, lambda seen: not any(problems(seen)))
    assert before not in probes()


def test_a_lost_gpu_keeps_its_name(bench: Bench, devices: NvidiaDevices) -> None:
    """A GPU that falls off the bus stays the device that jobs know, with its problem, until it is back."""
    before = devices.first(PATIENCE)
    bench.write(LOST)
    clock = itertools.count(100)
    lost = wait_look(devices, clock, lambda seen: any(problems(seen)))
    assert [device.id for device in lost.devices] == ["GPU-1", "GPU-2"]
    assert lost.devices[0].memory == before.devices[0].memory
    assert "fallen off the bus" in lost.reading("GPU-1").problem
    assert lost.reading("GPU-2").problem == ""
    bench.write(TWO)
    wait_look(devices, clock, lambda seen: not any(problems(seen)))


def test_a_lost_gpu_does_not_hide_the_accounts_of_others(bench: Bench, devices: NvidiaDevices) -> None:
    """The driver is let go while a GPU is in trouble, but what ended on another one in the meantime is known."""
    with ending(subprocess.Popen(["sleep", "300"])) as child:
        job = FakeGpu("GPU-2", accounting=10, processes=(FakeProcess(child.pid, GIB),))
        bench.write(FakeMachine((FakeGpu("GPU-1", accounting=10), job)))
        devices.first(PATIENCE)
        bench.write(FakeMachine((LOST.gpus[0], job)))
        clock = itertools.count(100)
        lost = wait_look(devices, clock, lambda seen: any(problems(seen)))
        assert lost.reading("GPU-1").accounts is None
        child.kill()
    gone = (Account(child.pid, GIB, 0, False),)
    wait_look(devices, clock, lambda seen: seen.reading("GPU-2").accounts == gone)
    assert wait_look(devices, clock, lambda seen: seen.at > 105).reading("GPU-2").accounts == gone


def test_a_lost_gpu_keeps_its_name_over_a_new_probe(bench: Bench, devices: NvidiaDevices) -> None:
    """What was known of a GPU does not die with the probe."""
    devices.first(PATIENCE)
    bench.write(LOST)
    kill_probe()
    lost = wait_look(devices, itertools.count(100), lambda seen: "bus" in seen.reading("GPU-1").problem)
    assert [device.id for device in lost.devices] == ["GPU-1", "GPU-2"]


def test_a_lost_gpu_is_not_taken_for_one_that_moved(bench: Bench, devices: NvidiaDevices) -> None:
    """Where the UUID known by that index is reported elsewhere, the lost one remains nameless."""
    devices.first(PATIENCE)
    bench.write(FakeMachine((FakeGpu("GPU-2", faults={"*": GPU_IS_LOST}), FakeGpu("GPU-1"))))
    moved = wait_look(devices, itertools.count(100), lambda seen: any(problems(seen)))
    assert [device.id for device in moved.devices] == ["nvidia:0", "GPU-1"]


def test_slices_of_a_lost_gpu_keep_their_names(bench: Bench, devices: NvidiaDevices) -> None:
    """When a divided GPU is lost, each of its slices has the problem."""
    divided = FakeGpu("GPU-1", mig=True, slices=(FakeSlice("MIG-a"), FakeSlice("MIG-b")))
    bench.write(FakeMachine((divided, FakeGpu("GPU-2"))))
    devices.first(PATIENCE)
    bench.write(LOST)
    lost = wait_look(devices, itertools.count(100), lambda seen: any(problems(seen)))
    assert [device.id for device in lost.devices] == ["MIG-a", "MIG-b", "GPU-2"]
    assert [bool(problem) for problem in problems(lost)] == [True, True, False]


def test_a_clock_that_is_set_back_stops_nothing(bench: Bench, devices: NvidiaDevices) -> None:
    """Questions go on although the time of day has jumped to the past."""
    devices.first(PATIENCE)
    devices.snapshot(10_000.0)
    wait_answer(devices)
    devices.snapshot(10_000.0)
    bench.write(FakeMachine((FakeGpu("GPU-1", base=GIB), FakeGpu("GPU-2"))))
    wait_look(devices, itertools.count(100), lambda seen: seen.reading("GPU-1").used == GIB)


def test_the_descriptor_stays_the_same(devices: NvidiaDevices) -> None:
    """A selector keeps its registration when the probe is replaced."""
    devices.first(PATIENCE)
    before = devices.fileno()
    kill_probe()
    devices.snapshot(100.0)
    wait_answer(devices)
    assert devices.fileno() == before
    assert not any(problems(devices.snapshot(100.5)))


def test_the_probe_ends_with_its_engine(bench: Bench) -> None:
    """When the engine is killed its probe ends by itself, as its standard input closes."""
    with engine(bench) as process:
        words_of(process)
        (probe,) = process.children()
        ended = os.pidfd_open(probe.pid)
    try:
        assert select.select([ended], [], [], PATIENCE)[0], "the probe lives on"
    finally:
        os.close(ended)


def test_close_ends_a_hanging_probe(bench: Bench, devices: NvidiaDevices) -> None:
    """Nothing is left after close, though the driver hangs; closing twice does no harm."""
    devices.first(PATIENCE)
    bench.write(HUNG)
    devices.snapshot(100.0)
    devices.close()
    devices.close()
    assert probes() == []
