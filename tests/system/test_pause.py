"""`stoker pause` and `stoker resume`: jobs held, the queue paused, GPUs drained, and all of it across crashes."""

from __future__ import annotations

import json

import pytest

from stoker.core.job import OnHold
from stoker.core.spec import Resources
from stoker.store.engine_lock import QUEUE, living_engines
from support.background import Background
from support.cli import until
from support.users import require_root
from support.wait import PATIENCE_SECONDS, wait_until

WHOLE = Resources(gpus=2)


def test_a_waiting_job(background: Background) -> None:
    """A held job stays in the queue when GPUs are free, and starts when it is released."""
    busy, waiting = background.submit(until("gate"), "touch ran", resources=WHOLE)
    background.wait_word("running", busy)
    assert background("hold", str(waiting)).out == f"held {waiting}\n"
    assert background.job(waiting).state == OnHold(background.job(waiting).state.since, "held by you")  # type: ignore[union-attr]
    assert background("pause", str(waiting)).out == f"already held: {waiting}\n"
    background.open_gate("gate")
    background.wait_over(busy)
    assert background.word(waiting) == "held"
    assert background("release", str(waiting)).out == f"released {waiting}\n"
    background.wait_over(waiting)
    assert background.word(waiting) == "done"


def test_it_holds_across_a_crash(background: Background) -> None:
    """What is held stays held under the next engine; what was paused without one is held all the same."""
    busy, first, second = background.submit(until("gate"), "touch ran", "touch ran", resources=WHOLE)
    background.wait_word("running", busy)
    background("pause", str(first))
    background.kill_engine()
    assert background("pause", str(second)).out == f"held {second}\n"
    background.open_gate("gate")
    background.wait_over(busy)
    assert [background.word(first), background.word(second)] == ["held", "held"]


def test_what_cannot_be_held(background: Background) -> None:
    """A running job would keep its GPU, and one that is over needs no pause: both are said, with code 2."""
    running, over = background.submit(until("gate"), "true")
    background.wait_word("running", running)
    background.wait_over(over)
    outcome = background("pause", str(running), str(over))
    assert (outcome.code, outcome.out) == (2, "")
    assert f"stoker: not paused: {running} (running); a running job cannot be paused" in outcome.err
    assert f"stoker cancel {running}" in outcome.err
    assert f"already finished: {over} (done)" in outcome.err
    assert background("pause", "all").code == 0


def test_all(background: Background) -> None:
    """`all` is all that waits, and to resume, all that is held."""
    busy, *waiting = background.submit(until("gate"), "true", "true", resources=WHOLE)
    background.wait_word("running", busy)
    assert background("pause", "all").out == f"held 2 jobs {waiting[0]}-{waiting[1]}\n"
    assert background("resume", "all").out == f"released 2 jobs {waiting[0]}-{waiting[1]}\n"
    background.open_gate("gate")
    background.wait_over(*waiting)


def test_tasks_of_an_array(background: Background) -> None:
    """Tasks can be held one by one."""
    ids = background.submit(*["true"] * 4, array=True, held="held by you")
    assert background("resume", f"{ids[0]}.1-2").out == f"released 2 tasks {ids[0]}.[1-2]\n"
    background.wait_over(ids[1], ids[2])
    assert background.word(ids[0]) == "held"


def test_the_queue(background: Background) -> None:
    """A paused queue starts nothing, not even under another engine, until it is resumed."""
    (running,) = background.submit(until("gate"))
    background.wait_word("running", running)
    assert background("pause", "--queue").out == "paused the queue (1 running job not affected)\n"
    assert background("pause", "--queue").out == "the queue is already paused\n"
    background.kill_engine()
    (waiting,) = background.submit("touch ran")
    background.open_gate("gate")
    background.wait_over(running)
    outcome = background("wait", str(waiting), "--timeout", "1s")
    assert outcome.code == 124
    assert background.word(waiting) == "waiting"
    assert background("resume", "--queue").out == "resumed the queue\n"
    assert background("wait", str(waiting)).code == 0
    assert background("resume", "--queue").out == "the queue was not paused\n"


def test_a_gpu(background: Background) -> None:
    """A drained GPU takes no new jobs, and what runs there goes on."""
    first, second = background.submit("cat /dev/null; " + until("gate"), until("gate"))
    background.wait_word("running", first, second)
    state = background.job(first).state
    device = state.devices[0]  # type: ignore[union-attr]
    label = "0" if "0" in device else "1"
    outcome = background("pause", "--gpu", label)
    said = f"GPU {label} drained for your own queue only: no new jobs ({first} keeps running); other users may use it"
    assert outcome.out.startswith(said)
    assert background("pause", "--gpu", label).out == f"GPU {label} is already drained\n"
    background.open_gate("gate")
    background.wait_over(first, second)
    later = background.submit("echo $STOKER_GPU_IDS", "echo $STOKER_GPU_IDS", "echo $STOKER_GPU_IDS")
    background.wait_over(*later)
    assert {background.log(job_id).strip() for job_id in later} == {"1" if label == "0" else "0"}
    assert background("resume", "--gpu", label).out == f"GPU {label} is in use again\n"
    assert background("resume", "--gpu", label).out == f"GPU {label} was not drained\n"


