"""NVIDIA's driver hangs, fails, loses a GPU, counts the GPUs in another order, and its process dies."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from support.faults.kills import ONCE
from support.faults.table import fault
from support.nvml import DRIVER_NOT_LOADED, GPU_IS_LOST, UNKNOWN, Bench, FakeGpu, FakeMachine, compiled
from support.storm.background import QueueStorm
from support.storm.processes import children, command_of, kill_and_wait

FOUR = FakeMachine(tuple(FakeGpu(f"GPU-{letter}") for letter in "abcd"))
SICK_SECONDS = 2.0
VERIFIED = "no job starts on a GPU that the driver does not vouch for; all goes on when it does again"


def stand_in(home: Path) -> dict[str, str]:
    """Variables for an engine on a machine with four GPUs of the stand-in."""
    bench = _bench(home)
    bench.write(FOUR)
    return {name: bench.environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}


def _bench(home: Path) -> Bench:
    return Bench(compiled(home), home / "nvml-state")


@fault("kill-driver-process", ONCE, devices="nvml", needs=("cc",))
def kill_driver_process(trial: QueueStorm) -> None:
    """The process that asks the driver dies again and again."""
    trial.feed(8)
    for _ in range(3):
        engine = trial.at_work()
        engine.wait_ready()
        for pid in children(engine.pid):
            if "stoker.devices.nvml_probe" in command_of(pid):
                kill_and_wait(pid)
                trial.disruptions["NVML process"] += 1
        trial.feed(trial.next_number + 4)
        time.sleep(trial.dice.uniform(0.1, 0.6))


@fault("driver-hangs", VERIFIED, devices="nvml", needs=("cc",), noisy=True)
def driver_hangs(trial: QueueStorm) -> None:
    """Calls do not return for a while."""
    call = trial.dice.choice(["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCount_v2"])
    _sick(trial, replace(FOUR, blocked={call: 30.0}), "driver hangs")


@fault("driver-fails", VERIFIED, devices="nvml", needs=("cc",), noisy=True)
def driver_fails(trial: QueueStorm) -> None:
    """Every call fails, or the driver is not there at all."""
    sick = trial.dice.choice([replace(FOUR, init=DRIVER_NOT_LOADED), replace(FOUR, faults={"*": UNKNOWN})])
    _sick(trial, sick, "driver fails")


@fault("gpu-lost", VERIFIED, devices="nvml", needs=("cc",), noisy=True)
def gpu_lost(trial: QueueStorm) -> None:
    """One of the GPUs falls off the bus."""
    gpus = list(FOUR.gpus)
    gpus[trial.dice.randrange(4)] = replace(trial.dice.choice(gpus), faults={"*": GPU_IS_LOST})
    gpus = [
        replace(gpu, uuid=FOUR.gpus[at].uuid) for at, gpu in enumerate(gpus)
    ]  # its name is the same, it only answers no more
    _sick(trial, FakeMachine(tuple(gpus)), "GPU lost")


@fault(
    "gpu-order", "a job keeps its GPU by its UUID, whatever number the driver gives it", devices="nvml", needs=("cc",)
)
def gpu_order(trial: QueueStorm) -> None:
    """The driver counts the GPUs in another order."""
    _sick(trial, FakeMachine(tuple(trial.dice.sample(FOUR.gpus, 4))), "order changed")


def _sick(trial: QueueStorm, machine: FakeMachine, what: str) -> None:
    trial.feed(8)
    trial.wait_running()
    _bench(trial.home).write(machine)
    trial.disruptions[what] += 1
    trial.feed(trial.next_number + 4)
    time.sleep(SICK_SECONDS / 2)
    trial.disruptions["engine"] += trial.dice.random() < 0.4 and trial.at_work().kill()
    trial.at_work()
    time.sleep(SICK_SECONDS / 2)
    _bench(trial.home).write(FOUR)
