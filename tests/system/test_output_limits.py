"""`--first-output` and `--silent` as people use them: jobs that hang are ended, whoever watches them."""

from __future__ import annotations

import json

import pytest

from support.background import Background
from support.cli import Stoker

HANGS = "echo started; sleep 1000"


def test_a_job_that_hangs(background: Background) -> None:
    """It ends under its worker, also while no engine lives, with a result and a reason of its own."""
    (job,) = background.submit(HANGS, silent=3600.0)
    background.wait_word("running", job)
    assert background("edit", str(job), "--silent", "0.5s", "--time", "1h").out == (
        f"{job}: time none → 3600s, silent 3600s → 0.5s\n"
    )
    background.kill_engine()
    background.start_engine()
    background.wait_over(job)
    ended = background.ended(job)
    assert (ended.result, ended.note) == ("hung", "no output for 0.5 s")
    (shown,) = json.loads(background("status", "--json", str(job)).out)["jobs"]
    assert (shown["state"], shown["note"], shown["options"]["silent"]) == ("hung", "no output for 0.5 s", "0.5s")


def test_it_is_retried(background: Background) -> None:
    """A hang is a failure: it can be retried, and another one not."""
    again = "[ $STOKER_ATTEMPT = 1 ] && sleep 1000; true"
    (first,) = background.submit(again, silent=0.3, retries=50, retry_on=("hung",))
    (second,) = background.submit("exit 3", retries=2, retry_on=("hung",))
    background.wait_over(first, second)
    assert background.ended(first).result == "done"
    assert (background.ended(second).code, background.job(second).tries) == (3, 1)


def test_a_run(stoker: Stoker) -> None:
    """A single command that hangs ends as after a time limit."""
    result = stoker.typed("stoker run --first-output 0.3s --devices 0 -- sleep 1000 > out 2> err")
    assert result.code == 124
    assert "no output in the first 0.3 s" in (stoker.cwd / "err").read_text()


def test_files_and_scripts(stoker: Stoker) -> None:
    """A job list and the lines of a script take them too, and each job keeps its own."""
    stoker.write("jobs.toml", "[[job]]", 'command = "sleep 1000"', 'silent = "0.3s"', "", "[[job]]", 'command = "true"')
    result = stoker("run", "--devices", "0", "--first-output", "1h", "jobs.toml")
    assert (result.code, result.err.count("no output for 0.3 s")) == (1, 2), result.err
    stoker.write("job.sh", "#!/bin/sh", "#STOKER --silent 0.3s -o log", "sleep 1000")
    assert stoker("run", "--devices", "0", "job.sh").code == 124


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--silent", "0"], "'0' is not a duration"),
        (["--silent", "-5m"], "'-5m' is not a duration"),
        (["--first-output", "soon"], "'soon' is not a duration"),
    ],
)
def test_bad_times(stoker: Stoker, words: list[str], message: str) -> None:
    result = stoker("submit", *words, "--", "true")
    assert (result.code, message in result.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--silent", "2h", "-t", "1h"], "--silent 7200s has no effect: the time limit of 3600s comes first"),
        (
            ["--silent", "2h", "-o", "/dev/null"],
            "--silent has no effect: Stoker cannot see what a job writes to /dev/null",
        ),
        (
            ["--first-output", "2h"],
            "--first-output has no effect: Stoker cannot see what a job writes to standard output",
        ),
    ],
)
def test_without_effect(stoker: Stoker, words: list[str], message: str) -> None:
    """A limit that cannot work is told in one line, and the job runs."""
    result = stoker("run", *words, "--devices", "0", "--", "true")
    assert (result.code, result.err.count(message)) == (0, 1)
