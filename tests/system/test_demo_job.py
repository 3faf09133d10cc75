"""The demonstration job on simulated GPUs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import stoker
from stoker.core.interference import slowdown
from stoker.devices.demo_job import Options, VisibleGpus, argument_parser, visible_devices
from stoker.devices.simulator import SimulatedProcess
from support.simulated_machine import GIB, SimulatedMachine, finish, simulated_machine, start_job
from support.wait import PATIENCE_SECONDS, wait_until

PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "CUDA_"))}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SimulatedMachine]:
    with simulated_machine("2x24G", tmp_path) as machine:
        yield machine


def test_it_prints_its_steps_and_leaves_nothing(machine: SimulatedMachine, tmp_path: Path) -> None:
    """Each step is a line with a falling loss; at the end the memory is given back."""
    job = machine.start("--memory", "6G", "--seconds", "0.2", "--steps", "4")
    code, out, err = finish(job)
    assert (code, err) == (0, "")
    title, *steps = out.splitlines()
    assert title == "demo_job: 6.0G on GPU 0"
    assert [line.split(" loss ")[0] for line in steps] == ["step 1/4", "step 2/4", "step 3/4", "step 4/4"]
    losses = [float(line.split(" loss ")[1]) for line in steps]
    assert losses == sorted(losses, reverse=True)
    assert list(tmp_path.iterdir()) == []


def test_it_runs_without_a_simulator() -> None:
    """Outside Stoker it holds nothing and just runs."""
    code, out, err = finish(start_job("--seconds", "0", "--steps", "1", environment=PLAIN))
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "demo_job: 1.0G on GPU none"


def test_it_holds_nothing_when_no_gpu_is_visible(machine: SimulatedMachine) -> None:
    """An empty CUDA_VISIBLE_DEVICES leaves the process without a GPU, however much it asks for."""
    code, out, _ = finish(machine.start("--memory", "99G", "--seconds", "0", gpus=""))
    assert code == 0
    assert out.splitlines()[0] == "demo_job: 99.0G on GPU none"


def test_of_two_that_do_not_fit_exactly_one_dies(machine: SimulatedMachine) -> None:
    """Two jobs of 16G started together on 24G: one runs, the other dies with PyTorch's words and code 1."""
    jobs = [machine.start("--memory", "16G", "--seconds", "60") for _ in range(2)]
    wait_until(lambda: any(job.poll() is not None for job in jobs))
    (dead,) = [job for job in jobs if job.poll() is not None]
    (alive,) = [job for job in jobs if job is not dead]
    code, _, err = finish(dead)
    assert code == 1
    assert err.startswith(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 16.00 GiB. "
        "GPU 0 has a total capacity of "
        f"24.00 GiB of which 8.00 GiB is free. Process {alive.pid} has 16.00 GiB memory in use. "
        "Including non-PyTorch memory, this process has 0 bytes memory in use. Of the allocated memory "
    )
    assert alive.poll() is None
    assert machine.reading().used == 16 * GIB


def test_on_two_gpus_it_needs_both(machine: SimulatedMachine) -> None:
    """A job whose second GPU is full dies, names it by its number within the process, and holds neither."""
    machine.start("--memory", "20G", "--seconds", "60", gpus="0")
    machine.wait_used(20 * GIB)
    code, _, err = finish(machine.start("--memory", "6G", "--seconds", "60", gpus="1,0"))
    assert code == 1
    assert "GPU 1 has a total capacity of 24.00 GiB of which 4.00 GiB is free." in err
    assert machine.reading(1).used == 0


def test_ramp_takes_memory_bit_by_bit(machine: SimulatedMachine) -> None:
    """With a ramp the job holds only a part at first, and gets to all of it in the end."""
    machine.start("--memory", "8G", "--ramp", "1000", "--seconds", "60")
    wait_until(lambda: 0 < (machine.reading().used or 0) < 8 * GIB)
    options = argument_parser().parse_args(["--memory", "8G", "--ramp", "4"], Options())
    assert [options.memory_at(second) for second in (0, 1, 4, 9)] == [0, 2 * GIB, 8 * GIB, 8 * GIB]


def test_term_saves_and_ends(machine: SimulatedMachine, tmp_path: Path) -> None:
    """On SIGTERM the job says that it saved, gives its memory back and ends with 143."""
    job = machine.start("--memory", "6G", "--seconds", "60")
    machine.wait_used(6 * GIB)
    job.terminate()
    code, out, err = finish(job)
    assert (code, err) == (143, "")
    assert out.endswith("terminated, checkpoint saved\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [("--memory", "much"), ("--load", "101"), ("--load", "-1")])
def test_a_wrong_option_is_told_in_one_line(options: tuple[str, str]) -> None:
    """The message names the word and shows how to write it."""
    code, out, err = finish(start_job(*options, environment=PLAIN))
    assert (code, out) == (2, "")
    assert err.startswith(f"demo_job: {options[1]!r} is not a ")
    assert "; write " in err


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2,0", [2, 0]),
        (" 1, 3", [1, 3]),
        ("0,2,-1,1", [0, 2]),
        ("0,9,1", [0]),
        ("0,0", []),
        ("GPU-8932f937", []),
    ],
)
def test_visible_devices_are_read_as_cuda_does(words: str | None, seen: list[int]) -> None:
    """Unset is all, empty is none, a wrong entry cuts the rest, a doubled one voids all."""
    assert visible_devices(words, 4) == seen


def test_it_needs_nothing_but_the_standard_library() -> None:
    """It runs where no installed package can be imported, so a start costs next to nothing."""
    source = str(Path(str(stoker.__file__)).parents[1])
    command = [sys.executable, "-S", "-m", "stoker.devices.demo_job", "--seconds", "0"]
    ended = subprocess.run(
        command, env=PLAIN | {"PYTHONPATH": source}, capture_output=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_the_speed_is_that_of_the_law(tmp_path: Path) -> None:
    """Alone a job runs at full speed; beside others as the law says, on two devices at the speed of the slower one."""
    with ExitStack() as stack:
        variables = {"STOKER_SIM": "2x24G", "STOKER_SIM_DIR": str(tmp_path)}
        gpus = stack.enter_context(closing(VisibleGpus(variables, 60)))
        gpus.hold(GIB)
        assert gpus.speed() == 1.0
        for device, load in ((0, 40), (1, 90), (1, 0)):
            other = stack.enter_context(closing(SimulatedProcess(str(tmp_path), [24 * GIB] * 2)))
            other.hold({device: GIB}, {device: load})
        assert gpus.speed() == slowdown(60, 150, 2)
