"""`stoker preempt`: a running job saves, steps aside, and comes back."""

from __future__ import annotations

import json

from stoker.core.job import Job, Running, Waiting
from stoker.core.spec import Resources
from support.background import Background
from support.cli import until
from support.typist import typing
from support.wait import PATIENCE_SECONDS, wait_until

WHOLE = Resources(gpus=2)
TRAINS = """
step=$(cat state 2>/dev/null || echo 0)
echo "start $step restart=$STOKER_RESTART preempted=$STOKER_PREEMPTED signal=$STOKER_SAVE_SIGNAL"
trap 'echo 7 > state; echo saved; exit 75' "$STOKER_SAVE_SIGNAL"
touch ready
"""
"""A program that saves how far it came, and goes on from there."""


def test_a_job_saves_steps_aside_and_comes_back(background: Background) -> None:
    """It keeps its id, spends no retry, and goes on where it was; the other job has the GPUs meanwhile."""
    (long,) = background.submit(f"{TRAINS} {until('enough')}", resources=WHOLE, preemptible="save")
    wait_until((background.cwd / "ready").exists)
    background.wait_word("running", long)
    (short,) = background.submit(until("gate"), resources=WHOLE, priority=1)
    assert background("preempt", str(long)).out == f"asked to save and leave: {long}\n"
    background.wait_word("running", short)
    state = background.job(long).state
    assert isinstance(state, Waiting)
    assert state.gave_way is not None
    assert (state.gave_way.to, state.gave_way.note) == (short, "preempted by you")
    why = json.loads(background("status", str(long), "--json").out)["jobs"][0]
    assert why["state"] == "queued"
    assert why["why"].startswith(f"preempted: gave way to job {short} (preempted by you); ")
    assert (why["preemptions"], why["attempts"][0]["why"]) == (1, "preempted")
    background.open_gate("gate")
    background.wait_word("running", long)
    wait_until(lambda: "start" in background.log(long, 1))
    assert background.log(long) == "start 0 restart= preempted= signal=USR1\nsaved\n"
    assert background.log(long, 1) == "start 7 restart=1 preempted=1 signal=USR1\n"
    background.open_gate("enough")
    background.wait_over(long, short)
    job = background.job(long)
    assert (background.ended(long).result, job.failures, job.losses, job.preemptions) == ("done", 0, 0, 1)


def test_a_job_that_is_killed_begins_again(background: Background) -> None:
    """With restart it needs no handler."""
    (long,) = background.submit(f"touch ready; {until('enough')}", resources=WHOLE, preemptible="restart")
    wait_until((background.cwd / "ready").exists)
    background.wait_word("running", long)
    (short,) = background.submit("true", resources=WHOLE, priority=1)
    assert background("preempt", str(long)).out == f"asked to stop and start again: {long}\n"
    background.wait_over(short)
    background.wait_word("running", long)
    background.open_gate("enough")
    background.wait_over(long)
    assert (background.ended(long).result, background.job(long).preemptions) == ("done", 1)


def test_jobs_that_cannot_give_way(background: Background) -> None:
    """The command says why not, and changes nothing."""
    running, waiting = background.submit(until("gate"), "true", resources=WHOLE)
    background.wait_word("running", running)
    outcome = background("preempt", str(running), str(waiting))
    assert outcome.out == f"not running: {waiting} (queued)\n"
    assert f"not preemptible: {running}; first: stoker edit {running} --preemptible" in outcome.err
    assert outcome.code == 2
    assert "preemptible none → save" in background("edit", str(running), "--preemptible").out
    assert background("preempt", str(running), "--dry-run").out == f"would ask to save and leave: {running}\n"
    state = background.job(running).state
    assert isinstance(state, Running)
    assert state.giving_way is None
    background.open_gate("gate")
    background.wait_over(running, waiting)


def test_the_engine_dies_while_a_job_saves(background: Background) -> None:
    """The worker keeps the time and knows why the job left; the next engine starts it again."""
    saves = f"trap '{until('gate')}; exit 75' USR1; touch ready; {until('enough')}"
    (long,) = background.submit(f'[ -n "$STOKER_RESTART" ] || {{ {saves}; }}', resources=WHOLE, preemptible="save")
    wait_until((background.cwd / "ready").exists)
    background.wait_word("running", long)
    background("preempt", str(long))
    background.kill_engine()
    background.open_gate("gate")
    background.start_engine()
    background.wait_over(long)
    job = background.job(long)
    assert (background.ended(long).result, job.preemptions, job.losses, job.failures) == ("done", 1, 0, 0)


