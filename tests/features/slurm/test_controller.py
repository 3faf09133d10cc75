"""Which commands the controller of a cluster runs, and when."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from features.slurm.fake_slurm import write_program
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.commands import IDS_AT_ONCE, SlurmCommands
from stoker.features.slurm.controller import Controller
from support.wait import wait_until

TAG = "stoker:queue/"


class Fake:
    """Slurm's commands as programs that note how they were called, and a controller that runs them."""

    def __init__(self, directory: Path) -> None:
        self.calls_file = directory / "calls"
        self.answer = directory / "answer"
        self.answer.touch()
        for name in ("squeue", "scancel", "scontrol", "sinfo"):
            note = f'echo {name} "$@" >> {self.calls_file}'
            write_program(directory, name, f"{note}\n[ {name} != squeue ] || cat {self.answer}")
        commands = SlurmCommands({"PATH": f"{directory}:{os.environ['PATH']}"}, os.getuid(), time.monotonic)
        self.controller = Controller(commands, TAG, ClusterSettings(poll=0.05), lambda _: "", time.monotonic)

    def calls(self, name: str) -> list[list[str]]:
        lines = [line.split() for line in self.calls_file.read_text().splitlines()] if self.calls_file.exists() else []
        return [words[1:] for words in lines if words[0] == name]

    def step(self) -> bool:
        """One turn, in which all tasks count as over; whether Slurm answered."""
        answered = self.controller.step({})
        if answered:
            self.controller.cancel_ghosts(lambda *_: True)
        return answered

    def wait_answer(self) -> None:
        wait_until(self.step)

    def wait_cancels(self, count: int) -> None:
        """Wait until scancel was called so often."""
        wait_until(lambda: (self.step(), len(self.calls("scancel")))[1] == count)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    fake = Fake(tmp_path)
    with contextlib.closing(fake.controller):
        yield fake


def squeue_line(tasks: str, bundle: str) -> str:
    return f"{tasks}|PENDING|Priority|N/A|{TAG}{bundle}|\n"


def test_a_whole_array_is_cancelled_by_its_own_id(fake: Fake) -> None:
    """Of another array some tasks are wanted, so that the others are named one by one."""
    fake.answer.write_text(squeue_line("12_[0-899]", "a") + squeue_line("13_[0-2]", "b"))
    for index in range(900):
        fake.controller.forget(f"{TAG}a", index)
    fake.controller.forget(f"{TAG}b", 1)
    fake.wait_cancels(1)
    assert [sorted(words) for words in fake.calls("scancel")] == [["12", "13_1"]]


def test_more_tasks_than_one_scancel_takes(fake: Fake) -> None:
    """All of them are cancelled, by several commands."""
    count = 2 * IDS_AT_ONCE + 10
    fake.answer.write_text(squeue_line(f"12_[0-{count}]", "a"))
    for index in range(count):  # and one that is wanted
        fake.controller.forget(f"{TAG}a", index)
    fake.wait_cancels(3)
    named = [word for words in fake.calls("scancel") for word in words]
    assert sorted(named) == sorted(f"12_{index}" for index in range(count))


def test_slurm_is_asked_until_no_task_is_left(fake: Fake) -> None:
    """A task that lives on after its bundle is over is seen again, and cancelled again."""
    fake.answer.write_text(squeue_line("12", "a"))
    fake.controller.forget(f"{TAG}a", 0)
    fake.wait_cancels(1)
    fake.wait_answer()
    assert fake.controller.due_in({}) is not None
    fake.answer.write_text("")
    fake.wait_answer()
    assert fake.controller.due_in({}) is None


def test_nothing_is_submitted_where_no_command_understands_the_controller(fake: Fake) -> None:
    """Commands and controller of different releases: no answer is taken for the configuration."""
    program = fake.answer.parent / "scontrol"
    program.write_text("#!/bin/sh\necho 'slurm_load_ctl_conf error: Some new trouble' >&2; exit 1\n")
    wait_until(lambda: fake.step() or fake.controller.trouble)
    assert "Some new trouble" in fake.controller.trouble
    assert not fake.controller.knows_limits


def test_the_controller_goes_away_between_two_questions_of_squeue(fake: Fake) -> None:
    """squeue prints the jobs and exits with 0; the next question must not wait for twenty times its duration."""
    words = "slurm_load_partitions: Unable to contact slurm controller (connect failure)"
    (fake.answer.parent / "squeue").write_text(f"#!/bin/sh\ncat {fake.answer}; echo '{words}' >&2\n")
    fake.answer.write_text(squeue_line("12", "a"))
    fake.controller.forget(f"{TAG}a", 0)
    wait_until(lambda: fake.step() or fake.controller.trouble)
    assert "Slurm does not answer" in fake.controller.trouble


def test_drained_nodes_are_forgotten_when_they_are_not_asked_for(fake: Fake) -> None:
    """A node may be in use again when the next pilot starts there."""
    (fake.answer.parent / "sinfo").write_text("#!/bin/sh\necho n1\n")
    fake.answer.write_text(squeue_line("12", "a"))
    fake.controller.forget(f"{TAG}a", 0)
    for watches, drained in ((True, {"n1"}), (False, set())):
        fake.controller.watches_nodes = watches
        fake.wait_answer()
        assert fake.controller.drained == drained
