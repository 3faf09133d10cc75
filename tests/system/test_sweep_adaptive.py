"""Sweeps that choose and stop trials: real engines, jobs and studies."""

from __future__ import annotations

import json
import time

from stoker.core.requests import Cancel
from stoker.core.spec import Dependency, Resources
from stoker.queue.control import ask
from support.background import Background
from support.cli import until
from support.wait import wait_until

WHOLE = Resources(gpus=2)


def stop_early(background: Background, *ids: int) -> None:
    """Ask the engine to end jobs early, as a sweep does."""
    with background.open_store() as store:
        ask(background.paths, store, [Cancel(job, note="not good", result="stopped") for job in ids], time.time())


def test_a_job_that_is_stopped_early_did_not_fail(background: Background) -> None:
    """It gets TERM, ends as stopped also with code 0, frees its GPUs for the next job, and `wait` succeeds."""
    saves = f"trap 'echo saved; exit 0' TERM; touch ready; {until('never')}"
    running, following = background.submit(saves, "true", resources=WHOLE)
    dependant, afterwards = background.submit("true", resources=Resources(0), after=(Dependency(running),)) + (
        background.submit("true", resources=Resources(0), after=(Dependency(running, "any"),))
    )
    wait_until((background.cwd / "ready").exists)
    stop_early(background, running)
    background.wait_over(running, following, dependant, afterwards)
    ended = background.ended(running)
    assert (ended.result, ended.code, ended.note) == ("stopped", 0, "not good")
    assert background.log(running) == "saved\n"
    assert [background.word(job) for job in (following, dependant, afterwards)] == ["done", "skipped", "done"]
    assert background("wait", str(running)).code == 0
    (row,) = json.loads(background("history", "--state", "stopped", "--json").out)["jobs"]
    assert (row["state"], row["note"]) == ("stopped", "not good")
