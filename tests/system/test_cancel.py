"""`stoker cancel`: what waits leaves the queue, what runs is stopped, and a crash of the engine changes nothing."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from stoker.app.control.requests import MANY_JOBS, ask
from stoker.core.job import Cancelled, advance
from stoker.core.requests import Cancel
from stoker.core.spec import Resources
from stoker.store.engine_lock import QUEUE
from stoker.store.queries import unanswered
from stoker.store.schema import Change
from support.background import Background
from support.cli import until
from support.wait import PATIENCE_SECONDS, wait_until

WHOLE = Resources(gpus=2)
NOT_ANSWERED = 3


def test_what_waits_and_what_runs(background: Background) -> None:
    """Each job gets a line that says what it was and what becomes of it."""
    running, waiting = background.submit(until("never"), "touch ran", resources=WHOLE)
    background.wait_word("running", running)
    outcome = background("cancel", str(waiting), str(running))
    assert outcome.code == 0
    assert outcome.out.splitlines()[0] == f"cancelled {waiting} (queued)"
    assert outcome.out.splitlines()[1] in (
        f"stopping {running} (SIGTERM sent, SIGKILL in 30s)",
        f"cancelled {running} (running)",
    )
    background.wait_over(running, waiting)
    assert background.ended(running).result == "cancelled"
    assert background.ended(running).signal == signal.SIGTERM
    assert background.ended(waiting).note == "cancelled by you"
    assert not (background.cwd / "ran").exists()
    again = background("kill", str(running))
    assert (again.code, again.out) == (0, f"already finished: {running} (cancelled)\n")


def test_another_signal_and_grace(background: Background) -> None:
    """A job gets the signal that was named, and KILL after the grace that was named."""
    heeds, ignores = "trap 'echo int; exit 7' INT; touch heeds", "trap '' TERM; touch ignores"
    polite, stubborn = background.submit(f"{heeds}; {until('never')}", f"{ignores}; {until('never')}")
    background.wait_word("running", polite, stubborn)
    wait_until(lambda: (background.cwd / "heeds").exists() and (background.cwd / "ignores").exists())
    said = background("cancel", str(polite), "--signal", "INT", "--grace", "2m").out
    assert "SIGINT sent, SIGKILL in 120s" in said or said == f"cancelled {polite} (running)\n"  # it may be over by then
    background.wait_over(polite)
    assert background.log(polite) == "int\n"
    assert f"stopping {stubborn}" in background("cancel", str(stubborn)).out
    shorter = background("cancel", str(stubborn), "--grace", "0")
    assert f"already stopping: {stubborn} (SIGTERM sent, SIGKILL in 0s)" in shorter.out or "cancelled" in shorter.out
    background.wait_over(stubborn)
    assert background.ended(stubborn).signal == signal.SIGKILL


def test_tasks_of_an_array(background: Background) -> None:
    """Some tasks of an array can be cancelled, and a second time the whole of it."""
    ids = background.submit(*[until("never")] * 6, array=True, resources=WHOLE)
    array = ids[0]
    outcome = background("cancel", f"{array}.3-4")
    assert outcome.out == f"cancelled 2 tasks {array}.[3-4] (queued)\n"
    assert background("cancel", str(array)).code == 0
    background.wait_over(*ids)


def test_all(background: Background) -> None:
    """`all` is all that is not over, and nothing is no error."""
    ids = background.submit("true", until("never"), until("never"), held="held by you")
    assert background("cancel", "all").out == f"cancelled 3 jobs {ids[0]}-{ids[2]} (held)\n"
    background.wait_over(*ids)
    nothing = background("cancel", "all")
    assert (nothing.code, nothing.out) == (0, "")
    assert "no job to cancel" in nothing.err


def test_dry_run(background: Background) -> None:
    """A dry run says what would happen, and nothing does."""
    (held,) = background.submit("true", held="held by you")
    outcome = background("cancel", str(held), "--dry-run")
    assert outcome.out == f"would cancel {held} (held)\n"
    assert background.word(held) == "held"


def test_json(background: Background) -> None:
    """The same as one value."""
    (held,) = background.submit("true", held="held by you", names=["x\ny"])
    value = json.loads(background("cancel", str(held), "--json").out)
    assert value["schema"] == "stoker.change/1"
    assert value["verb"] == "cancel"
    assert value["jobs"] == [
        {
            "id": held,
            "shown": str(held),
            "name": "x\ny",
            "before": "held",
            "after": "cancelled",
            "refused": False,
            "said": f"cancelled {held} (held)",
        }
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "no jobs given"),
        (["99"], 4, "there is no job 99"),
        (["1", "99"], 4, "there is no job 99"),
        (["1-"], 2, "is not an id"),
        (["1", "--signal", "LOUD"], 2, "is not a signal"),
        (["1", "--grace", "soon"], 2, "soon"),
    ],
)
def test_nonsense(background: Background, arguments: list[str], code: int, words: str) -> None:
    """What cannot be meant is refused, and no job is touched."""
    (held,) = background.submit("true", held="held by you", start=False)
    outcome = background("cancel", *arguments)
    assert outcome.code == code
    assert words in outcome.err
    assert background.word(held) == "held"


def test_without_an_engine(background: Background) -> None:
    """Where no engine lives, one is started to carry it out."""
    (waiting,) = background.submit("touch ran", start=False)
    assert background.engine_process is None
    assert background("cancel", str(waiting)).out == f"cancelled {waiting} (queued)\n"
    assert not (background.cwd / "ran").exists()


def test_an_engine_that_cannot_start(background: Background) -> None:
    """The request is recorded, the exit code is 3, and the next engine carries it out."""
    (waiting,) = background.submit("touch ran", start=False)
    outcome = background("cancel", str(waiting), STOKER_MARGIN="nonsense")
    assert outcome.code == 3
    assert "your request is recorded" in outcome.err
    background.start_engine()
    background.wait_over(waiting)
    assert background.ended(waiting).result == "cancelled"


def test_an_engine_that_does_not_answer(background: Background) -> None:
    """An engine that hangs is not waited for: the request is recorded, and carried out when it goes on."""
    (held,) = background.submit("true", held="held by you")
    pid = background.hang_engine()
    outcome = background("cancel", str(held))
    os.kill(pid, signal.SIGCONT)
    assert outcome.code == 3
    assert "the engine has not answered yet; your request is recorded" in outcome.err
    background.wait_word("cancelled", held)


def test_a_crash_before_the_engine_hears(background: Background) -> None:
    """A cancel that was recorded while the engine was dead stops a job that runs on."""
    (running,) = background.submit(until("never"))
    background.wait_word("running", running)
    background.kill_engine()
    with background.open_store() as store:
        ask(background.paths, store, [Cancel(running, "cancelled by you")], 1.0)
    background.start_engine()
    background.wait_over(running)
    assert background.ended(running).result == "cancelled"


def test_a_crash_while_it_is_stopped(background: Background) -> None:
    """A job that was told to stop ends as cancelled, though the engine died before the job did."""
    (running,) = background.submit(f"trap 'touch term' TERM; echo >> starts; {until('gate')}", grace=600.0)
    background.wait_lines("starts", 1)
    background.wait_word("running", running)
    assert "stopping" in background("cancel", str(running)).out
    wait_until((background.cwd / "term").exists)
    background.kill_engine()
    assert background.word(running) == "stopping"
    background.open_gate("gate")
    assert background("wait", str(running)).code == 1
    assert background.ended(running).result == "cancelled"
    assert background.lines("starts") == [""]


def test_a_crash_before_the_job_is_told(background: Background) -> None:
    """The engine dies when it has recorded that a job is to stop and has not said so: the next one says it."""
    (running,) = background.submit(f"echo >> starts; {until('never')}")
    background.wait_lines("starts", 1)
    background.wait_word("running", running)
    background.kill_engine()
    with background.open_store() as store:
        event = Cancelled(time.time(), "cancelled by you")
        store.record([Change(advance(background.job(running), event), [(1, event)])])
    background.start_engine()
    background.wait_over(running)
    assert background.ended(running).result == "cancelled"
    assert background.lines("starts") == [""]


def test_a_job_of_a_living_run(background: Background) -> None:
    """A foreground run in another terminal hears of it too, and goes on with the rest."""
    run = background.start_run(until("never"), "touch ran", "touch skipped")
    assert background("cancel", "3", "1").code == 0
    outcome = background.finish(run)
    assert outcome.code == 1
    assert [background.word(job_id) for job_id in (1, 2, 3)] == ["cancelled", "done", "cancelled"]
    assert background.engine_process is None


def test_a_job_of_a_dead_run(background: Background) -> None:
    """What goes on without the run that started it can be stopped."""
    run = background.start_run(until("never"), "touch ran")
    run.kill()
    run.wait(PATIENCE_SECONDS)
    assert background("cancel", "all").code == 0
    background.wait_over(1, 2)
    assert [background.word(1), background.word(2)] == ["cancelled", "cancelled"]
    assert not (background.cwd / "ran").exists()


@pytest.mark.parametrize("heard", [False, True])
def test_a_crash_around_the_answer(background: Background, heard: bool) -> None:
    """The engine dies at once after the wish, or as soon as it has answered: both jobs end, and neither runs again."""
    running, waiting = background.submit(f"echo started >> starts; {until('never')}", "touch ran", resources=WHOLE)
    background.wait_lines("starts", 1)
    with background.open_store() as store:
        numbers = ask(background.paths, store, [Cancel(running, "", 5.0), Cancel(waiting, "")], 1.0)
        if heard:
            wait_until(lambda: not unanswered(store, numbers))
    background.kill_engine()
    assert background("wait", str(running), str(waiting), "--timeout", "50s").code == 1
    assert background.ended(running).result == background.ended(waiting).result == "cancelled"
    assert background.lines("starts") == ["started"]
    assert not (background.cwd / "ran").exists()


def test_the_engine_dies_while_many_jobs_are_cancelled(background: Background) -> None:
    """The command starts it again, and each job is cancelled once."""
    ids = background.submit(*["touch ran"] * MANY_JOBS, array=True, held="held by you")
    engine = background.hang_engine()  # it must not answer before it is killed
    process = background.start("cancel", str(ids[0]))
    with background.open_store() as store:
        wait_until(lambda: bool(store.requests(QUEUE)))
        os.kill(engine, signal.SIGKILL)
        outcome = background.finish(process)
        said = f"cancelled {MANY_JOBS} tasks {ids[0]}.[0-{MANY_JOBS - 1}] (held)\n"
        # On a busy machine the new engine may need longer than the command waits for it.
        assert (outcome.code, outcome.out) in ((0, said), (NOT_ANSWERED, "")), outcome.err
        background.wait_over(ids[0], ids[-1])
        wait_until(lambda: not store.requests(QUEUE))
        assert store.rows("SELECT count(*), count(DISTINCT job) FROM events") == [(MANY_JOBS, MANY_JOBS)]


def test_jobs_are_chosen_by_tag_group_name_and_state(background: Background) -> None:
    """Filters choose among all jobs, or among those named; a job must match all of them."""
    held: dict[str, Any] = {"held": "held by you", "start": False}
    a, b = background.submit("true", "true", names=["vit-a", "vit-b"], tags=(("lr", "1"), ("sweep", "3")), **held)
    (c,) = background.submit("true", names=["bert"], tags=(("sweep", "31"),), group="nlp", **held)
    dry = [
        (words, background("cancel", "--dry-run", *words).out)
        for words in (
            ["--tag", "sweep=3"],
            ["--tag", "sweep"],
            ["--name", "vit-?", str(a), str(c)],
            ["--group", "n*"],
            ["--tag", "sweep=3", "--tag", "lr=2"],
            ["--state", "queued"],
            ["--state", "PD", "--name", "*-b"],
        )
    ]
    assert [out for _, out in dry] == [
        f"would cancel 2 jobs {a}-{b} (held)\n",
        f"would cancel 3 jobs {a}-{c} (held)\n",
        f"would cancel {a} (held)\n",
        f"would cancel {c} (held)\n",
        "",
        "",
        f"would cancel {b} (held)\n",
    ]
    assert background("cancel", "--tag", "nothing").err == "stoker: no job matches\n"
    assert "unknown state 'runing'" in background("cancel", "--state", "runing").err
