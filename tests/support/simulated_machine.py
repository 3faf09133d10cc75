"""A machine of simulated GPUs for tests, with real jobs that end when the test does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.core.device import Reading
from stoker.devices.simulated import SimulatedDevices
from support.training_job import WORDS
from support.wait import PATIENCE_SECONDS, wait_until

GIB = 2**30


class SimulatedMachine:
    """Simulated devices, the directory behind them, and the jobs started on them."""

    def __init__(self, spec: str, directory: Path) -> None:
        self.devices = SimulatedDevices(spec, str(directory))
        self.environment = os.environ | {"STOKER_SIM": spec, "STOKER_SIM_DIR": str(directory)}
        self.jobs: list[subprocess.Popen[str]] = []

    def start(self, *options: str, gpus: str = "0", **more: str) -> subprocess.Popen[str]:
        """Start a training job that sees these GPUs, with more variables in its environment."""
        environment = self.environment | {"CUDA_VISIBLE_DEVICES": gpus} | more
        job = start_job(*options, environment=environment)
        self.jobs.append(job)
        return job

    def reading(self, index: int = 0, now: float = 0.0) -> Reading:
        """The newest reading of one device."""
        return self.devices.snapshot(now).reading(f"SIM-{index}")

    def wait_used(self, size: int, index: int = 0) -> None:
        """Wait until so many bytes of a device are held."""
        wait_until(lambda: self.reading(index).used == size)


@contextmanager
def simulated_machine(spec: str, directory: Path) -> Iterator[SimulatedMachine]:
    """A machine whose jobs are all gone at the end."""
    machine = SimulatedMachine(spec, directory)
    try:
        yield machine
    finally:
        for job in machine.jobs:
            job.kill()
            job.communicate(timeout=PATIENCE_SECONDS)
        machine.devices.close()


def start_job(*options: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a training job with exactly this environment."""
    command = [*WORDS, *options]
    return subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def finish(job: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a job's end: its code, standard output and standard error."""
    out, err = job.communicate(timeout=PATIENCE_SECONDS)
    return job.returncode, out, err
