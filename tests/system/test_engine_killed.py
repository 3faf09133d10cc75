"""The background engine is killed: workers and screens start it again; one that was stopped stays away."""

from __future__ import annotations

import json
import os
import signal
import time

import msgspec

from stoker.runner.worker_link import lives as worker_lives
from stoker.store.engine_lock import QUEUE, engine_lives
from stoker.store.restart import TRIES, read_restart, restart_record, write_restart
from support.background import Background
from support.cli import until
from support.wait import wait_until


def kill(background: Background) -> int:
    """Kill the engine without a word, and return its process id."""
    pid = background.engine_process
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


def test_a_worker_starts_the_engine_again(background: Background) -> None:
    """When a job ends without an engine, its end is recorded and the next job starts, though no user types anything."""
    full = [f"{until('gate')}; exit {code}" for code in (5, 6)]
    running = background.submit(*full)
    background.wait_word("running", *running)
    waiting = background.submit("true")
    dead = kill(background)
    background.open_gate("gate")
    background.wait_over(*running, *waiting)
    assert [background.ended(job_id).code for job_id in (*running, *waiting)] == [5, 6, 0]
    assert background.engine_process != dead
    assert background("engine", "stop").code == 0
    assert not engine_lives(background.paths, QUEUE)


def test_status_starts_the_engine_again(background: Background) -> None:
    """The screen shows what ended meanwhile, and says what happened to the engine."""
    (job,) = background.submit(f"echo $$ > pid; {until('gate')}")
    background.wait_word("running", job)
    record = read_restart(background.paths)
    background.kill_engine()
    background.open_gate("gate")
    wait_until(lambda: worker_gone(background))
    assert record is not None
    write_restart(background.paths, record)
    shown = background("status", "--json")
    assert "had been killed; restarted it" in shown.err
    assert json.loads(shown.out)["jobs"] == []
    assert background.ended(job).code == 0


def worker_gone(background: Background) -> bool:
    """Whether no process holds a worker's files any more."""
    return not any(worker_lives(folder) for folder in background.paths.workers.iterdir())


def test_one_that_was_stopped_stays_away(background: Background) -> None:
    """Neither the end of a job nor a screen starts it; the clock of the job stands still."""
    (job,) = background.submit(until("gate"))
    background.wait_word("running", job)
    assert background("engine", "stop").code == 0
    assert not background.paths.restart.exists()
    background.open_gate("gate")
    wait_until(lambda: worker_gone(background))
    (line,) = json.loads(background("status", "--json").out)["jobs"]
    assert line["last_seen"] is not None
    assert line["why"].startswith("last seen ")
    assert not engine_lives(background.paths, QUEUE)
    later = json.loads(background("status", "--json").out)["jobs"]
    assert later[0]["seconds"] == line["seconds"]


def test_one_that_keeps_dying_is_given_up(background: Background) -> None:
    """After a few restarts within a minute the screen says so, with the last line of the log."""
    background("status")
    record = restart_record(["--sim", "2x24G"], background.environment)
    write_restart(background.paths, msgspec.structs.replace(record, tries=[time.time()] * TRIES))
    background.paths.log.write_text("first\nalas\n")
    shown = background("status")
    assert shown.code == 0
    assert f"died {TRIES} times within a minute" in shown.err
    assert "alas" in shown.err
    assert not engine_lives(background.paths, QUEUE)
