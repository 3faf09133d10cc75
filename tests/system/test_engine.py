"""The loop with real processes: what is started, recorded, taken back and recovered."""

from __future__ import annotations

import os
import signal
from itertools import pairwise
from pathlib import Path

import pytest

from stoker.core.job import Assigned, Cancelled, Ended, Exited, Lost, Returned, Running, Started, Stopping, Waiting
from stoker.core.planner.reasons import Crowded, Leased
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from stoker.devices.detect import DeclaredDevices
from stoker.devices.simulated import SimulatedDevices
from stoker.ledger import Ledger
from support.engines import Workshop


def test_every_job_runs_once_and_its_end_is_recorded(tmp_path: Path) -> None:
    """Each of many short jobs runs exactly once, and code, times and devices are in the store."""
    with Workshop(tmp_path) as shop:
        ids = shop.submit(*[f"echo {number} >> ran; exit {number % 3}" for number in range(150)])
        shop.finish()
        assert sorted((tmp_path / "ran").read_text().split(), key=int) == [str(number) for number in range(150)]
        for number, job_id in enumerate(ids):
            ended = shop.ended(job_id)
            assert (ended.code, ended.result) == (number % 3, "failed" if number % 3 else "done")
            attempt = shop.store.attempts(job_id)[-1]
            assert attempt.devices in (("0",), ("1",))
            assert attempt.started is not None
            assert attempt.ended is not None
            assert attempt.started <= attempt.ended
            assert attempt.peak_memory is not None
            assert attempt.peak_memory > 0


def test_the_story_of_a_job_can_be_told(tmp_path: Path) -> None:
    """The events of a job are kept in order, and each was told to the door."""
    with Workshop(tmp_path) as shop:
        (job_id,) = shop.submit("true")
        shop.finish()
        told = [job_event.event for job_event in shop.job_events]
        assert [type(event) for event in told] == [Assigned, Started, Exited]
        assert shop.store.events(job_id) == told


def test_an_assignment_is_recorded_before_it_is_handed_over(tmp_path: Path) -> None:
    """A job finds itself assigned in the store when it runs."""
    look = f"{os.sys.executable} -c \"import sqlite3; print(sqlite3.connect('queue.db').execute("  # type: ignore[attr-defined]
    look += "'select state, attempts from jobs').fetchall())\""
    with Workshop(tmp_path) as shop:
        (job_id,) = shop.submit(look)
        shop.finish()
        assert shop.log(job_id).strip() in ("[('starting', 1)]", "[('running', 1)]")


def test_two_jobs_never_have_one_device_at_a_time(tmp_path: Path) -> None:
    """A directory that only one job at a time can make per device is never found taken."""
    line = 'mkdir "busy$CUDA_VISIBLE_DEVICES" && sleep 0.02 && rmdir "busy$CUDA_VISIBLE_DEVICES"'
    with Workshop(tmp_path) as shop:
        ids = shop.submit(*[line] * 40)
        shop.finish()
        assert [shop.ended(job_id).code for job_id in ids] == [0] * 40


def test_short_jobs_are_handed_over_ahead_and_come_back_behind_a_long_one(tmp_path: Path) -> None:
    """What waits behind a job that turns out long is run elsewhere, and nothing runs twice."""
    with Workshop(tmp_path) as shop:
        shop.submit(*["true"] * 30)
        shop.finish()
        long, *short = shop.submit("while [ ! -e stop ]; do sleep 0.05; done", *["echo $STOKER_JOB_ID >> ran"] * 40)
        shop.work_until(lambda: not shop.engine.waiting and [job.id for job in shop.engine.active_jobs] == [long])
        assert sorted((tmp_path / "ran").read_text().split(), key=int) == [str(job_id) for job_id in short]
        (tmp_path / "stop").touch()
        shop.finish()
        assert shop.ended(long).result == "done"


