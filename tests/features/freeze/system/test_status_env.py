"""`stoker status ID --env`: what jobs started with, whoever installs something later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from features.freeze.test_software import INNER, made_environment
from support.background import Background
from support.wait import wait_until


def shown(background: Background, job: int) -> dict[str, Any]:
    """What is known of a job, once the engine has written it: it does that while the job runs."""

    def read() -> dict[str, Any]:
        outcome = background("status", str(job), "--env", "--json")
        assert outcome.code == 0, outcome.err
        (job_shown,) = json.loads(outcome.out)["jobs"]
        assert isinstance(job_shown, dict)
        return job_shown

    wait_until(lambda: read()["software"] is not None)
    return read()


def test_packages_that_a_job_started_with(background: Background, tmp_path: Path) -> None:
    """A later job of the same environment has the new ones; the first keeps its own, and shows the difference."""
    made = made_environment(tmp_path / "venv", torch="2.4.1")
    background.environment |= {"PATH": f"{made}/bin:{background.environment['PATH']}", "MY_TOKEN": "hush-hush"}
    (first,) = background.submit("true")
    background.wait_over(first)
    before = shown(background, first)
    assert (before["software"]["packages"], before["changes"]) == ({"torch": "2.4.1"}, [])
    assert {"PATH", "MY_TOKEN"} <= set(before["variables"])
    (made / INNER / "torch-2.4.1.dist-info").rename(made / INNER / "torch-2.5.0.dist-info")
    (made / INNER / "numpy-2.1.0.dist-info").mkdir()
    background.kill_engine()  # the next one looks at once
    (second,) = background.submit("true")
    background.wait_over(second)
    wait_until(lambda: shown(background, second)["software"]["packages"] == {"numpy": "2.1.0", "torch": "2.5.0"})
    changes = shown(background, first)["changes"]
    assert changes == [
        {"name": "numpy", "then": None, "now": "2.1.0"},
        {"name": "torch", "then": "2.4.1", "now": "2.5.0"},
    ]
    screen = background("status", str(first), "--env", "--table").out
    assert "torch 2.4.1 → 2.5.0" in screen
    assert "hush-hush" not in screen
    assert "hush-hush" not in background("status", str(first), str(second), "--env", "--plain", "-a").out
    assert shown(background, second)["packages_hash"] != before["packages_hash"]


def test_a_job_that_has_not_started(background: Background) -> None:
    """It says so; and the option needs a job."""
    (job,) = background.submit("true", held="user", start=False)
    assert "the job has not started" in background("status", str(job), "--env", "--table").out
    refused = background("status", "--env")
    assert (refused.code, "stoker status last --env" in refused.err) == (2, True)
