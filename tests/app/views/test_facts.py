"""What front ends know: how fast jobs on shared GPUs are."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stoker.app.views.facts import device_labels, speeds_of
from stoker.app.views.status import Holders, together
from stoker.core.job import Job, Running, Starting
from stoker.core.learning import Learnt, Runs, observe_use, usual_pace
from stoker.core.spec import Resources
from support.build import GIB, a_job, simulated

DEVICES = {device.id: device for device in simulated(24, 24)}
MODEL = DEVICES["0"].model
KNOWN = observe_use(Learnt(), MODEL, pace=4.0)


def running(job_id: int, *devices: str, log: str = "", kind: str = "vit") -> Job:
    """A job on some devices."""
    state = Running(1, f"k{job_id}", devices or ("0",), 0.0, log)
    return msgspec.structs.replace(a_job(job_id, Resources(memory=GIB), state=state), kind=kind)


def on_a_device(jobs: list[Job]) -> Holders:
    return Holders(jobs, [], [], [], measured=True)


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
    assert together(on_a_device(jobs), speeds) == 1.5


def test_nothing_is_made_up(log: str) -> None:
    """Neither without company, nor without a rate in the log, nor without one that was learnt."""
    assert speeds_of([running(1, log=log), running(2, "1", log=log)], DEVICES, lambda kind: KNOWN) == {}
    jobs = [running(1, log=log), running(2)]
    assert speeds_of(jobs, DEVICES, lambda kind: KNOWN) == {1: 0.75}
    assert together(on_a_device(jobs), {1: 0.75}) is None
    assert speeds_of(jobs, DEVICES, lambda kind: Learnt()) == {}
    assert speeds_of([running(1, log=log, kind=""), running(2)], DEVICES, lambda kind: KNOWN) == {}
    assert together(on_a_device([running(1)]), {1: 0.75}) is None


def test_company(log: str) -> None:
    """Jobs share a GPU if one of their devices is the same; what only starts is no company yet."""
    jobs = [running(1, "0", "1", log=log), running(2, "1", log=log), running(3, "2", log=log)]
    assert speeds_of(jobs, DEVICES, lambda kind: KNOWN) == {1: 0.75, 2: 0.75}
    starting = msgspec.structs.replace(running(2), state=Starting(1, "k", ("0",), 0.0))
    assert speeds_of([running(1, log=log), starting], DEVICES, lambda kind: KNOWN) == {}


def test_the_usual_pace() -> None:
    """The middle one of those that were learnt on the same model."""
    learnt = Learnt(models={MODEL: Runs(paces=(1.0, 9.0, 4.0))})
    assert usual_pace(learnt, MODEL) == 4.0
    assert usual_pace(learnt, "another") is None
    assert usual_pace(observe_use(Learnt(), MODEL, peak=GIB), MODEL) is None


@pytest.mark.parametrize(
    ("device_ids", "labels"),
    [
        (["lab:n3 0", "lab:n3 1"], ["lab:n3 0", "1"]),
        (["lab:n3 0", "lab:n4 0", "lab:n4 2"], ["lab:n3 0", "lab:n4 0", "2"]),
        (["lab:n3 0", "other:n3 1"], ["lab:n3 0", "other:n3 1"]),
        (["GPU-0", "GPU-9"], ["0", "GPU-9"]),
    ],
)
def test_labels_of_devices(device_ids: list[str], labels: list[str]) -> None:
    """Several GPUs of one node share its name; a device that is not known any more keeps its id."""
    device = msgspec.structs.replace(simulated(24)[0], id="GPU-0", label="0")
    assert device_labels(device_ids, {device.id: device}) == labels