def test_a_job_whose_worker_is_killed_is_lost_and_runs_again(tmp_path: Path) -> None:
    """kill -9 of a worker kills what it ran, and the job is queued again by itself."""
    with Workshop(tmp_path) as shop:
        line = 'echo start >> ran; if [ "$STOKER_ATTEMPT" = 1 ]; then sleep 1000 & kill -9 $PPID; sleep 1000; fi'
        (job_id,) = shop.submit(line)
        shop.finish()
        assert shop.ended(job_id).result == "done"
        assert (tmp_path / "ran").read_text() == "start\nstart\n"
        kinds = [type(event) for event in shop.store.events(job_id)]
        assert kinds == [Assigned, Started, Lost, Assigned, Started, Exited]


def test_a_job_that_always_kills_its_worker_ends_as_lost(tmp_path: Path) -> None:
    """A job is not queued again for ever."""
    with Workshop(tmp_path) as shop:
        (job_id,) = shop.submit("kill -9 $PPID; sleep 1000")
        shop.finish()
        assert shop.ended(job_id).result == "lost"


def test_a_lost_job_is_not_run_again_where_that_was_forbidden(tmp_path: Path) -> None:
    """Without permission to requeue, the first loss is the end."""
    with Workshop(tmp_path) as shop:
        (job_id,) = shop.submit("echo start >> ran; kill -9 $PPID; sleep 1000", requeue=False)
        shop.finish()
        assert shop.ended(job_id).result == "lost"
        assert (tmp_path / "ran").read_text() == "start\n"


def test_retries_run_a_failed_job_again(tmp_path: Path) -> None:
    """A job with two retries that fails twice is done in the end, each attempt with a log of its own."""
    with Workshop(tmp_path) as shop:
        (job_id,) = shop.submit("echo try $STOKER_ATTEMPT; [ $STOKER_ATTEMPT = 3 ]", retries=2)
        shop.finish()
        assert shop.ended(job_id).result == "done"
        logs = [tmp_path / name for name in (f"{job_id}.log", f"{job_id}.log.1", f"{job_id}.log.2")]
        assert [log.read_text() for log in logs] == ["try 1\n", "try 2\n", "try 3\n"]


def test_a_time_limit_ends_a_job(tmp_path: Path) -> None:
    """A job over its limit is stopped and ends as timeout."""
    with Workshop(tmp_path) as shop:
        (job_id,) = shop.submit("sleep 1000", limit=0.2, grace=5.0)
        shop.finish()
        ended = shop.ended(job_id)
        assert (ended.result, ended.signal) == ("timeout", signal.SIGTERM)


def test_cancelling_ends_waiting_and_running_jobs(tmp_path: Path) -> None:
    """A waiting job is cancelled at once, a running one after TERM."""
    with Workshop(tmp_path, devices=DeclaredDevices(["0"])) as shop:
        running, waiting = shop.submit("touch up; sleep 1000", "true")
        shop.work_until((tmp_path / "up").exists)
        shop.engine.cancel(waiting, None, "not wanted")
        shop.engine.cancel(running, 5.0, "not wanted")
        shop.finish()
        assert [shop.ended(job_id).result for job_id in (running, waiting)] == ["cancelled", "cancelled"]
        assert any(isinstance(job_event.event, Cancelled) for job_event in shop.job_events)


def test_draining_lets_running_jobs_end_and_starts_no_others(tmp_path: Path) -> None:
    """After drain only what had started ends; the rest still waits in the store."""
    with Workshop(tmp_path, devices=DeclaredDevices(["0"])) as shop:
        first, second = shop.submit("touch up; while [ ! -e go ]; do sleep 0.02; done", "true")
        shop.work_until((tmp_path / "up").exists)
        shop.engine.drain()
        (tmp_path / "go").touch()
        shop.work_until(lambda: shop.engine.at_rest)
        assert shop.ended(first).result == "done"
        assert isinstance(shop.job(second).state, Waiting)


def test_the_plan_tells_why_a_job_waits(tmp_path: Path) -> None:
    """The reason shown is the plan's own."""
    with Workshop(tmp_path) as shop:
        shop.submit("touch up; sleep 1000", resources=Resources(gpus=2))
        shop.work_until((tmp_path / "up").exists)
        (waiting,) = shop.submit("true")
        shop.work_until(lambda: shop.engine.reason(shop.job(waiting)) is not None)
        assert shop.engine.reason(shop.job(waiting)) == Crowded(1, 0)


