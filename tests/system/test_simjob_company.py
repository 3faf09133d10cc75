"""How simulated jobs fare beside others, and how they tell of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from stoker.core.interference import slowdown
from stoker.devices.demo_job import Bar, Gpus, bar_text, parse
from stoker.devices.simulator import SimulatedProcess, switch_accounting
from support.simjobs import GIB, SimulatedMachine, finish, simulated_machine
from support.wait import line_from

SIZES = [24 * GIB, 24 * GIB]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[SimulatedMachine]:
    with simulated_machine("2x24G", tmp_path) as machine:
        yield machine


def test_the_speed_is_that_of_the_law(tmp_path: Path) -> None:
    """Alone a job runs at full speed; in company as the law says, on two devices at the speed of the slower one."""
    with ExitStack() as stack:
        variables = {"STOKER_SIM": "2x24G", "STOKER_SIM_DIR": str(tmp_path)}
        gpus = stack.enter_context(closing(Gpus(variables, parse(["--load", "60"]))))
        gpus.hold(GIB)
        assert gpus.speed() == 1.0
        for device, load in ((0, 40), (1, 90), (1, 0)):
            stack.enter_context(closing(SimulatedProcess(str(tmp_path), SIZES))).hold({device: GIB}, {device: load})
        assert gpus.speed() == slowdown(60, 150, 2)


def test_company_takes_time(machine: SimulatedMachine) -> None:
    """Beside a neighbour that loads the GPU as much, two seconds of work take well over that."""
    machine.start("--load", "100", "--seconds", "60")
    machine.wait_used(GIB)
    job = machine.start("--load", "100", "--seconds", "2")
    line_from(job.stdout)
    began = time.monotonic()
    assert finish(job)[0] == 0
    assert time.monotonic() - began > 2.1


def test_accounts_tell_how_busy_the_device_was(machine: SimulatedMachine, tmp_path: Path) -> None:
    """The utilisation in an account is the device's, with all that ran beside the process."""
    switch_accounting(str(tmp_path), on=True)
    machine.start("--load", "50", "--seconds", "60")
    machine.wait_used(GIB)
    job = machine.start("--load", "20", "--seconds", "0.3")
    assert finish(job)[0] == 0
    accounts = {account.pid: account for account in machine.reading().accounts or ()}
    assert 60 <= (accounts[job.pid].utilisation or 0) <= 70


def test_a_bar_is_drawn_over_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Each step puts the bar in place of the one before, on standard error; the last one stays."""
    bar = Bar(4)
    for done, elapsed in ((0.0, 0.0), (0.1, 0.1), (0.5, 1.0), (1.0, 2.0)):
        bar.show(done, elapsed)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines(keepends=True) == [
        "\r",
        "  0%|          | 0/4 [00:00<?, ?it/s]\r",
        " 50%|█████     | 2/4 [00:01<00:01,  2.00it/s]\r",
        "100%|██████████| 4/4 [00:02<00:00,  2.00it/s]\n",
    ]


def test_a_job_can_show_a_bar(machine: SimulatedMachine) -> None:
    """With --tqdm there are no lines for steps, and the bar gets to its end."""
    code, out, err = finish(machine.start("--tqdm", "--steps", "5", "--seconds", "0.1"))
    assert (code, out) == (0, "simjob: 1.0G on GPU 0\n")
    assert "| 5/5 [00:00<00:00, " in err.splitlines()[-1]


def test_bars_are_those_of_tqdm() -> None:
    """Percent, bar, steps, time gone, time left and rate are written as tqdm writes them."""
    assert bar_text(45, 100, 10.0, 4.5) == " 45%|████▌     | 45/100 [00:10<00:12,  4.50it/s]"
    assert bar_text(3, 4, 3700.0, 0.25) == " 75%|███████▌  | 3/4 [1:01:40<00:04,  4.00s/it]"
