"""What holds when the engine is killed, replaced by another version, or goes down with the whole machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import stoker
from stoker.app.control.requests import ask
from stoker.core.job import Ended, Lost
from stoker.core.requests import Cancel
from stoker.core.spec import Dependency, Resources
from stoker.ledger import Ledger
from stoker.store.engine_lock import QUEUE, version_of
from stoker.store.queries import paused_key
from support.background import Background
from support.cli import until
from support.wait import wait_until

WHOLE = Resources(gpus=2)
PACKAGE = Path(stoker.__file__).parent


def telling_worker(line: str) -> str:
    """A job that says who keeps it before it does anything else."""
    return f"echo $PPID > worker.$STOKER_JOB_ID; {line}"


def workers(background: Background, ids: Iterable[int]) -> set[int]:
    """The processes that keep jobs."""
    paths = [background.cwd / f"worker.{job}" for job in ids]
    wait_until(lambda: all(path.exists() and path.read_text().endswith("\n") for path in paths))
    return {int(path.read_text()) for path in paths}


def lives(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def lose_power(background: Background, kept: set[int]) -> None:
    """End everything at once, workers before their jobs, so that nobody can write down what happened."""
    assert background.engine_process is not None
    for pid in (background.engine_process, *kept):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(lives, kept)))
    for pid in background.job_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not background.job_processes())


class TestKilledEngine:
    """kill -9 of the engine while jobs run."""

    def test_exit_codes_arrive_with_the_next_engine(self, background: Background) -> None:
        """Of what ended meanwhile and of what ends later; nothing runs twice."""
        meanwhile, later = background.submit(
            f"echo x >> ran; {until('alone')}; touch over; exit 3", f"echo x >> ran; {until('go')}; exit 4"
        )
        background.wait_word("running", meanwhile, later)
        background.kill_engine()
        background.open_gate("alone")
        wait_until((background.cwd / "over").exists)
        assert background.word(meanwhile) == "running"
        background.start_engine()
        background.wait_over(meanwhile)
        background.open_gate("go")
        background.wait_over(later)
        assert [background.ended(job).code for job in (meanwhile, later)] == [3, 4]
        assert background.lines("ran") == ["x", "x"]

    def test_many_times_in_a_row(self, background: Background) -> None:
        """Jobs that end in between are recorded, those that wait get their turn, each runs once."""
        ids = background.submit(*[f"echo {number} >> ran; sleep 0.1; exit {number}" for number in range(12)])
        for life in range(100):  # the first lives may be too short for anything on a busy machine
            background.start_engine()
            time.sleep(0.15 * 1.05**life)
            background.kill_engine()
            if all(isinstance(background.job(job).state, Ended) for job in ids):
                break
        assert [background.ended(job).code for job in ids] == list(range(12))
        assert sorted(map(int, background.lines("ran"))) == list(range(12))

    def test_time_limits_hold_without_an_engine(self, background: Background) -> None:
        """The worker keeps the time; the next engine calls it a timeout."""
        (job,) = background.submit("sleep 100", limit=1.0, grace=1.0)
        background.wait_begun(job)
        background.kill_engine()
        wait_until(lambda: not background.job_processes())
        background.start_engine()
        background.wait_over(job)
        assert background.ended(job).result == "timeout"

    def test_chains_hold(self, background: Background) -> None:
        """What waits for others goes on when those end, and is skipped when they fail, whoever sees the end."""
        good, bad = background.submit(f"{until('go')}; echo 1 >> order", f"{until('go')}; exit 1")
        (second,) = background.submit("echo 2 >> order", after=(Dependency(good),))
        (third,) = background.submit("echo 3 >> order", after=(Dependency(second),))
        (doomed,) = background.submit("echo no >> order", after=(Dependency(bad),))
        background.wait_word("running", good, bad)
        background.kill_engine()
        background.open_gate("go")
        background.start_engine()
        background.wait_over(good, bad, second, third, doomed)
        assert background.lines("order") == ["1", "2", "3"]
        assert background.word(doomed) == "skipped"

    def test_holds_pauses_and_beginnings_hold(self, background: Background) -> None:
        """A held job, a paused queue and a job that begins later stay so; nothing slips in at the start."""
        (running,) = background.submit(until("go"), resources=WHOLE)
        background.wait_word("running", running)
        (held,) = background.submit("touch ran", held="held by you")
        (later,) = background.submit("touch ran", begin=time.time() + 1000)
        with background.open_store() as store:
            store.put_setting(paused_key(QUEUE), {"note": "paused by you", "at": time.time()})
        (waiting,) = background.submit("touch ran")
        background.kill_engine()
        background.open_gate("go")
        background.start_engine()
        background.wait_over(running)
        found = background("engine", "status").out
        assert "0 running, 1 waiting, 2 blocked" in found
        assert "paused by you" in found
        assert not (background.cwd / "ran").exists()
        assert [background.word(job) for job in (held, later, waiting)] == ["held", "waiting", "waiting"]

    def test_a_beginning_that_has_come_meanwhile_is_not_missed(self, background: Background) -> None:
        """The job starts with the next engine."""
        begin = time.time() + 1.5
        (later,) = background.submit("true", begin=begin)
        background.kill_engine()
        wait_until(lambda: time.time() > begin)
        background.start_engine()
        background.wait_over(later)
        assert background.word(later) == "done"

    def test_a_cancel_that_nobody_has_read_is_obeyed(self, background: Background) -> None:
        """Of a running job and of a waiting one, before anything of them starts."""
        (running,) = background.submit("touch up; sleep 100", resources=WHOLE)
        (waiting,) = background.submit("touch ran")
        wait_until((background.cwd / "up").exists)
        background.kill_engine()
        with background.open_store() as store:
            ask(background.paths, store, [Cancel(running, "not wanted"), Cancel(waiting, "not wanted")], time.time())
        background.start_engine()
        background.wait_over(running, waiting)
        assert [background.word(job) for job in (running, waiting)] == ["cancelled", "cancelled"]
        assert not (background.cwd / "ran").exists()

    def test_a_cancel_under_way_is_finished(self, background: Background) -> None:
        """The job has ignored TERM so far; its grace ends under the next engine, and it is killed."""
        (job,) = background.submit("trap '' TERM; touch up; while :; do sleep 0.05; done", grace=1.5)
        wait_until((background.cwd / "up").exists)
        background.wait_word("running", job)
        assert background("cancel", str(job)).code == 0
        wait_until(lambda: background.word(job) != "running")
        background.kill_engine()
        background.start_engine()
        background.wait_over(job)
        assert background.word(job) == "cancelled"
        wait_until(lambda: len(background.job_processes()) <= _ENGINE_PROCESSES)


_ENGINE_PROCESSES = 1
"""Processes with the queue in their environment that are no jobs: the engine."""


class TestUpgrade:
    """Another version of the package takes the place of the one that started the jobs."""

    def test_jobs_go_on_under_the_next_version(self, background: Background, tmp_path: Path) -> None:
        """Workers of the old version are taken over, although its files are gone by then."""
        old, new = (installed(tmp_path / name, f"0.0.1+{name}") for name in ("old", "new"))
        background.environment["PYTHONPATH"] = str(old)
        first, second = background.submit(f"{until('go')}; exit 5", f"{until('go')}; exit 6")
        background.wait_word("running", first, second)
        (third,) = background.submit("exit 7")
        assert version_of(background.paths, QUEUE) == "0.0.1+old"
        background.environment["PYTHONPATH"] = str(new)
        background.kill_engine()
        shutil.rmtree(old)
        background.start_engine()
        assert version_of(background.paths, QUEUE) == "0.0.1+new"
        background.open_gate("go")
        background.wait_over(first, second, third)
        assert [background.ended(job).code for job in (first, second, third)] == [5, 6, 7]
        assert [background.job(job).attempts for job in (first, second, third)] == [1, 1, 1]


def installed(directory: Path, version: str) -> Path:
    """A copy of the package of another version, to be found by PYTHONPATH."""
    shutil.copytree(PACKAGE, directory / "stoker", ignore=shutil.ignore_patterns("__pycache__"))
    init = directory / "stoker/__init__.py"
    init.write_text(re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', init.read_text()))
    return directory


class TestReboot:
    """The machine goes down with the engine, the workers and all jobs."""

    def test_what_ran_is_lost_and_queued_again(self, background: Background) -> None:
        """Once it has run to its end it is done; its story tells of the loss."""
        ids = background.submit(*[telling_worker(f"echo x >> ran; {until('go')}; exit 2")] * 2)
        kept = workers(background, ids)
        lose_power(background, kept)
        background.open_gate("go")
        background.start_engine()
        background.wait_over(*ids)
        assert [background.ended(job).code for job in ids] == [2, 2]
        assert background.lines("ran") == ["x"] * 4
        with background.open_store() as store:
            assert all(any(isinstance(event, Lost) for event in store.events(job)) for job in ids)

    def test_what_shall_not_run_again_ends_as_lost(self, background: Background) -> None:
        """`--no-requeue`: half of the work may have been done, and only the user knows which."""
        (job,) = background.submit(telling_worker("echo x >> ran; sleep 100"), requeue=False)
        (behind,) = background.submit("touch followed", after=(Dependency(job),))
        kept = workers(background, [job])
        lose_power(background, kept)
        background.start_engine()
        background.wait_over(job, behind)
        assert background.word(job) == "lost"
        assert background.word(behind) == "skipped"
        assert background.lines("ran") == ["x"]

    def test_what_was_being_cancelled_stays_cancelled(self, background: Background) -> None:
        """It does not come back with the machine."""
        (job,) = background.submit(telling_worker("trap '' TERM; while :; do sleep 0.05; done"), grace=1000.0)
        kept = workers(background, [job])
        assert background("cancel", str(job)).code == 0
        background.wait_word("stopping", job)
        lose_power(background, kept)
        background.start_engine()
        background.wait_over(job)
        assert background.word(job) == "cancelled"

    def test_nothing_stays_running_and_nothing_is_left(self, background: Background) -> None:
        """Waiting jobs get the devices; no lease, worker or process of before is left."""
        ids = background.submit(*[telling_worker("sleep 100")] * 2, requeue=False)
        (waiting,) = background.submit("true", resources=WHOLE)
        kept = workers(background, ids)
        lose_power(background, kept)
        background.start_engine()
        background.wait_over(*ids, waiting)
        assert background.word(waiting) == "done"
        background("engine", "stop")
        assert Ledger(Path(background.environment["STOKER_LEDGER"])).live().leases == {}
        assert list(background.paths.workers.iterdir()) == []

    def test_the_first_look_after_the_boot_may_be_anybodys(self, background: Background) -> None:
        """With no engine yet, nothing is changed by looking: the queue says what it knew."""
        (job,) = background.submit(telling_worker("sleep 100"))
        kept = workers(background, [job])
        background.wait_word("running", job)
        lose_power(background, kept)
        assert background("engine", "status").code == 3
        assert "1 running" in background("engine", "status").out
        assert background.word(job) == "running"
