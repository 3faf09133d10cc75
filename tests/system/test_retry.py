"""`stoker retry`: the same job once more, with a run and a log file of its own."""

from __future__ import annotations

import json
import sys

import pytest
from msgspec.structs import replace

from stoker.app.control.retry import rounds
from stoker.core.spec import Dependency, JobSpec, Resources
from stoker.store.engine_lock import QUEUE, living_engines
from support.background import Background
from support.build import a_job
from support.cli import PROGRAM, until
from support.terminal import open_terminal
from support.wait import wait_until

GIB = 2**30


def test_the_same_job_again(background: Background) -> None:
    """It keeps its id, counts one run more, and leaves the first log alone."""
    (job,) = background.submit("echo run $STOKER_ATTEMPT; test -e mended")
    assert background("wait").code == 1
    background.open_gate("mended")
    assert background("retry", str(job)).out == f"requeued {job} (last result: exit 1)\n"
    assert background("wait", str(job)).code == 0
    assert (background.log(job), background.log(job, 1)) == ("run 1\n", "run 2\n")


def test_what_is_not_over(background: Background) -> None:
    """A job that is not over cannot be run again, and then none of those named is."""
    over, running = background.submit("false", until("gate"))
    background.wait_over(over)
    outcome = background("retry", str(over), str(running))
    assert outcome.code == 2
    assert f"{running} has not finished" in outcome.err
    assert background.word(over) == "failed"


def test_what_failed_of_late(background: Background) -> None:
    """--failed alone is about all jobs of the queue that failed in the last day, or --since, and says so."""
    (old,) = background.submit("false")
    ids = background.submit("false", "true", "exit 3")
    background.wait_over(old, *ids)
    assert "3 failed jobs since 1h" in background("retry", "--failed", "--since", "1h", "--dry-run").err
    outcome = background("retry", "--failed")
    assert outcome.out.splitlines() == [
        f"requeued 2 jobs {old}-{ids[0]} (last result: exit 1)",
        f"requeued {ids[2]} (last result: exit 3)",
    ]
    assert "3 failed jobs of the last 24 h" in outcome.err
    assert background("wait", f"{old}-{ids[-1]}").code == 1
    assert [background.job(job_id).tries for job_id in (old, *ids)] == [2, 2, 1, 2]


def test_what_failed_of_some(background: Background) -> None:
    """With ids, --failed leaves out those that succeeded, run or wait; `all` is the whole history."""
    ids = background.submit("false", "true", "false", array=True)
    (other,) = background.submit("false")
    background.wait_over(*ids, other)
    array = ids[0]
    assert background("retry", str(array), "--failed", "--dry-run").out.splitlines() == [
        f"would requeue 2 tasks {array}.[0,2] (last result: exit 1): false",
    ]
    again = background("retry", "all", "--failed").out
    assert again == f"requeued 3 jobs {array}.[0,2],{other} (last result: exit 1)\n"


def test_a_dry_run_shows_the_command_of_each_task(background: Background) -> None:
    """With the values of the task in place of the placeholders."""
    background("submit", "-G", "0", "-a", "1-2", "--", "sh", "-c", "exit {i}")
    background("wait", "last")
    assert background("retry", "last", "--dry-run").out.splitlines() == [
        "would requeue 1.1 (last result: exit 1): sh -c 'exit 1'",
        "would requeue 1.2 (last result: exit 2): sh -c 'exit 2'",
    ]


def test_nothing_failed(background: Background) -> None:
    """Nothing to do is no error."""
    (job,) = background.submit("true")
    background.wait_over(job)
    for arguments in (["--failed"], ["--failed", str(job)]):
        outcome = background("retry", *arguments)
        assert (outcome.code, outcome.out) == (0, "")
        assert "no job has failed" in outcome.err or "no failed jobs" in outcome.err