def test_devices_leased_by_another_engine_are_waited_for(tmp_path: Path) -> None:
    """A job waits while somebody else holds the only device, says who, and starts when it is released."""
    with Workshop(tmp_path, devices=DeclaredDevices(["0"])) as shop:
        ledger = Ledger(tmp_path / "ledger")
        device = shop.engine.snapshot.devices[0]
        from stoker.core.lease import Claim

        held = ledger.claim((Claim(device.claims[0]),), "somebody's work", 0.0)
        assert held is not None
        (job_id,) = shop.submit("true")
        shop.work_until(lambda: isinstance(shop.engine.reason(shop.job(job_id)), Leased))
        assert not shop.engine.active_jobs
        ledger.release(held)
        shop.finish()
        assert shop.ended(job_id).result == "done"


def test_leases_live_exactly_as_long_as_jobs(tmp_path: Path) -> None:
    """While a job runs its lease is in the ledger, and when all is over the ledger is empty."""
    with Workshop(tmp_path) as shop:
        shop.submit("touch up; while [ ! -e go ]; do sleep 0.02; done", resources=Resources(gpus=2))
        shop.work_until((tmp_path / "up").exists)
        ledger = Ledger(tmp_path / "ledger")
        (lease,) = ledger.live().leases.values()
        assert [claim.name for claim in lease.claims] == ["name:0", "name:1"]
        (tmp_path / "go").touch()
        shop.finish()
        shop.work_until(lambda: not ledger.live().leases)


@pytest.mark.parametrize("when", ["running", "ended"])
def test_a_new_engine_goes_on_where_a_dead_one_stopped(tmp_path: Path, when: str) -> None:
    """Exit codes arrive although the engine that started the jobs died before or after they ended."""
    first = Workshop(tmp_path, name="first")
    (job_id,) = first.submit("echo once >> ran; touch up; while [ ! -e go ]; do sleep 0.02; done; exit 7")
    first.work_until((tmp_path / "up").exists)
    if when == "running":
        first.work_until(lambda: isinstance(first.job(job_id).state, Running))
    first.abandon()
    if when == "ended":
        (tmp_path / "go").touch()
    with Workshop(tmp_path, name="second") as second:
        second.engine.adopt(second.job(job_id), adopted=False)
        (tmp_path / "go").touch()
        second.finish()
        assert second.ended(job_id).code == 7
        assert (tmp_path / "ran").read_text() == "once\n"


def test_an_attempt_that_never_started_is_queued_again(tmp_path: Path) -> None:
    """An assignment whose worker left no trace counts as never started."""
    with Workshop(tmp_path) as shop:
        (job_id,) = shop.submit("echo once >> ran")
        job = shop.job(job_id)
        from stoker.core.job import advance
        from stoker.store.schema import Change

        shop.engine.turn(0)  # takes the job in, and starts it
        shop.finish()
        assigned = Assigned("nobody-1", ("0",), "x", 1.0)
        (again,) = shop.submit("echo twice >> ran")
        stuck = advance(shop.job(again), assigned)
        shop.store.record([Change(stuck, [(1, assigned)])])
        shop.engine.adopt(stuck, adopted=False)
        shop.finish()
        assert shop.ended(again).result == "done"
        assert Returned in [type(event) for event in shop.store.events(again)]
        assert job.id != again


def test_at_most_so_many_jobs_run_at_once(tmp_path: Path) -> None:
    """-j counts all jobs, whatever devices there are."""
    with Workshop(tmp_path, devices=DeclaredDevices(["0", "1", "2"]), policy=Policy(max_running=2)) as shop:
        shop.submit(*["mkdir a || mkdir b || touch third; sleep 0.05; rmdir a || rmdir b"] * 12)
        shop.finish()
        assert not (tmp_path / "third").exists()


