"""`stoker wait`: blocks until jobs are over, and its exit code tells how they ended."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest

from stoker.core.spec import Resources
from support.background import Background
from support.cli import until
from support.terminal import open_terminal
from support.wait import line_from, wait_until

CPU = Resources(gpus=0)


@pytest.mark.parametrize(("line", "code"), [("true", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_code_of_one_job(background: Background, line: str, code: int) -> None:
    """For one job the exit code is its own; by default that is the last one, whose name is told."""
    background.submit(line, names=["mine"])
    outcome = background("wait")
    assert outcome.code == code
    assert outcome.out == ""
    assert "waiting for 1: mine" in outcome.err


def test_several_jobs(background: Background) -> None:
    """For several the exit code is 1 if any failed."""
    good, bad, other = background.submit("true", "exit 7", "true")
    assert background("wait", f"{good},{other}").code == 0
    outcome = background("wait", f"{good}-{other}")
    assert outcome.code == 1
    assert f"{bad} exit 7" in outcome.err


def test_an_end_without_a_code(background: Background) -> None:
    """A job that was cancelled before it started did not succeed."""
    (held,) = background.submit("true", held="held by you")
    background("cancel", str(held))
    outcome = background("wait", str(held))
    assert outcome.code == 1
    assert "cancelled by you" in outcome.err


def test_time_is_up(background: Background) -> None:
    """With a timeout it gives up with 124, and the job goes on."""
    (running,) = background.submit(until("gate"))
    outcome = background("wait", str(running), "--timeout", "1s", "--json")
    assert outcome.code == 124
    assert f"timed out; job {running} continues" in outcome.err
    assert json.loads(outcome.out)["timed_out"] is True
    background.open_gate("gate")
    assert background("wait", str(running)).code == 0


def test_a_task_is_named_as_users_type_it(background: Background) -> None:
    """By its array and its number there."""
    array = int(background("submit", "--hold", "-a", "3-4", "--parsable", "--", "true").out)
    outcome = background("wait", f"{array}.4", "--timeout", "0.1s")
    assert f"timed out; job {array}.4 continues" in outcome.err


def test_interrupted(background: Background) -> None:
    """Ctrl-C ends only the waiting, and says so."""
    (running,) = background.submit(until("gate"))
    background.wait_word("running", running)
    process = background.start("wait")
    _wait_announced(process)
    process.send_signal(signal.SIGINT)
    outcome = background.finish(process)
    assert outcome.code == 130
    assert f"detached; job {running} continues" in outcome.err
    assert background.word(running) == "running"


def test_a_held_job_is_told(background: Background) -> None:
    """Waiting for what nobody will start would be in vain, so that is said."""
    (held,) = background.submit("true", held="held by you")
    outcome = background("wait", str(held), "--timeout", "1s")
    assert outcome.code == 124
    assert f"to release it: stoker resume {held}" in outcome.err


def test_a_paused_queue_is_told(background: Background) -> None:
    """What waits says why, once, and so does a submit into a queue in which nothing starts."""
    background("pause", "--queue")
    submitted = background("submit", "true")
    assert (submitted.code, submitted.out) == (0, "submitted 1: true\n")
    assert "the queue is paused by you; to start jobs: stoker resume --queue" in submitted.err
    outcome = background("wait", "--timeout", "2s")
    assert outcome.code == 124
    assert outcome.err.count("1 waits: the queue is paused by you") == 1


def test_all_is_what_is_not_over(background: Background) -> None:
    """A failure before it was typed does not count."""
    (bad,) = background.submit("false")
    background.wait_over(bad)
    background.submit("true")
    assert background("wait", "all").code == 0


def test_without_an_engine(background: Background) -> None:
    """Where no engine lives one is started, and again when it dies."""
    first, second = background.submit("true", until("gate"), start=False)
    assert background("wait", str(first)).code == 0
    process = background.start("wait", str(second))
    background.wait_word("running", second)
    background.kill_engine()
    background.open_gate("gate")
    assert background.finish(process).code == 0


def test_json(background: Background) -> None:
    """All ends as one value."""
    good, bad = background.submit("true", "exit 3", array=True)
    value = json.loads(background("wait", str(good), "--json").out)
    assert value["schema"] == "stoker.wait/1"
    assert value["counts"] == {"done": 1, "failed": 1}
    assert [(job["shown"], job["result"], job["exit_code"]) for job in value["jobs"]] == [
        (f"{good}.0", "done", 0),
        (f"{good}.1", "failed", 3),
    ]
    assert bad == good + 1


def test_a_thousand_jobs(background: Background) -> None:
    """Waiting for a thousand jobs takes little time of its own."""
    ids = background.submit(*["true"] * 1000, resources=CPU)
    process = background.start("wait", f"{ids[0]}-{ids[-1]}")
    assert background.finish(process).code == 0


def test_nothing_to_wait_for(background: Background) -> None:
    """An empty queue has no last job, and an id that is not there is said."""
    assert background("wait").code == 4
    assert background("wait", "7").code == 4
    assert background("wait", "all").code == 0


def test_it_sleeps(background: Background) -> None:
    """While nothing happens it uses next to no time of the processor."""
    (running,) = background.submit(until("gate"))
    background.wait_word("running", running)
    process = background.start("wait")
    _wait_announced(process)
    before = _ticks(process.pid)
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 2.0)
    assert _ticks(process.pid) - before <= 10
    background.open_gate("gate")
    assert background.finish(process).code == 0


def _wait_announced(process: subprocess.Popen[bytes]) -> None:
    """Wait until it says what it waits for."""
    assert b"waiting for" in line_from(process.stderr)


def _ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_failure_is_explained(background: Background) -> None:
    """By the last line of its log; without a terminal there is no progress line."""
    background.submit("true", "echo RuntimeError: loss is nan; exit 1")
    outcome = background("wait", "1-2", "--json")
    assert [job["failure"] for job in json.loads(outcome.out)["jobs"]] == ["", "RuntimeError: loss is nan"]
    assert background("wait", "1-2").err == "stoker: 2 exit 1: RuntimeError: loss is nan\nstoker: of 2 jobs: 1 failed\n"


def test_cancelled_jobs_are_counted_apart(background: Background) -> None:
    """Only failures are named; `all` counts the jobs that were open."""
    bad, *gone = background.submit("exit 7", *[until("never")] * 30)
    background.wait_over(bad)
    background("cancel", f"{gone[0]}-{gone[-1]}")
    outcome = background("wait", f"{bad}-{gone[-1]}")
    assert (outcome.code, outcome.err) == (1, f"stoker: {bad} exit 7\nstoker: of 31 jobs: 1 failed, 30 cancelled\n")
    background.submit("exit 1", "exit 2", held="held by you")
    process = background.start("wait", "all")
    assert b"is held by you" in line_from(process.stderr)
    background("resume", "all")
    assert "of the 2 jobs that were open: 2 failed" in background.finish(process).err


def test_progress_on_a_terminal(background: Background) -> None:
    """A line counts the jobs and gives way to the result."""
    ids = background.submit("true", until("gate"), "exit 3", resources=CPU)
    background.wait_over(ids[0], ids[2])
    names = ("STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM", "PATH")
    with open_terminal(background.home, **{name: background.environment[name] for name in names}) as terminal:
        terminal.start(["stoker", "wait", f"{ids[0]}-{ids[2]}"], 80, 24)
        terminal.wait_for("2/3  1 ok 1 failed 1 running 0 waiting  [00:")
        background.open_gate("gate")
        screen = terminal.wait_for("exit code 1")
    assert "2/3" not in screen
    assert f"{ids[2]} exit 3" in screen