def test_more_memory(background: Background) -> None:
    """It can be given more memory than before, but not more than any GPU has."""
    (job,) = background.submit("false", resources=Resources(memory=10 * GIB))
    background.wait_over(job)
    assert "12.0G on each GPU" in background("retry", str(job), "--vram", "+20%", "--dry-run").out
    assert background("retry", str(job), "--vram", "+20%").code == 0
    background.wait_over(job)
    assert background.job(job).spec.resources.memory == 12 * GIB
    background("retry", str(job), "--vram", "20G")
    background.wait_over(job)
    assert background.job(job).spec.resources.memory == 20 * GIB
    too_much = background("retry", str(job), "--vram", "+50%")
    assert too_much.code == 5
    assert "the largest has 24.0G" in too_much.err


def test_more_memory_than_was_learnt(background: Background) -> None:
    """What was measured grows where nobody named a size; a job can also be made to learn, or to have whole GPUs."""
    line = f"exec {sys.executable} -m stoker.devices.demo_job --memory 4G --seconds 1.5"
    (job,) = background.submit(line, resources=Resources(auto=True))
    background.wait_over(job)
    wait_until(lambda: measured(background, job))
    said = background("retry", str(job), "--vram", "+50%").out
    assert (
        said
        == f"requeued {job} (last result: done; 6.0G on each GPU, 50% more than the 4.0G peak of the last attempt)\n"
    )
    background.wait_over(job)
    assert background.job(job).spec.resources == Resources(memory=6 * GIB)
    assert "(last result: done; learnt memory)" in background("retry", str(job), "--vram", "auto").out
    background.wait_over(job)
    assert background.job(job).spec.resources == Resources(auto=True)
    said = background("retry", str(job), "--vram", "+25%", "--dry-run").out
    assert "25% more than the 4.6G reserved last time" in said
    assert "whole GPUs" in background("retry", str(job), "--vram", "all", "--dry-run").out


def measured(background: Background, job: int) -> bool:
    """Whether something was written down of how the job used its GPU."""
    with background.open_store() as store:
        return bool(store.uses(job))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "or use --failed"),
        (["1", "--since", "1h"], "--since is for --failed"),
        (["1", "--vram", "+20%"], "already has whole GPUs"),
        (["1", "--vram", "lots"], "lots"),
        (["1", "--vram", "0"], "greater than 0"),
        (["1", "--vram", "12"], "write 12G"),
    ],
)
def test_nonsense(background: Background, arguments: list[str], words: str) -> None:
    """What cannot be meant is refused, and nothing runs again."""
    (job,) = background.submit("false")
    background.wait_over(job)
    outcome = background("retry", *arguments)
    assert outcome.code == 2
    assert words in outcome.err
    assert background.word(job) == "failed"


def test_skipped_jobs(background: Background) -> None:
    """What was skipped behind a failed array goes on when both are run again; alone it is skipped again."""
    array = background.submit("test -e mended", "true", array=True)
    (behind,) = background.submit("true", after=(Dependency(array[0], array=True),))
    (last,) = background.submit("true", after=(Dependency(behind),))
    background.wait_over(*array, behind, last)
    exclusive = background("retry", str(behind))
    assert exclusive.code == 2
    assert f"ended again: {behind} (skipped): array {array[0]} did not succeed" in exclusive.err
    background.open_gate("mended")
    assert background("retry", "all", "--failed").code == 0
    assert background("wait", str(array[0]), str(behind), str(last)).code == 0


def test_what_was_skipped_because_of_a_job(background: Background) -> None:
    """It is queued again with the job, down the whole chain, unless it would only be skipped again or is left alone."""
    root, other = background.submit("test -e mended", "false")
    (behind,) = background.submit("true", after=(Dependency(root),))
    (last,) = background.submit("true", after=(Dependency(behind),))
    (both,) = background.submit("true", after=(Dependency(root), Dependency(other)))
    background.wait_over(root, other, behind, last, both)
    assert len(background("retry", str(root), "--only", "--dry-run").out.splitlines()) == 1
    background.open_gate("mended")
    assert background("retry", str(root)).out.splitlines() == [
        f"requeued {root} (last result: exit 1)",
        f"requeued 2 jobs {behind}-{last} (last result: skipped)",
    ]
    assert background("wait", str(root), str(behind), str(last)).code == 0
    assert background.word(both) == "skipped"