def test_jobs_that_name_their_memory_share_a_device(tmp_path: Path) -> None:
    """Two jobs of 8G run together on one simulated GPU of 24G, and a whole one waits for both."""
    devices = SimulatedDevices("1x24G", str(tmp_path / "simulator"))
    with Workshop(tmp_path, devices=devices) as shop:
        wait = "touch up$STOKER_JOB_ID; while [ ! -e go ]; do sleep 0.02; done"
        first, second = shop.submit(wait, wait, resources=Resources(memory=8 << 30))
        (whole,) = shop.submit("true")
        shop.work_until(lambda: all((tmp_path / f"up{job_id}").exists() for job_id in (first, second)))
        assert whole not in [job.id for job in shop.engine.active_jobs]
        (tmp_path / "go").touch()
        shop.finish()
        assert shop.ended(whole).result == "done"


def test_a_wide_job_starts_although_narrow_ones_keep_coming(tmp_path: Path) -> None:
    """By age, with patience at its end, free devices are kept for the job that needs all of them."""
    with Workshop(tmp_path, policy=Policy(order="age", patience=0.3)) as shop:
        shop.submit(*["sleep 0.1"] * 4)
        (wide,) = shop.submit("true", resources=Resources(gpus=2))
        narrow = shop.submit(*["sleep 0.1"] * 60)
        shop.work_until(lambda: isinstance(shop.job(wide).state, Ended))
        assert shop.engine.waiting > 20, f"the wide job came after {len(narrow) - shop.engine.waiting} narrow ones"


def test_a_full_disk_stops_new_starts_but_loses_nothing(tmp_path: Path) -> None:
    """While the store cannot be written nothing new starts; what ended meanwhile is recorded afterwards."""
    with Workshop(tmp_path, devices=DeclaredDevices(["0"])) as shop:
        first, second = shop.submit("touch up; while [ ! -e go ]; do sleep 0.02; done; exit 5", "echo second")
        shop.work_until((tmp_path / "up").exists)
        shop.work_until(lambda: isinstance(shop.job(first).state, Running))
        shop.store.rows("PRAGMA max_page_count = 1")
        shop.store.rows("PRAGMA query_only = 1")
        (tmp_path / "go").touch()
        shop.work_until(lambda: bool(shop.engine.trouble))
        assert "cannot write" in shop.engine.trouble
        assert isinstance(shop.job(first).state, Running)
        shop.store.rows("PRAGMA query_only = 0")
        shop.store.rows("PRAGMA max_page_count = 1000000")
        shop.finish()
        assert shop.ended(first).code == 5
        assert shop.ended(second).result == "done"


def test_one_slot_gets_work_ahead_as_well(tmp_path: Path) -> None:
    """On a single device later short jobs are assigned before the ones in front of them have ended."""
    with Workshop(tmp_path, devices=DeclaredDevices(["0"])) as shop:
        ids = shop.submit(*["true"] * 60)
        shop.finish()
        rows = [shop.store.attempts(job_id)[-1] for job_id in ids]
        ahead = [later.assigned < (row.ended or 0.0) for row, later in pairwise(rows)]
        assert sum(ahead) > 20


def test_draining_from_within_a_turn_starts_nothing_more(tmp_path: Path) -> None:
    """Whoever drains when told of an end gets back what the same turn had assigned."""
    with Workshop(tmp_path, devices=DeclaredDevices(["0"])) as shop:
        shop.on_event = lambda job_event: shop.engine.drain() if isinstance(job_event.event, Exited) else None
        first, *rest = shop.submit("true", *["touch ran"] * 5)
        shop.work_until(lambda: shop.engine.draining and shop.engine.at_rest)
        assert shop.ended(first).result == "done"
        assert all(isinstance(shop.job(job_id).state, Waiting) for job_id in rest)
        assert not (tmp_path / "ran").exists()


def test_stopping_leaves_what_was_handed_over_ahead_waiting(tmp_path: Path) -> None:
    """Only what runs is cancelled; what had not started waits on."""
    with Workshop(tmp_path, devices=DeclaredDevices(["0"])) as shop:
        shop.submit(*["true"] * 10)
        shop.finish()
        running, *rest = shop.submit("touch up; sleep 1000", *["true"] * 5)
        shop.work_until((tmp_path / "up").exists)
        shop.engine.stop(5.0, "enough")
        shop.work_until(lambda: shop.engine.at_rest)
        assert (shop.ended(running).result, shop.ended(running).note) == ("cancelled", "enough")
        assert all(isinstance(shop.job(job_id).state, Waiting) for job_id in rest)


