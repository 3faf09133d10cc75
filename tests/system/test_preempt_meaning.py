"""Arrays, dependencies, retries, edits and job files keep their meaning for jobs that give way; bad programs, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.core.job import Running
from stoker.core.spec import Dependency, Resources
from support.background import Background
from support.cli import until
from support.wait import PATIENCE_SECONDS, wait_until

WHOLE = Resources(gpus=2)
SAVES = f"trap 'exit 75' USR1; touch ready$STOKER_ARRAY_INDEX; {until('enough')}"
FIRST = '[ -n "$STOKER_RESTART" ] || { ' + SAVES + "; }; "
"""Before what a job does after it gave way."""


def preempted(background: Background, job: int, name: str = "ready") -> None:
    """Let a job give way, once it handles its signal, and wait until it has."""
    wait_until((background.cwd / name).exists)
    background.wait_word("running", job)
    assert background("preempt", str(job)).code == 0
    with background.open_store() as store:
        wait_until(lambda: (found := store.job(job)) is not None and found.preemptions == 1)


def test_a_task_of_an_array(background: Background) -> None:
    """It keeps its index, and the limit of the array counts it as before."""
    line = f"{FIRST}echo again $STOKER_ARRAY_INDEX"
    first, second = background.submit(line, line, array=True, resources=WHOLE, preemptible="save", at_once=1)
    preempted(background, first, "ready0")
    background.open_gate("enough")
    background.wait_over(first, second)
    assert [background.ended(task).result for task in (first, second)] == ["done", "done"]
    assert (background.log(first, 1), background.job(second).preemptions) == ("again 0\n", 0)


def test_a_dependant_waits_for_the_real_end(background: Background) -> None:
    """A job that gave way has neither succeeded nor failed."""
    (long,) = background.submit(f"{FIRST}{until('gate')}", resources=WHOLE, preemptible="save")
    after = [Dependency(long, kind) for kind in ("ok", "any", "notok")]
    dependants = [background.submit("true", after=(one,), resources=Resources(gpus=0))[0] for one in after]
    preempted(background, long)
    background.wait_word("running", long)
    assert [background.word(job) for job in dependants] == ["waiting"] * 3
    background.open_gate("gate")
    background.wait_over(long, *dependants)
    assert [background.ended(job).result for job in dependants] == ["done", "done", "skipped"]


def test_retries_are_for_failures(background: Background) -> None:
    """A run that gave way uses none; the next one that fails does, and the job goes on after that."""
    line = f"{FIRST}echo run $STOKER_RESTART; [ -e failed ] || {{ touch failed; exit 3; }}"
    (job,) = background.submit(line, resources=WHOLE, preemptible="save", retries=1)
    preempted(background, job)
    background.wait_over(job)
    ended = background.job(job)
    assert (background.ended(job).result, ended.failures, ended.preemptions, ended.tries) == ("done", 1, 1, 3)
    assert [background.log(job, run) for run in (1, 2)] == ["run 1\n", "run 1\n"]


def test_a_program_that_ignores_the_signal(background: Background) -> None:
    """It runs on, and is not asked again until its user says that it can save now."""
    (job,) = background.submit(f"trap '' USR1; touch ready; {until('gate')}", preemptible="save", save_time=1.0)
    wait_until((background.cwd / "ready").exists)
    background.wait_word("running", job)
    assert background("preempt", str(job)).code == 0
    with background.open_store() as store:
        wait_until(lambda: (found := store.job(job)) is not None and not found.spec.preemptible)
    (shown,) = json.loads(background("status", str(job), "--json").out)["jobs"]
    assert shown["events"][-1]["detail"] == "it did not leave in time, so it goes on and is not asked again"
    assert f"not preemptible: {job}" in background("preempt", str(job)).err
    assert "preemptible none → restart" in background("edit", str(job), "--preemptible", "restart").out
    preempted(background, job)
    background.open_gate("gate")
    background.wait_over(job)
    assert background.ended(job).result == "done"


@pytest.mark.parametrize(
    ("answer", "options", "result"),
    [
        ("exit 0", {}, "done"),
        ("exit 0", {"save_exit": 0}, "again"),
        ("exit 1", {"save_exit": 75}, "failed"),
        ("kill -KILL $$", {}, "again"),
        ("kill -KILL $$", {"save_exit": 75}, "failed"),
    ],
)
def test_how_a_save_ends(background: Background, answer: str, options: dict[str, Any], result: str) -> None:
    """By the exit code, as the user has chosen it."""
    line = f"[ -z \"$STOKER_RESTART\" ] || exit 9; trap '{answer}' USR1; touch ready; {until('never')}"
    (job,) = background.submit(line, preemptible="save", **options)
    wait_until((background.cwd / "ready").exists)
    background.wait_word("running", job)
    assert background("preempt", str(job)).code == 0
    background.wait_over(job)
    ended = background.ended(job)
    assert ("again" if ended.code == 9 else ended.result, background.job(job).preemptions) == (
        result,
        int(result == "again"),
    )


def test_an_edit_of_a_running_job_counts(background: Background) -> None:
    """Its signal and its exit code can be changed until it is asked."""
    line = f"{FIRST.replace('USR1', 'USR2').replace('exit 75', 'exit 0')}true"
    (job,) = background.submit(line, preemptible="save")
    background.wait_word("running", job)
    assert background("edit", str(job), "--save-signal", "USR2", "--save-exit", "0").code == 0
    preempted(background, job)
    background.wait_over(job)
    assert (background.ended(job).result, background.job(job).tries) == ("done", 2)


def test_two_runs_want_the_same_gpus(background: Background) -> None:
    """Each gets them once, one after the other; the job in the queue gives way once and goes on after both."""
    (long,) = background.submit(SAVES, resources=WHOLE, preemptible="save")
    wait_until((background.cwd / "ready").exists)
    background.wait_word("running", long)
    background.kill_engine()
    background.started_earlier(long, 3 * 3600.0)
    background.start_engine()
    words = ("run", "--urgent", "-G", "2", "--", "sh", "-c", "mkdir busy && sleep 0.3 && rmdir busy && echo x >> ran")
    runs = [background.start(*words) for _ in range(2)]
    assert [run.wait(PATIENCE_SECONDS) for run in runs] == [0, 0]
    assert background.lines("ran") == ["x", "x"]
    background.open_gate("enough")
    background.wait_over(long)
    assert (background.ended(long).result, background.job(long).preemptions) == ("done", 1)


def test_job_files_and_groups(background: Background, tmp_path: Path) -> None:
    """A line of a job file is as preemptible as one on the command line; its group may say so for it."""
    (background.cwd / "jobs.toml").write_text(
        '[[job]]\ncommand = "true"\npreemptible = "restart"\n[[job]]\ncommand = "true"\ngroup = "long"\n'
        '[[job]]\ncommand = "true"\ngroup = "long"\npreemptible = false\n[[job]]\ncommand = "true"\n'
    )
    (background.cwd / "stoker.toml").write_text('[group.long]\npreemptible = "save"\nsave_time = "30s"\n')
    assert background("submit", "-f", "jobs.toml").code == 0
    background.wait_over(1, 2, 3, 4)
    specs = [background.job(job).spec for job in (1, 2, 3, 4)]
    assert [spec.preemptible for spec in specs] == ["restart", "save", "", ""]
    assert [spec.save_time for spec in specs] == [120.0, 30.0, 30.0, 120.0]


def test_a_job_that_ends_while_it_is_asked(background: Background) -> None:
    """Its end counts: it is done, and does not run again."""
    jobs = background.submit(*(["echo x >> ran"] * 20), preemptible="restart")
    while any(background.word(job) != "done" for job in jobs):
        background("preempt", "--state", "running")
    assert background.lines("ran").count("x") == sum(background.job(job).tries for job in jobs)
    assert all(not isinstance(background.job(job).state, Running) for job in jobs)