def test_jobs_of_a_foreground_run(background: Background) -> None:
    """A job of a run that is over becomes one of the queue; where it wrote to a terminal it gets a file."""
    run = background("run", "--", "sh", "-c", "echo run; test -e mended")
    assert (run.code, run.out) == (1, "run\n")
    assert list(living_engines(background.paths)) == []
    background.open_gate("mended")
    assert background("retry", "last").code == 0
    assert background("wait").code == 0
    assert background("logs").out == "run\n"
    with background.open_store() as store:
        assert store.owner(1) == QUEUE


def test_json(background: Background) -> None:
    """What happened as one value."""
    (job,) = background.submit("false")
    background.wait_over(job)
    value = json.loads(background("retry", str(job), "--json").out)
    assert (value["verb"], value["jobs"][0]["before"]) == ("retry", "failed")


def test_a_crash(background: Background) -> None:
    """A retry that no engine has heard of is carried out by the next one, once."""
    (job,) = background.submit("echo >> runs; false")
    background.wait_over(job)
    background.kill_engine()
    assert background("retry", str(job)).code == 0
    wait_until(lambda: len(background.lines("runs")) == 2)
    background.wait_over(job)
    assert background.job(job).tries == 2


def test_rounds() -> None:
    """A job behind an array is asked for when the array waits again, and chains of those one after the other."""
    tasks = [replace(a_job(job_id), array=1) for job_id in (1, 2)]
    behind = a_job(3, spec=JobSpec(after=(Dependency(1, array=True),)))
    after_that = a_job(4, spec=JobSpec(after=(Dependency(3), Dependency(2))))
    second = replace(a_job(5, spec=JobSpec(after=(Dependency(3),))), array=5)
    last = a_job(6, spec=JobSpec(after=(Dependency(5, array=True),)))
    jobs = [last, *tasks, behind, after_that, second]
    assert [[job.id for job in round_] for round_ in rounds(jobs)] == [[1, 2], [3, 4, 5], [6]]
    assert [[job.id for job in round_] for round_ in rounds([behind])] == [[3]]


def test_failures_that_a_retry_cannot_fix(background: Background) -> None:
    """--failed leaves out commands that were not found, and says so; --all and ids take them."""
    missing, failed = background.submit("exit 127", "exit 3")
    background.wait_over(missing, failed)
    outcome = background("retry", "--failed", "--dry-run")
    assert outcome.out.startswith(f"would requeue {failed} ")
    assert f"skipping 1 failure that a retry cannot fix (command not found, or memory): {missing}" in outcome.err
    assert len(background("retry", "--failed", "--all", "--dry-run").out.splitlines()) == 2
    assert background("retry", str(missing)).code == 0


def test_other_options_for_the_next_run(background: Background) -> None:
    """GPUs, limit and priority; a limit is taken away by an empty one."""
    (job,) = background.submit("exit 3", limit=60.0)
    background.wait_over(job)
    said = background("retry", str(job), "-G", "2", "--time", "2h", "--priority", "4").out
    assert said == f"requeued {job} (last result: exit 3; gpus 2; time 2h; priority 4)\n"
    spec = background.job(job).spec
    assert (spec.resources.gpus, spec.limit, spec.priority) == (2, 7200.0, 4)
    background.wait_over(job)
    background("retry", str(job), "--time", "")
    assert background.job(job).spec.limit is None


def test_many_failures_are_retried_after_a_question(background: Background) -> None:
    """On a terminal; no is the default."""
    ids = background.submit(*["exit 3"] * 6)
    background.wait_over(*ids)
    with open_terminal(background.cwd) as terminal:
        words = [f"{name}={background.environment[name]}" for name in ("STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM")]
        terminal.start(["env", *words, PROGRAM, "retry", "--failed"], 80, 24)
        terminal.wait_for("retry 6 jobs? [y/N]")
        terminal.press("Enter")
        terminal.wait_for("nothing was retried", "exit code 1")
    assert {background.job(job).tries for job in ids} == {1}
