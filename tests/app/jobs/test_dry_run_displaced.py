"""`--dry-run` names the jobs that would give way."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from stoker.app.jobs.dry_run import plan_submission
from stoker.app.jobs.submit import JobGroup
from stoker.core.job import Assigned, Event, Started, advance
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.store.engine_lock import QUEUE
from stoker.store.schema import Change
from stoker.store.status_file import EngineStatus
from stoker.store.writer import Store
from support.build import declared

HOUR = 3600.0


def test_the_jobs_that_would_give_way_are_named(tmp_path: Path) -> None:
    """A short job would displace the preemptible one, and a long job none."""
    now = time.time()
    with closing(Store(tmp_path / "queue.db")) as store:
        spec = JobSpec(preemptible="save", limit=20 * HOUR)
        (running,) = store.add_jobs(store.add_batch("test", now), QUEUE, [NewJob(Command(("true",)), spec)], now)
        job = store.job(running)
        assert job is not None
        events: list[Event] = [Assigned("w", ("0",), "/log", now - HOUR), Started(1, now - HOUR)]
        for event in events:
            job = advance(job, event)
        store.record([Change(job, [(1, event) for event in events])])
        engine = EngineStatus("queue", "", 1, "1", 0.0, now, 0, 0, declared("0"), {}, "", "", False, (), ())
        new = [NewJob(Command(("true",)), JobSpec(limit=limit)) for limit in (60.0, 19 * HOUR)]
        short, long = plan_submission([JobGroup(new)], store, engine, now)
    assert short.displaces == [str(running)]
    assert short.why.endswith(f"; job {running} would give way")
    assert long.displaces == []