def test_a_gpu_that_is_not_there(background: Background) -> None:
    """An unknown GPU is refused, with those there are; an engine is started to know them."""
    outcome = background("pause", "--gpu", "7")
    assert outcome.code == 5
    assert "no device '7' on this machine" in outcome.err
    assert "known devices: 0, 1" in outcome.err


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_nothing_named(background: Background, verb: str) -> None:
    """Both want to know what is meant."""
    outcome = background(verb)
    assert outcome.code == 2
    assert "--queue or --gpu N" in outcome.err


def test_resume_what_is_not_held(background: Background) -> None:
    """What runs needs nothing; what is over is run again by another command."""
    running, over = background.submit(until("gate"), "true")
    background.wait_word("running", running)
    background.wait_over(over)
    assert background("resume", str(running)).out == f"not held: {running} (running)\n"
    outcome = background("resume", str(over))
    assert outcome.code == 2
    assert f"to run again: stoker retry {over}" in outcome.err


def test_json(background: Background) -> None:
    """What was done to the queue is told beside what was done to jobs."""
    (held,) = background.submit("true", held="held by you")
    value = json.loads(background("pause", "--queue", str(held), "--json").out)
    assert value["notes"] == ["paused the queue"]
    assert [job["said"] for job in value["jobs"]] == [f"already held: {held}"]


def test_what_a_dead_run_left(background: Background) -> None:
    """Jobs that a foreground run left waiting go on in the queue when they are resumed."""
    run = background.start_run(until("gate"), "echo later", "echo last")
    run.kill()
    run.wait(PATIENCE_SECONDS)
    wait_until(lambda: not list(living_engines(background.paths)))
    assert "into the queue (its 'stoker run' was interrupted)" in background("resume", "2-3").out
    assert background("wait", "2-3").code == 0
    with background.open_store() as store:
        assert store.owner(2) == QUEUE


def test_what_a_dead_run_lost(background: Background) -> None:
    """A job whose run and worker were killed waits again, and is resumed like the others."""
    run = background.start_run("echo >> starts; " + until("gate"))
    background.wait_lines("starts", 1)
    run.kill()
    run.wait(PATIENCE_SECONDS)
    background.kill_workers()
    background.start_engine()
    background.wait_word("waiting", 1)
    background.open_gate("gate")
    assert background("resume", "all").out == "moved 1 into the queue (its 'stoker run' was interrupted)\n"
    assert background("wait", "1").code == 0
    assert len(background.lines("starts")) == 2


def test_a_command_that_had_a_terminal(background: Background) -> None:
    """A command whose output went to a terminal that is gone gets a log file in the queue."""
    (busy,) = background.submit(until("gate"), resources=WHOLE)
    background.wait_word("running", busy)
    run = background.start("run", "--", "echo", "hello")
    wait_until(lambda: background.has(2))
    run.kill()
    run.wait(PATIENCE_SECONDS)
    assert background("resume", "all").code == 0
    background.open_gate("gate")
    assert background("wait", "2").code == 0
    assert background("logs", "2").out == "hello\n"


def test_nothing_to_do(background: Background) -> None:
    """Where `all` is nothing, that is said, and it is no error."""
    for verb in ("pause", "resume"):
        outcome = background(verb, "all")
        assert (outcome.code, outcome.out) == (0, "")
        assert "stoker: no " in outcome.err


def test_a_range_of_gpus(background: Background) -> None:
    """GPUs can be given as ids are."""
    background.start_engine()
    assert background("pause", "--gpu", "0-1").out.count("queue only: no new jobs") == 2
    assert background("resume", "--gpu", "0-1").out.count("is in use again") == 2
    assert background("pause", "--gpu", "1-0").code == 2
    assert "no device '2'" in background("pause", "--gpu", "0-7").err


def test_a_gpu_is_drained_for_all(background: Background) -> None:
    """Root's list in the ledger keeps every engine off the GPU, and all screens show it."""
    require_root()
    assert background("pause", "--gpu", "0", "--for-all").out == "GPU 0 drained for all users: no new jobs\n"
    assert background("pause", "--gpu", "0", "--for-all").out == "GPU 0 is already drained for all users\n"
    assert "drained for all by root" in background("status", "--table").out, "without an engine, too"
    first, second = background.submit(until("gate"), "true")
    background.wait_word("running", first)
    assert background.job(first).state.devices == ("SIM-1",)  # type: ignore[union-attr]
    (only,) = background.submit("true", resources=Resources(allowed=("SIM-0",)))
    wait_until(lambda: "GPU 0 is drained for all by root" in background("status", str(only), "--json").out)
    assert "drained for all by root" in background("gpus").out
    assert "only root can end this: stoker resume --gpu 0 --for-all" in background("resume", "--gpu", "0").out
    assert background("resume", "--gpu", "0", "--for-all").out == "GPU 0 is no longer drained for all users\n"
    background.wait_over(only, second)
    background.open_gate("gate")
    assert background("resume", "--gpu", "0", "--for-all").out == "GPU 0 was not drained for all users\n"


def test_only_gpus_are_drained_for_all(background: Background) -> None:
    """A queue belongs to one user."""
    outcome = background("pause", "--queue", "--for-all")
    assert (outcome.code, "--for-all is for GPUs" in outcome.err) == (2, True)