def test_a_drained_gpu_is_left_at_once(background: Background) -> None:
    """A preemptible job saves and goes on elsewhere; others keep running."""
    saves = f"trap 'exit 75' USR1; touch ready; {until('enough')}"
    (stays,) = background.submit(until("enough"))
    background.wait_word("running", stays)
    (leaves,) = background.submit(saves, preemptible="save")
    wait_until((background.cwd / "ready").exists)
    background.wait_word("running", leaves)
    outcome = background("pause", "--gpu", "0,1", "--now")
    assert outcome.code == 0, outcome.err
    assert f"asked to save and leave: {leaves}" in outcome.out
    assert f"({stays} keeps running)" in outcome.out + outcome.err
    assert f"({leaves} keeps running)" not in outcome.out + outcome.err
    background.wait_word("waiting", leaves)
    assert background.word(stays) == "running"
    state = background.job(leaves).state
    assert isinstance(state, Waiting)
    assert state.gave_way is not None
    assert (state.gave_way.to, state.gave_way.note) == (0, "its GPU is drained")
    assert background("resume", "--gpu", "0,1").code == 0
    background.open_gate("enough")
    background.wait_over(leaves, stays)
    assert background.ended(leaves).result == "done"
    assert "--now is for GPUs" in background("pause", "--queue", "--now").err


def test_another_engine_of_the_same_user_gets_the_gpus(background: Background) -> None:
    """A job in the queue gives way to an urgent command in a terminal, and goes on after it."""
    saves = f"trap 'exit 75' USR1; touch ready; {until('enough')}"
    (long,) = background.submit(saves, resources=WHOLE, preemptible="save")
    wait_until((background.cwd / "ready").exists)
    background.wait_word("running", long)
    background.kill_engine()
    background.started_earlier(long, 3 * 3600.0)
    background.start_engine()
    urgent = background.start("run", "--urgent", "-G", "2", "--", "sh", "-c", "touch urgent")
    assert urgent.wait(PATIENCE_SECONDS) == 0
    assert (background.cwd / "urgent").exists()
    background.wait_word("running", long)
    assert background.job(long).preemptions == 1
    background.open_gate("enough")
    background.wait_over(long)
    assert background.ended(long).result == "done"


def test_a_session_gets_the_gpus_of_a_job(background: Background) -> None:
    """The job saves while `stoker shell` waits, and goes on where it was after the session."""
    (long,) = background.submit(f"{TRAINS} {until('enough')}", resources=WHOLE, preemptible="save")
    wait_until((background.cwd / "ready").exists)
    background.wait_word("running", long)
    background.kill_engine()
    background.started_earlier(long, 3 * 3600.0)
    background.start_engine()
    with typing(background, "shell", "-G", "2") as session:
        session.wait_for("ready> ")
        session.type("echo gpus=$CUDA_VISIBLE_DEVICES\r")
        session.wait_for("gpus=0,1")
        why = json.loads(background("status", str(long), "--json").out)["jobs"][0]["why"]
        assert why.startswith("preempted: gave way (for your session)")
        session.type("exit 0\r")
        assert session.wait_end() == 0
    background.wait_word("running", long)
    wait_until(lambda: background.log(long, 1) == "start 7 restart=1 preempted=1 signal=USR1\n")
    background.open_gate("enough")
    background.wait_over(long)
    job = background.job(long)
    assert (background.ended(long).result, job.preemptions, job.failures) == ("done", 1, 0)


def test_a_short_job_gets_the_gpus_of_a_long_one(background: Background) -> None:
    """Nobody has to ask; `status` of both says what happens."""
    saves = f"trap '{until('gate')}; exit 75' USR1; touch ready; {until('enough')}"
    (long,) = background.submit(f'[ -n "$STOKER_RESTART" ] || {{ {saves}; }}', resources=WHOLE, preemptible="save")
    wait_until((background.cwd / "ready").exists)
    background.wait_word("running", long)
    background.kill_engine()
    background.started_earlier(long, 3 * 3600.0)
    (short,) = background.submit("true", resources=WHOLE, limit=60.0)
    with background.open_store() as store:
        wait_until(lambda: is_leaving(store.job(long)))
    job = json.loads(background("status", str(long), "--json").out)["jobs"][0]
    assert job["why"].startswith(f"gives way to job {short}; has until ")
    background.open_gate("gate")
    background.wait_over(short, long)
    assert [background.ended(job_id).result for job_id in (short, long)] == ["done", "done"]
    assert background.job(long).preemptions == 1


def is_leaving(job: Job | None) -> bool:
    return job is not None and isinstance(job.state, Running) and job.state.giving_way is not None
