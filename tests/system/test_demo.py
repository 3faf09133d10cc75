"""The demonstration, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stoker.cli.commands.demo import SCRIPT, Act, Demonstration, demo_jobs, difference
from stoker.cli.foreground import RunView
from stoker.cli.screens.run_lines import LineView
from stoker.core.job import Ended, Exited, JobEvent
from stoker.core.outcomes import Result
from support.build import a_job
from support.terminal import isolated

DONE = Act("a", "true")


def an_end(result: Result, failures: int = 0, note: str = "", log: str = "") -> JobEvent:
    """The end of a job named a."""
    job = msgspec.structs.replace(a_job(1, state=Ended(result, 5.0, note=note)), name="a", failures=failures)
    return JobEvent(job, Exited(1, 0, 0, 5.0), (), log)


def test_everything_goes_by_the_script(tmp_path: Path) -> None:
    """The demonstration succeeds, shows every way to end, and leaves nothing behind."""
    command = [sys.executable, "-m", "stoker", "run", "--demo", "--json"]
    environment = isolated(tmp_path)
    done = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    jobs = msgspec.json.decode(done.stdout)["jobs"]
    assert {job["state"] for job in jobs} == {"done", "failed", "oom", "timeout", "cancelled"}
    assert len(jobs) == len(SCRIPT)
    assert "everything went as planned" in done.stderr
    assert "on four simulated GPUs" in done.stderr.splitlines()[0]
    assert not list((tmp_path / "state").glob("*-simulated")), "the user's simulated queue is not touched"
    assert "greedy (out of GPU memory while sharing; retrying with" in done.stderr


def test_names_are_short_and_different() -> None:
    """Each job can be told apart on a narrow screen."""
    names = [act.name for act in SCRIPT]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) <= 10
    assert len(demo_jobs()) == len(names)


@pytest.mark.parametrize(
    ("act", "end", "sentence"),
    [
        (DONE, an_end("done"), ""),
        (DONE, None, "never ended"),
        (DONE, an_end("lost"), "is lost, not done"),
        (DONE, an_end("done", failures=1), "had 1 mishaps, not 0"),
        (Act("a", "true", says="left"), an_end("done", note="left 1 process"), ""),
        (Act("a", "true", says="left"), an_end("done"), "said '', not 'left'"),
        (Act("a", "true", spared=True), an_end("done"), "never ran out of memory while sharing a GPU"),
    ],
)
def test_what_differs_from_the_script_is_told(act: Act, end: JobEvent | None, sentence: str) -> None:
    """Result, number of mishaps and last words are all compared."""
    assert difference(act, end) == sentence


def test_a_demonstration_that_went_wrong_names_the_job() -> None:
    """Every job that did not become what it should is in the list."""
    said: list[str] = []
    demonstration = Demonstration(RunView(LineView(said.append)), [DONE, Act("b", "true")])
    demonstration.happened(an_end("failed", failures=1))
    assert demonstration.judge() == 1
    assert [line.rpartition(": ")[2] for line in said[-2:]] == ["a is failed, not done\n", "b never ended\n"]
