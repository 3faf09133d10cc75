"""The files between the head and a pilot."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.job import Job, Started, Waiting
from stoker.core.spec import Command, JobSpec
from stoker.features.slurm.pilot.files import (
    Alive,
    AttemptReport,
    CheckOrder,
    Leave,
    Leaving,
    Over,
    PilotEvent,
    PilotFolder,
    PilotOrder,
    PilotPlan,
    PilotReady,
    Ping,
    Recall,
    RunJob,
    Stop,
)
from stoker.features.slurm.shared import append

PLAN = PilotPlan("lab", "/shared/reports", 20.0, sim="2x8G", gpus=2)
JOB = Job(1, 1, Command(("true",)), JobSpec(), Waiting(0.0), 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> PilotFolder:
    folder = PilotFolder(tmp_path)
    folder.make_pilot(PLAN)
    return folder


def test_the_plan_can_be_read_again(folder: PilotFolder) -> None:
    """It is written last, so that a folder with a plan is complete."""
    assert folder.is_complete
    assert folder.plan() == PLAN


def test_orders_and_events_can_be_read_again(folder: PilotFolder) -> None:
    """Each from where the last look ended."""
    orders: list[PilotOrder] = [
        RunJob(JOB, {"A": "b"}),
        Recall(1),
        Stop(1, "why", 2.0, 10),
        Ping(),
        Leave(),
        CheckOrder("a", "/p", "G"),
    ]
    events: list[PilotEvent] = [
        PilotReady("n1", 2),
        AttemptReport("1.1", Started(1, 5.0, ("lab:n1 0",))),
        Alive(),
        Leaving(),
        Over(),
    ]
    folder.give(orders[:2])
    read, offset = folder.read_orders(0)
    assert read == orders[:2]
    folder.give(orders[2:])
    assert folder.read_orders(offset)[0] == orders[2:]
    folder.report(events)
    assert folder.read_events(0)[0] == events


def test_only_whole_lines_are_read(folder: PilotFolder) -> None:
    """A line that nobody understands is skipped: its writer may have been killed in it."""
    append(folder.at("events"), b'{"type":"al\n{"type":"alive"}\n{"type":')
    events, offset = folder.read_events(0)
    assert events == [Alive()]
    append(folder.at("events"), b'"over"}\n')
    assert folder.read_events(offset)[0] == [Over()]


def test_an_attempt_is_claimed_once(folder: PilotFolder) -> None:
    """By the pilot, or by the head that takes it back."""
    assert [folder.claim_as("1.1"), folder.claim_as("1.1")] == [True, False]
    folder.sync_claims()
