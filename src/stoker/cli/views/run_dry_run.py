"""`--dry-run`: what would run where, by the very plan that would decide it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from stoker.core.job import Job, Waiting
from stoker.core.planner.plan import Plan, plan
from stoker.core.planner.policy import Policy
from stoker.core.planner.queue import WaitingJobs
from stoker.core.planner.reasons import sentence
from stoker.core.spec import NewJob
from stoker.core.text import printable, text_for_json
from stoker.devices.interface import Devices

COLUMNS = ("JOB", "GPU", "HOW", "DIRECTORY", "COMMAND", "WHY")


class PlannedJob(Struct, frozen=True):
    """What would become of one job."""

    job: int
    """Its place in the list."""
    devices: list[str]
    how: str
    """`exec`, or the shell that would read it."""
    directory: str
    command: str
    why: str


class DryRun(Struct, frozen=True):
    """A whole list: `stoker run --dry-run --json`."""

    schema: str
    jobs: list[PlannedJob]


def show_plan(
    policy: Policy, devices: Devices, jobs: Sequence[NewJob], succeeded: Callable[[NewJob], bool], *, as_json: bool
) -> int:
    """Print a line for each job, or all of them as one JSON value."""
    planned = _planned(policy, devices, jobs, succeeded)
    if as_json:
        sys.stdout.write(msgspec.json.encode(DryRun("stoker.dry-run/1", planned)).decode() + "\n")
        return 0
    print("\t".join(COLUMNS))
    for one in planned:
        fields = (str(one.job), ",".join(one.devices) or "-", one.how, one.directory, one.command, one.why)
        print("\t".join(printable(field) for field in fields))
    return 0


def _planned(
    policy: Policy, devices: Devices, jobs: Sequence[NewJob], succeeded: Callable[[NewJob], bool]
) -> list[PlannedJob]:
    now = time.time()
    waiting = WaitingJobs()
    listed = [
        Job(id=number, batch=0, command=job.command, spec=job.spec, state=Waiting(now), submitted=now)
        for number, job in enumerate(jobs, 1)
    ]
    done = {job.id for job, new in zip(listed, jobs, strict=True) if succeeded(new)}
    for job in listed:
        if job.id not in done:
            waiting.add(job)
    snapshot = devices.snapshot(now)
    decided = plan(waiting, [], snapshot, [], policy, now)
    labels = {device.id: device.label for device in snapshot.devices}
    return [_planned_job(job, decided, labels, done=job.id in done) for job in listed]


def _planned_job(job: Job, decided: Plan, labels: dict[str, str], *, done: bool) -> PlannedJob:
    devices = next((start.devices for start in decided.starts if start.job.id == job.id), ())
    reason = decided.reason(job)
    why = "succeeded before" if done else sentence(reason) if reason is not None else "starts at once"
    return PlannedJob(
        job=job.id,
        devices=[text_for_json(labels[device]) for device in devices],
        how=f"{job.command.shell} -c" if job.command.shell else "exec",
        directory=text_for_json(job.spec.cwd),
        command=text_for_json(job.command.text),
        why=why,
    )