def test_a_cancelled_job_whose_worker_dies_says_so(tmp_path: Path) -> None:
    """A job that ran and was being stopped is not said never to have started."""
    with Workshop(tmp_path) as shop:
        (job_id,) = shop.submit("trap '' TERM; echo $PPID > worker; touch up; while :; do sleep 0.1; done")
        shop.work_until((tmp_path / "up").exists)
        shop.work_until(lambda: isinstance(shop.job(job_id).state, Running))
        shop.engine.cancel(job_id, 1000.0, "not wanted")
        shop.work_until(lambda: isinstance(shop.job(job_id).state, Stopping))
        os.kill(int((tmp_path / "worker").read_text()), signal.SIGKILL)
        shop.finish()
        assert shop.ended(job_id).note == "its worker died while stopping it"


def test_an_end_that_was_not_recorded_is_not_forgotten(tmp_path: Path) -> None:
    """An engine that leaves while the store cannot be written leaves the journal to the next one."""
    first = Workshop(tmp_path, name="first", devices=DeclaredDevices(["0"]))
    (job_id,) = first.submit("echo once >> ran; touch up; while [ ! -e go ]; do sleep 0.02; done; exit 6")
    first.work_until(lambda: isinstance(first.job(job_id).state, Running))
    first.store.rows("PRAGMA query_only = 1")
    (tmp_path / "go").touch()
    first.work_until(lambda: bool(first.engine.trouble))
    first.close()
    with Workshop(tmp_path, name="second") as second:
        second.engine.adopt(second.job(job_id), adopted=False)
        second.finish()
        assert second.ended(job_id).code == 6
        assert (tmp_path / "ran").read_text() == "once\n"


def test_the_lease_of_an_adopted_job_counts_once(tmp_path: Path) -> None:
    """Beside an adopted job of 10G there is room for another on a GPU of 24G."""
    devices = SimulatedDevices("1x24G", str(tmp_path / "simulator"))
    first = Workshop(tmp_path, name="first", devices=devices)
    wait = "touch up$STOKER_JOB_ID; while [ ! -e go ]; do sleep 0.02; done"
    (adopted,) = first.submit(wait, resources=Resources(memory=10 << 30))
    first.work_until((tmp_path / f"up{adopted}").exists)
    first.abandon()
    with Workshop(tmp_path, name="second", devices=devices) as second:
        second.engine.adopt(second.job(adopted), adopted=False)
        (beside,) = second.submit(wait, resources=Resources(memory=10 << 30))
        second.work_until((tmp_path / f"up{beside}").exists)
        (tmp_path / "go").touch()
        second.finish()
        assert [second.ended(job_id).result for job_id in (adopted, beside)] == ["done", "done"]


def test_a_limit_of_more_than_a_month_is_only_a_limit(tmp_path: Path) -> None:
    """No clock in between overflows."""
    with Workshop(tmp_path) as shop:
        (job_id,) = shop.submit("sleep 0.1", limit=90 * 86400.0)
        shop.finish()
        assert shop.ended(job_id).result == "done"


def test_nothing_of_a_lost_job_lives_when_it_runs_again(tmp_path: Path) -> None:
    """A process in its own session, with an environment of its own, is found by the lock that it inherited."""
    (tmp_path / "escape").write_text("setsid sh -c 'echo $$ > child.new; mv child.new child; exec sleep 1000' &\n")
    first = "env -i /bin/sh ./escape; while [ ! -e child ]; do sleep 0.02; done; kill -9 $PPID; sleep 1000"
    with Workshop(tmp_path, devices=DeclaredDevices(["0"])) as shop:
        (job_id,) = shop.submit(f'[ "$STOKER_ATTEMPT" = 1 ] && {{ {first}; }}; ! grep sleep /proc/$(cat child)/cmdline')
        shop.finish()
        assert (shop.ended(job_id).result, shop.job(job_id).losses) == ("done", 1)
