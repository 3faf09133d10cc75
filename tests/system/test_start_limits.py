"""`--start-within` and `--nonblock` as people use them: jobs that are given up if they do not start in time."""

from __future__ import annotations

import json

import pytest

from stoker.core.spec import Resources
from support.background import Background
from support.cli import Stoker, until

BOTH = Resources(gpus=2)


def test_a_job_that_does_not_start_in_time(background: Background) -> None:
    """It is given up with a result of its own; the tasks of an array together, and jobs that need them are skipped."""
    (busy,) = background.submit(until("gate"), resources=BOTH)
    background.wait_word("running", busy)
    tasks = background.submit("touch ran", "touch ran", array=True, resources=BOTH, start_within=3600.0)
    behind = tasks[-1] + 1
    assert background("submit", "--after", str(tasks[0]), "--", "true").code == 0
    assert background("edit", str(tasks[0]), "--start-within", "0.1s").code == 0
    background.wait_over(*tasks, behind)
    assert {background.ended(task).result for task in tasks} == {"expired"}
    assert (background.ended(behind).result, background.word(busy)) == ("skipped", "running")
    (line,) = json.loads(background("status", "--json", f"{tasks[0]}.0").out)["jobs"]
    assert (line["state"], line["options"]["start_within"]) == ("expired", "0.1s")
    assert line["note"].startswith("did not start within")
    background.open_gate("gate")
    background.wait_over(busy)
    assert not (background.cwd / "ran").exists()


def test_at_once_or_not_at_all(background: Background) -> None:
    """With --nonblock the exit code of a submit tells whether the job was started."""
    background.start_engine()
    started = background("submit", "--nonblock", "-G", "2", "-s", "--", until("gate"))
    assert (started.code, started.err) == (0, "")
    background.wait_word("running", 1)
    refused = background("submit", "--nonblock", "--", "true")
    assert (refused.code, refused.err) == (1, "stoker: 2 was not started: it would have had to wait\n")
    assert background.ended(2).result == "expired"
    background.open_gate("gate")


def test_a_run(background: Background) -> None:
    """In the foreground it fails as well."""
    (busy,) = background.submit(until("gate"), resources=BOTH)
    background.wait_word("running", busy)
    result = background("run", "--nonblock", "--", "touch", "ran")
    assert (result.code, "would have had to wait" in result.err) == (1, True)
    background.open_gate("gate")
    background.wait_over(busy)
    assert not (background.cwd / "ran").exists()


@pytest.mark.parametrize("time", ["0", "-1h", "soon"])
def test_bad_times(stoker: Stoker, time: str) -> None:
    result = stoker("submit", "--start-within", time, "--", "true")
    assert (result.code, "is not a duration" in result.err) == (2, True)
