"""What a turn of the head costs follows what has changed and how many pilots there are, not how many jobs wait.

Costs are counts of calls and of instructions of the interpreter, which do not depend on the machine.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from features.slurm.worlds import CROWD_GPUS, DirectWorld, PilotCrowd
from stoker.core.settings import ClusterSettings, Policy
from stoker.features.slurm.orders import REMOVED_AT_ONCE
from stoker.features.slurm.pilot.files import Over
from stoker.features.slurm.pilot.head import LONGEST_PAUSE
from stoker.features.slurm.site import REMOVE_INTERVAL, SlurmSite
from support.shared_directory import counted_calls

FEW, MANY = 6, 24
"""Pilots."""


@contextmanager
def counted_steps() -> Iterator[Counter[str]]:
    """Count the instructions that the interpreter runs in functions of the program, by function."""
    steps: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if "/stoker/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        steps[frame.f_code.co_qualname] += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield steps
    finally:
        sys.settrace(before)


@pytest.fixture
def crowd_of(tmp_path: Path) -> Iterator[Callable[..., PilotCrowd]]:
    crowds: list[PilotCrowd] = []

    def make(pilots: int, waiting: int) -> PilotCrowd:
        place = tmp_path / str(len(crowds))
        place.mkdir()
        crowds.append(PilotCrowd(place, pilots, waiting))
        return crowds[-1]

    yield make
    for crowd in crowds:
        crowd.close()


def turn_steps(crowd: PilotCrowd) -> int:
    """The cost of a turn half a second later."""
    crowd.clock.pass_seconds(0.5)
    with counted_steps() as steps:
        crowd.turn()
    return steps.total()


def end_of_one(crowd: PilotCrowd) -> int:
    """The cost of a turn in which one pilot has ended a job and gets another."""
    assert crowd.end(crowd.pilots[:1]) == 1
    return turn_steps(crowd)


def fill(crowd: PilotCrowd) -> int:
    """Let pilots end everything at once until they are given many jobs, and tell how many wait in them then."""
    for _ in range(5):
        crowd.clock.pass_seconds(0.2)
        for pilot in crowd.pilots:
            pilot.end_all(crowd.clock())
        crowd.turn()
    crowd.settle(5.0)
    return len(crowd.engine.active_jobs)


CrowdOf = Callable[..., PilotCrowd]


def test_waiting_jobs_cost_nothing(crowd_of: CrowdOf) -> None:
    """A turn without news, and one with an end, cost the same however many jobs wait."""
    few, many = crowd_of(FEW, 20), crowd_of(FEW, 1000)
    assert turn_steps(many) == pytest.approx(turn_steps(few), rel=0.05)
    assert end_of_one(many) == pytest.approx(end_of_one(few), rel=0.05)


def test_a_job_costs_the_same_with_more_pilots(crowd_of: CrowdOf) -> None:
    """Who gets it is found without a look at each pilot."""
    costs = {}
    for pilots in (FEW, MANY):
        crowd = crowd_of(pilots, 100)
        assert crowd.end(crowd.pilots) == pilots
        costs[pilots] = turn_steps(crowd)
        assert len(crowd.engine.active_jobs) == 3 * CROWD_GPUS * pilots
    assert costs[MANY] <= costs[FEW] * MANY / FEW


@pytest.mark.parametrize("policy", [Policy(), Policy(max_running=10_000)])
def test_jobs_in_pilots_cost_nothing(crowd_of: CrowdOf, policy: Policy) -> None:
    """Neither those that wait there for long, nor those that count towards a limit."""
    few, many = crowd_of(FEW, 1500), crowd_of(FEW, 1500)
    few.engine.policy = many.engine.policy = policy
    assert fill(many) > 3 * len(few.engine.active_jobs)
    assert turn_steps(many) <= 1.1 * turn_steps(few)
    assert few.end(few.pilots[:1], 0) == many.end(many.pilots[:1], 0) == 0
    for crowd in (few, many):
        crowd.settle(0.5)
    assert end_of_one(many) <= 1.1 * end_of_one(few)


def test_each_look_opens_one_file_of_each_pilot(crowd_of: CrowdOf) -> None:
    """And an end one more for the next order, however many jobs wait or run."""
    counts = {}
    for pilots, waiting in ((FEW, 20), (FEW, 1000), (MANY, 20)):
        crowd = crowd_of(pilots, waiting)
        crowd.clock.pass_seconds(0.5)
        with counted_calls(Path(crowd.settings.shared)) as quiet:
            crowd.turn()
        assert quiet["open"] == pilots
        crowd.end(crowd.pilots[:1])
        crowd.clock.pass_seconds(0.5)
        with counted_calls(Path(crowd.settings.shared)) as one:
            crowd.turn()
        assert one["open"] == pilots + 1
        assert one["fsync"] == 1
        counts[pilots, waiting] = (quiet.total() - pilots, one.total() - pilots)
    assert len(set(counts.values())) == 1


def test_an_answer_of_slurm_costs_the_same_for_each_pilot(crowd_of: CrowdOf) -> None:
    """None of them is compared with all others."""
    costs = {}
    for pilots in (FEW, MANY):
        crowd = crowd_of(pilots, 100)
        crowd.clock.pass_seconds(2 * crowd.settings.poll)
        with counted_steps() as steps:
            crowd.turn(6)
        assert steps["Controller.cancel_ghosts"], "Slurm was asked"
        costs[pilots] = steps
    assert costs[MANY].total() <= costs[FEW].total() * MANY / FEW
    assert costs[MANY]["SlurmSite._all"] == costs[FEW]["SlurmSite._all"]  # which copies a table of all pilots


def test_tasks_in_slurm_cost_nothing_between_its_answers(tmp_path: Path) -> None:
    """A turn of direct mode in which nothing is due."""
    costs = {}
    for tasks in (10, 200):
        (tmp_path / str(tasks)).mkdir()
        world = DirectWorld(tmp_path / str(tasks), ClusterSettings(pilots="never", poll=1000.0))
        world.add(tasks)
        world.step(100)
        assert len(world.slurm.tasks) == tasks
        with counted_steps() as steps:
            world.turn()
        costs[tasks] = sum(count for name, count in steps.items() if "_whole_arrays" in name)
        world.close()
    assert costs[200] == costs[10]


def test_a_pilot_that_ran_many_jobs_is_removed_in_steps(crowd_of: CrowdOf) -> None:
    """Its orders at once, so that it starts nothing any more, and a few of its claims in each turn."""
    crowd = crowd_of(1, 0)
    folder, claims = crowd.pilots[0].folder, 10 * REMOVED_AT_ONCE
    while crowd.engine.active_jobs:
        crowd.pilots[0].end_all(crowd.clock())
        crowd.settle(1.0)
    for number in range(claims):
        assert folder.claim_as(f"{number}.1")
    folder.report([Over()])
    crowd.slurm.tasks.clear()
    turns = 0
    while Path(folder.path).exists():
        crowd.clock.pass_seconds(10.0)
        with counted_calls(Path(folder.path)) as calls:
            crowd.turn()
        assert calls["rmdir"] + calls["unlink"] < 1.5 * REMOVED_AT_ONCE
        if folder.is_removed and Path(folder.path).exists():
            turns += 1
            due = crowd.site.due_in(crowd.clock(), placing=True)
            assert due is not None
            assert due <= REMOVE_INTERVAL
        assert turns < 2 * claims / REMOVED_AT_ONCE
    assert turns >= claims / REMOVED_AT_ONCE


def test_a_slow_shared_directory_with_many_pilots(crowd_of: CrowdOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look takes seconds there; news do not have to wait for a hundred times as long."""
    crowd = crowd_of(FEW, 20)
    read = type(crowd.pilots[0].folder).read_events

    def read_slowly(*words: object) -> object:
        crowd.clock.pass_seconds(0.5)
        return read(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(type(crowd.pilots[0].folder), "read_events", read_slowly)
    crowd.clock.pass_seconds(1.0)
    crowd.turn()
    assert isinstance(crowd.site, SlurmSite)
    assert 1.0 < crowd.site._pilots.pace.at - crowd.clock() <= LONGEST_PAUSE
