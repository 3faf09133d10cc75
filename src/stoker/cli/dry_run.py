"""`--dry-run`: what would run where, by the very plan that would decide it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from stoker.core.job import Job, Waiting
from stoker.core.plan import Policy, plan
from stoker.core.reasons import sentence
from stoker.core.waiting import WaitingJobs
from stoker.devices.kind import Devices
from stoker.store import NewJob
from stoker.words import printable


def show_plan(policy: Policy, devices: Devices, jobs: Sequence[NewJob]) -> int:
    """Print a line for each job: its place in the list, its device or why it would wait, and its command."""
    now = time.time()
    waiting = WaitingJobs()
    listed = [
        Job(
            id=number,
            batch=0,
            command=job.command,
            terms=job.terms,
            state=Waiting(now),
            submitted=now,
            name=job.name,
        )
        for number, job in enumerate(jobs, 1)
    ]
    for job in listed:
        waiting.add(job)
    snapshot = devices.look(now)
    decided = plan(waiting, [], snapshot, [], policy, now)
    labels = {device.id: device.label for device in snapshot.devices}
    places = {start.job.id: ",".join(labels[device] for device in start.devices) for start in decided.starts}
    print("JOB\tGPU\tHOW\tDIRECTORY\tCOMMAND\tWHY")
    for job in listed:
        reason = decided.reason(job)
        how = f"{job.command.shell} -c" if job.command.shell else "exec"
        why = sentence(reason) if reason is not None else "starts at once"
        fields = [str(job.id), places.get(job.id, "") or "-", how, job.terms.cwd, job.command.text, why]
        print("\t".join(printable(field) for field in fields))
    return 0
