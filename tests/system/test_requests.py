"""What doors ask of jobs, however close together and whoever died meanwhile."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from stoker.core.job import Cancelled, Exited, Retried, Running, Skipped, Started, Stopping
from stoker.core.requests import Again, Cancel, Edit, Hold, Release, Request
from stoker.core.spec import Dependency
from stoker.devices.detect import DeclaredDevices
from support.engines import Workshop

WAIT = "while [ ! -e go ]; do sleep 0.02; done"


def leave(shop: Workshop, *requests: Request) -> None:
    """Put requests into the store, all to be found in one turn."""
    shop.store.ask([(shop.name, request) for request in requests], time.time())
    shop.engine.wake()


def kinds(shop: Workshop, job_id: int) -> list[type[object]]:
    """The job's story, in kinds of events."""
    return [type(event) for event in shop.store.events(job_id)]


def test_a_cancelled_job_stays_so_whatever_else_is_asked_of_it(tmp_path: Path) -> None:
    """Requests that come in one turn with a cancel, behind it, do not bring a waiting job back."""
    with Workshop(tmp_path, devices=DeclaredDevices(["0"])) as shop:
        _, job_id = shop.submit(WAIT, "touch ran")
        shop.work_until(lambda: len(shop.engine.active_jobs) == 1)
        spec = shop.job(job_id).spec
        leave(shop, Cancel(job_id), Edit(job_id, spec, "other"), Hold(job_id), Release(job_id))
        (tmp_path / "go").touch()
        shop.finish()
        assert kinds(shop, job_id) == [Cancelled]
        assert shop.ended(job_id).result == "cancelled"
        assert not (tmp_path / "ran").exists()


def test_a_job_can_be_cancelled_and_retried_at_once(tmp_path: Path) -> None:
    """A retry in one turn with the cancel before it finds the job ended, and runs it."""
    with Workshop(tmp_path, devices=DeclaredDevices(["0"])) as shop:
        _, job_id = shop.submit(WAIT, "touch ran")
        shop.work_until(lambda: len(shop.engine.active_jobs) == 1)
        leave(shop, Cancel(job_id), Again(job_id))
        (tmp_path / "go").touch()
        shop.finish()
        assert kinds(shop, job_id)[:2] == [Cancelled, Retried]
        assert shop.ended(job_id).result == "done"


def test_a_skipped_job_is_skipped_once(tmp_path: Path) -> None:
    """A request for a job whose fate is decided and not yet recorded changes nothing."""
    with Workshop(tmp_path) as shop:
        (first,) = shop.submit("exit 1")
        (second,) = shop.submit("true", after=(Dependency(first),))
        shop.on_event = lambda job_event: leave(shop, Hold(second)) if isinstance(job_event.event, Exited) else None
        shop.finish()
        assert kinds(shop, second) == [Skipped]


def test_a_chain_of_skipped_jobs_is_recorded_at_once(tmp_path: Path) -> None:
    """What follows from an end is written without waiting for anything else to happen."""
    with Workshop(tmp_path) as shop:
        last = shop.submit("exit 1")[0]
        chain = []
        for _ in range(4):
            (last,) = shop.submit("true", after=(Dependency(last),))
            chain.append(last)
        began = time.monotonic()
        while not shop.engine.idle:
            shop.engine.turn(60.0)
        assert [shop.ended(job_id).result for job_id in chain] == ["skipped"] * 4
        assert time.monotonic() - began < 50.0  # else it has slept for a whole turn


def test_a_job_that_is_being_stopped_started_once(tmp_path: Path) -> None:
    """An engine that takes over a job which is being stopped does not tell of its start again."""
    first = Workshop(tmp_path, name="first")
    (job_id,) = first.submit(f"trap '' TERM; {WAIT}; exit 3")
    first.work_until(lambda: isinstance(first.job(job_id).state, Running))
    first.engine.cancel(job_id, 1000.0, "not wanted")
    first.work_until(lambda: isinstance(first.job(job_id).state, Stopping))
    first.abandon()
    with Workshop(tmp_path, name="second") as second:
        second.engine.adopt(second.job(job_id), adopted=False)
        (tmp_path / "go").touch()
        second.finish()
        assert kinds(second, job_id)[1:] == [Started, Cancelled, Exited]


def test_a_run_that_was_lost_while_it_was_being_stopped_counts(tmp_path: Path) -> None:
    """The next run of the job has another number, so that nothing of the two is mixed up."""
    with Workshop(tmp_path) as shop:
        (job_id,) = shop.submit(f"echo $STOKER_ATTEMPT >> runs; trap '' TERM; echo $PPID > worker; touch up; {WAIT}")
        shop.work_until((tmp_path / "up").exists)
        shop.engine.cancel(job_id, 1000.0, "not wanted")
        shop.work_until(lambda: isinstance(shop.job(job_id).state, Stopping))
        os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)
        shop.finish()
        (tmp_path / "go").touch()
        leave(shop, Again(job_id))
        shop.work_until(lambda: shop.ended(job_id).result == "done" if not shop.engine.active_jobs else False)
        assert (tmp_path / "runs").read_text().split() == ["1", "2"]
