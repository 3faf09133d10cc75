"""The command that is run whenever a job of the queue has ended."""

from __future__ import annotations

import random

import pytest

from stoker.core.job import Ended
from stoker.core.spec import Resources
from support.background import Background
from support.cli import until
from support.wait import wait_until

NO_GPU = Resources(gpus=0)
LINE = "echo $STOKER_JOB_ID $STOKER_RESULT $STOKER_EXIT_CODE >> hooks"


@pytest.fixture
def queue(background: Background) -> Background:
    """A queue whose engine has a hook; it tells what happened in a file."""
    background.environment["STOKER_ON_FINISH"] = LINE
    return background


def roles(queue: Background) -> list[str]:
    with queue.open_store() as store:
        jobs = [store.job(number) for number in range(1, (store.last_job() or 0) + 1)]
    return [job.spec.role for job in jobs if job is not None]


def test_every_end_is_told_once(queue: Background) -> None:
    """A success, a failure, a cancelled and a skipped job are told of, and the hooks' own ends are not."""
    good, bad, held = queue.submit("true", "exit 7", until("never"))
    skipped = queue("submit", "--parsable", "-d", str(bad), "true").out.strip()
    queue("cancel", str(held))
    queue.wait_lines("hooks", 4)
    told = {line.split(" ", 1)[0]: line.split(" ", 1)[1].strip() for line in queue.lines("hooks")}
    assert (told[str(good)], told[str(bad)], told[skipped]) == ("done 0", "failed 7", "skipped")
    assert told[str(held)].startswith("cancelled")
    wait_until(lambda: queue("status", "--hooks").out.count("\n") <= 1)
    assert (roles(queue).count("job"), roles(queue).count("hook")) == (4, 4)


def test_a_cancelled_array_is_told_once(queue: Background) -> None:
    """The tasks that never started have one hook, with all their ids; each that ran has its own."""
    queue.environment["STOKER_ON_FINISH"] = f"{LINE}; echo $STOKER_JOB_IDS >> ids"
    queue("submit", "--hold", "-G", "0", "--array", "0-99999", "--", "true")
    queue("resume", "1.7")
    queue.wait_lines("ids", 1)
    queue("cancel", "1")
    queue.wait_lines("ids", 3)
    assert queue.lines("ids")[0] == "8"
    assert sorted(queue.lines("ids")) == ["1-7", "8", "9-100000"]
    assert sorted(queue.lines("hooks")) == ["1 cancelled", "8 done 0", "9 cancelled"]


def test_hooks_are_not_shown(queue: Background) -> None:
    """A hook that runs is in nobody's way on the screen, unless it is asked for."""
    queue.environment["STOKER_ON_FINISH"] = until("gate")
    queue.submit("true")
    wait_until(lambda: "on_finish" in queue("status", "--hooks").out, pause=0.1)
    assert "on_finish" not in queue("status").out
    queue.open_gate("gate")


def test_none_is_lost_or_doubled_when_engines_are_killed(queue: Background) -> None:
    """However often the engine is killed, every job has exactly one hook, and each of them ran."""
    chance = random.Random(7)
    ids = queue.submit(*["true"] * 60, resources=NO_GPU)
    for _ in range(8):
        wanted = min(60, len(queue.lines("hooks")) + chance.randrange(1, 8))
        queue.wait_lines("hooks", wanted)
        if queue.engine_process is not None:
            queue.kill_engine()
        queue.start_engine()
    queue.wait_over(*ids)
    queue.wait_lines("hooks", 60)
    assert sorted(int(line.split()[0]) for line in queue.lines("hooks")) == sorted(ids)
    assert all(isinstance(queue.job(job_id).state, Ended) for job_id in ids)
