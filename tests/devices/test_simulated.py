"""Simulated GPUs as the engine sees them."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import UsageError
from stoker.devices.simulated import SimulatedDevices
from support.simulated_machine import GIB, SimulatedMachine, simulated_machine
from support.wait import PATIENCE_SECONDS


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SimulatedMachine]:
    with simulated_machine("2x24G", tmp_path / "sim") as machine:
        yield machine


def test_devices_say_that_they_are_simulated(tmp_path: Path) -> None:
    """Ids, models and claims cannot be mistaken for those of a real GPU."""
    first, second = SimulatedDevices("1x80G,1x1.5G", str(tmp_path)).snapshot(0.0).devices
    assert (first.id, first.label, first.visible) == ("SIM-0", "0", "0")
    assert (first.kind, first.claims, first.memory) == ("simulated", ("sim:0",), 80 * GIB)
    assert (second.id, second.visible, second.claims) == ("SIM-1", "1", ("sim:1",))
    assert [first.model, second.model] == ["SIM 80G", "SIM 1.5G"]


def test_a_wrong_description_makes_no_directory(tmp_path: Path) -> None:
    """A mistake in the description leaves no trace."""
    with pytest.raises(UsageError):
        SimulatedDevices("4", str(tmp_path / "sim"))
    assert not (tmp_path / "sim").exists()


def test_an_idle_device_is_read_as_idle(machine: SimulatedMachine) -> None:
    """Without jobs nothing is used, and that is a measurement, not a lack of one."""
    reading = machine.reading()
    assert (reading.used, reading.utilisation, reading.processes, reading.problem) == (0, 0, (), "")
    assert machine.devices.fileno() == -1


def test_jobs_on_a_device_are_summed(machine: SimulatedMachine) -> None:
    """Memory adds up, load is capped at 100, and each process is shown with owner and command."""
    jobs = [machine.start("--memory", size, "--seconds", "60", "--load", "70") for size in ("6G", "2G")]
    machine.wait_used(8 * GIB)
    reading = machine.reading()
    assert reading.utilisation == 100
    assert {process.pid: process.memory for process in reading.processes} == {
        jobs[0].pid: 6 * GIB,
        jobs[1].pid: 2 * GIB,
    }
    assert {process.owner for process in reading.processes} == {pwd.getpwuid(os.getuid()).pw_name}
    assert all("training_job.py --memory" in process.command for process in reading.processes)
    assert machine.reading(1).used == 0


def test_a_job_on_two_devices_is_on_both(machine: SimulatedMachine) -> None:
    """A process that sees two GPUs holds the same on each."""
    job = machine.start("--memory", "5G", "--seconds", "60", "--load", "40", gpus="1,0")
    machine.wait_used(5 * GIB, index=1)
    for index in (0, 1):
        reading = machine.reading(index)
        assert (reading.used, reading.utilisation) == (5 * GIB, 40)
        assert [process.pid for process in reading.processes] == [job.pid]


def test_a_killed_job_is_gone_at_the_next_look(machine: SimulatedMachine, tmp_path: Path) -> None:
    """After kill -9 the very next snapshot finds the memory free, and the dead process's file is removed."""
    job = machine.start("--memory", "20G", "--seconds", "60")
    machine.wait_used(20 * GIB)
    job.kill()
    job.wait(PATIENCE_SECONDS)
    reading = machine.reading()
    assert (reading.used, reading.processes) == (0, ())
    assert list((tmp_path / "sim").iterdir()) == []


def test_temperature_and_power_follow_the_load(machine: SimulatedMachine) -> None:
    """A busy device is warmer and takes more power."""
    idle = machine.reading()
    machine.start("--seconds", "60", "--load", "100")
    machine.wait_used(GIB)
    busy = machine.reading()
    assert (busy.temperature or 0) > (idle.temperature or 99)
    assert (busy.power or 0) > (idle.power or 999)


def test_a_vanished_directory_is_unknown_and_never_free(machine: SimulatedMachine, tmp_path: Path) -> None:
    """When the holdings are unknown, every device has a problem instead of free memory."""
    shutil.rmtree(tmp_path / "sim")
    for index in (0, 1):
        reading = machine.reading(index)
        assert (reading.used, reading.processes, reading.accounts) == (None, (), None)
        assert "cannot be read" in reading.problem
