"""What a new engine makes of attempts on shared GPUs that another one began."""

from __future__ import annotations

from pathlib import Path

from stoker.core.device import Snapshot
from stoker.core.job import Exited, Job, Running
from stoker.core.spec import Resources
from stoker.devices.simulated import SimulatedDevices
from support.build import GIB
from support.engines import Workshop
from support.training_job import TRAIN

SIM = "1x24G"


class LateSimulated(SimulatedDevices):
    """Simulated GPUs of a driver that does not answer at first."""

    silent = True

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """Nothing, until the driver answers."""
        return Snapshot(now, ()) if self.silent else super().snapshot(now, newer_than)


def devices(directory: Path) -> SimulatedDevices:
    return SimulatedDevices(SIM, str(directory / "sim"))


def left_running(directory: Path, line: str, resources: Resources) -> Job:
    """A job that runs, and whose engine is dead."""
    first = Workshop(directory, devices=devices(directory), name="first")
    (job_id,) = first.submit(line, resources=resources)
    first.work_until(lambda: isinstance(first.job(job_id).state, Running))
    job = first.job(job_id)
    first.interrupt()
    return job


def test_a_driver_that_answers_late_shows_on_what_an_attempt_runs(tmp_path: Path) -> None:
    """Its part is known from then on, others have the rest, and a shortage in company is no failure of its own."""
    line = f"while [ ! -e go ]; do sleep 0.02; done; {TRAIN} --memory 20G --seconds 1 --oom-text jax"
    job = left_running(tmp_path, line, Resources(memory=4 * GIB))
    late = LateSimulated(SIM, str(tmp_path / "sim"))
    with Workshop(tmp_path, devices=late, name="second") as second:
        second.engine.adopt(job, adopted=False)
        second.engine.turn(0)
        late.silent = False
        (beside,) = second.submit(f"{TRAIN} --memory 10G --seconds 600", resources=Resources(memory=10 * GIB))
        second.work_until(lambda: isinstance(second.job(beside).state, Running))
        second.work_until(lambda: any(live.memory for live in second.engine.uses.values()))
        (tmp_path / "go").touch()
        second.work_until(lambda: second.job(job.id).tries == 1)
        (exited,) = [event for event in second.store.events(job.id) if isinstance(event, Exited)]
        assert (exited.cause, exited.shared) == ("oom", True)
        assert second.job(job.id).failures == 0
