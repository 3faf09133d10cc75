"""What front ends know: how fast jobs on shared GPUs are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stoker.core.job import Job, Running, Starting
from stoker.core.learning import Learnt, Runs, observe_use, usual_pace
from stoker.core.spec import Resources
from stoker.queue.knowledge import is_shared, speeds_of
from stoker.queue.view_builder import together
from support.build import GIB, a_job, simulated

DEVICES = {device.id: device for device in simulated(24, 24)}
MODEL = DEVICES["0"].model
KNOWN = observe_use(Learnt(), MODEL, pace=4.0)


def running(job_id: int, *devices: str, log: str = "", kind: str = "vit") -> Job:
    """A job on some devices."""
    state = Running(1, f"k{job_id}", devices or ("0",), 0.0, log)
    return msgspec.structs.replace(a_job(job_id, Resources(memory=GIB), state=state), kind=kind)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The log of a job that makes three steps a second."""
    path = tmp_path / "log"
    path.write_text("\r 40%|####      | 40/100 [00:10<00:20, 3.00it/s]")
    return str(path)


def test_against_alone(log: str) -> None:
    """What the log says now, in parts of what such work does alone; both together are more than one."""
    jobs = [running(1, log=log), running(2, log=log)]
    speeds = speeds_of(jobs, DEVICES, lambda kind: KNOWN)
    assert speeds == {1: 0.75, 2: 0.75}
    assert together(jobs, speeds) == 1.5


def test_nothing_is_made_up(log: str) -> None:
    """Neither without company, nor without a rate in the log, nor without one that was learnt."""
    assert speeds_of([running(1, log=log), running(2, "1", log=log)], DEVICES, lambda kind: KNOWN) == {}
    jobs = [running(1, log=log), running(2)]
    assert speeds_of(jobs, DEVICES, lambda kind: KNOWN) == {1: 0.75}
    assert together(jobs, {1: 0.75}) is None
    assert speeds_of(jobs, DEVICES, lambda kind: Learnt()) == {}
    assert speeds_of([running(1, log=log, kind=""), running(2)], DEVICES, lambda kind: KNOWN) == {}
    assert together([running(1)], {1: 0.75}) is None


def test_company() -> None:
    """Jobs share a GPU if one of their devices is the same; what only starts is no company yet."""
    jobs = [running(1, "0", "1"), running(2, "1"), running(3, "2")]
    assert [job.id for job in is_shared(jobs)] == [1, 2]
    starting = msgspec.structs.replace(running(2), state=Starting(1, "k", ("0",), 0.0))
    assert is_shared([running(1), starting]) == []


def test_the_usual_pace() -> None:
    """The middle one of those that were learnt on the same model."""
    learnt = Learnt(models={MODEL: Runs(paces=(1.0, 9.0, 4.0))})
    assert usual_pace(learnt, MODEL) == 4.0
    assert usual_pace(learnt, "another") is None
    assert usual_pace(observe_use(Learnt(), MODEL, peak=GIB), MODEL) is None
