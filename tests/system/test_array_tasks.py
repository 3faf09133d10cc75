"""Tasks of an array as people name them, one by one and as ranges, though most of them never had a row of the store."""

from __future__ import annotations

import signal

import pytest

from support.background import Background
from support.storm.processes import open_files
from support.wait import wait_until

TASKS = 1000


@pytest.fixture
def array(background: Background) -> int:
    """An array of held tasks, which share one row."""
    outcome = background("submit", "--parsable", "--hold", "-a", f"0-{TASKS - 1}", "--", "true")
    assert outcome.code == 0, outcome.err
    assert rows(background) == [(TASKS, "held")]
    return int(outcome.out)


def rows(background: Background) -> list[tuple[int, str]]:
    """How many tasks each row stands for, and their state."""
    with background.open_store() as store:
        return [(size, state) for size, state in store.rows("SELECT size, state FROM jobs ORDER BY id")]


def states(background: Background, array: int, *indices: int) -> list[str]:
    return [background.word(array + index) for index in indices]


def test_ranges_with_gaps(background: Background, array: int) -> None:
    """Exactly the named tasks are cancelled, and the others stay as they are."""
    assert background("cancel", f"{array}.[3-7,9]").out == f"cancelled 6 tasks {array}.[3-7,9] (held)\n"
    assert states(background, array, 2, 3, 7, 8, 9, 10) == [
        "held",
        "cancelled",
        "cancelled",
        "held",
        "cancelled",
        "held",
    ]
    assert rows(background) == [(3, "held"), (5, "cancelled"), (1, "held"), (1, "cancelled"), (TASKS - 10, "held")]


def test_ranges_that_overlap(background: Background, array: int) -> None:
    """Each task counts once, in whatever order it is named."""
    both = background("cancel", f"{array}.[5-9,7-12]", f"{array}.8")
    assert both.out == f"cancelled 8 tasks {array}.[5-12] (held)\n"
    again = background("retry", f"{array}.[6,6,5]", f"{array}.6-7")
    assert again.out == f"requeued 3 tasks {array}.[5-7] (last result: cancelled)\n"
    background.wait_over(array + 5, array + 6, array + 7)
    assert states(background, array, 4, 5, 7, 8, 12, 13) == ["held", "done", "done", "cancelled", "cancelled", "held"]


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "retry", "wait", "status"])
def test_a_reversed_range(background: Background, array: int, verb: str) -> None:
    """Nothing is done, and the right way to type it is told."""
    refused = background(verb, f"{array}.[7-3]")
    assert refused.code == 2
    assert "7-3 is a reversed range" in refused.err
    assert "write it as 3-7" in refused.err
    assert rows(background) == [(TASKS, "held")]


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "retry", "wait", "status", "logs"])
@pytest.mark.parametrize("tasks", [f"{TASKS}", f"{TASKS}-{TASKS + 5}"])
def test_tasks_beyond_the_array(background: Background, array: int, verb: str, tasks: str) -> None:
    """There are none, and those that there are are told."""
    refused = background(verb, f"{array}.{tasks}")
    assert refused.code == 4
    assert f"array {array} has no task" in refused.err
    assert f"its tasks are 0 to {TASKS - 1}" in refused.err
    assert rows(background) == [(TASKS, "held")]


def test_a_range_that_ends_beyond_the_array(background: Background, array: int) -> None:
    """The tasks that there are are meant."""
    assert background("cancel", f"{array}.{TASKS - 2}-{TASKS + 9}").code == 0
    assert rows(background) == [(TASKS - 2, "held"), (2, "cancelled")]


def test_a_task_without_a_row(background: Background, array: int) -> None:
    """It can be looked at, waited for and asked for its log without getting a row."""
    task = f"{array}.500"
    assert background("status", task, "--plain").out.splitlines()[1].startswith(f"{task}\tPD\theld\t")
    logs = background("logs", task)
    assert (logs.code, f"{task} has not started yet" in logs.err) == (4, True)
    waited = background("wait", task, "--timeout", "1s")
    assert (waited.code, f"job {task} continues" in waited.err) == (124, True)
    retried = background("retry", task)
    assert (retried.code, f"{task} has not finished" in retried.err) == (2, True)
    assert rows(background) == [(TASKS, "held")]


def test_a_task_that_runs_alone(background: Background, array: int) -> None:
    """It starts in the turn in which it is released, and the tasks before and after it stay held."""
    assert background("resume", f"{array}.500").out == f"released {array}.500\n"
    assert background("wait", f"{array}.500").code == 0
    assert rows(background) == [(500, "held"), (1, "done"), (TASKS - 501, "held")]


def test_the_last_task_is_retried_alone(background: Background, array: int) -> None:
    """The other tasks stay cancelled, though theirs was the row with its id."""
    background("cancel", str(array))
    assert rows(background) == [(TASKS, "cancelled")]
    assert background("retry", f"{array}.{TASKS - 1}").code == 0
    assert background("wait", f"{array}.{TASKS - 1}").code == 0
    assert rows(background) == [(TASKS - 1, "cancelled"), (1, "done")]


def test_a_job_behind_a_task(background: Background, array: int) -> None:
    """It waits for that task alone, and is skipped with it."""
    after, other = (int(background("submit", "--parsable", "-d", f"{array}.{task}", "true").out) for task in (500, 600))
    background("resume", f"{array}.500")
    background("cancel", f"{array}.[550-650]")
    background.wait_over(array + 500, after, other)
    assert states(background, 0, array + 500, after, other) == ["done", "done", "skipped"]
    assert rows(background)[:2] == [(500, "held"), (1, "done")]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_submit_that_is_stopped_leaves_nothing(background: Background, number: signal.Signals) -> None:
    """An array is in the queue with all of its tasks or not at all; the next one has the ids."""
    with background.open_store() as store, store.writing():
        client = background.start("submit", "--hold", "-a", f"0-{TASKS - 1}", "--", "true")
        wait_until(lambda: background.paths.database in open_files(client.pid))
        client.send_signal(number)
        assert background.finish(client).code != 0
    assert rows(background) == []
    assert background("submit", "--parsable", "--hold", "-a", "0-2", "--", "true").out == "1\n"
    assert rows(background) == [(3, "held")]
