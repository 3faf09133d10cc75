"""`stoker logs`: the output of a job, all of it, its end, or as it comes."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.core.spec import Resources
from support.background import Background
from support.cli import PROGRAM, until
from support.wait import PATIENCE_SECONDS, line_from, wait_until

WHOLE = Resources(gpus=2)


def test_the_newest_by_default(background: Background) -> None:
    """Without a name it is the newest job, whose name is told beside its output."""
    ids = background.submit("echo one", "echo two; echo err >&2", names=["first", "second"])
    background.wait_over(*ids)
    outcome = background("logs")
    assert (outcome.code, outcome.out) == (0, "two\nerr\n")
    assert outcome.err == f"stoker: {ids[1]}: second\n"
    assert background("logs", "first").out == "one\n"
    assert background("logs", str(ids[0]), "--path").out == f"{background.cwd}/{ids[0]}.log\n"


def test_the_last_lines(background: Background) -> None:
    """Only so many lines as were asked for."""
    (job,) = background.submit("seq 100")
    background.wait_over(job)
    assert background("logs", str(job), "-n", "2").out == "99\n100\n"
    assert background("logs", str(job), "-n", "0").out == ""


def test_errors_apart(background: Background) -> None:
    """Errors in a file of their own are shown after the output."""
    (job,) = background.submit("echo out; echo err >&2", err=str(background.cwd / "%j.err"))
    background.wait_over(job)
    outcome = background("logs", str(job))
    assert outcome.out == "out\nerr\n"
    assert f"errors in {background.cwd}/{job}.err" in outcome.err
    assert background("follow", str(job)).out == "out\nerr\n"
    assert background("logs", str(job), "--path").out.splitlines() == [
        f"{background.cwd}/{job}.log",
        f"{background.cwd}/{job}.err",
    ]


def test_runs_of_a_job(background: Background) -> None:
    """Each run has a file of its own; the last one is shown unless another is named."""
    (job,) = background.submit("echo run $STOKER_ATTEMPT; exit 1", retries=2)
    background.wait_over(job)
    assert background("logs", str(job)).out == "run 3\n"
    assert background("logs", str(job), "--attempt", "2").out == "run 2\n"
    missing = background("logs", str(job), "--attempt", "4")
    assert missing.code == 4
    assert "it has 3 attempts so far" in missing.err


def test_a_task(background: Background) -> None:
    """A task is named by its array and index; the array is all its tasks, each below a header."""
    ids = background.submit("echo a", "echo b", array=True)
    background.wait_over(*ids)
    assert background("logs", f"{ids[0]}.1").out == "b\n"
    whole = background("logs", str(ids[0]))
    assert whole.out == f"==> {ids[0]}.0 echo a <==\na\n\n==> {ids[0]}.1 echo b <==\nb\n"
    paths = background("logs", str(ids[0]), "--path").out.splitlines()
    assert [Path(path).read_text() for path in paths] == ["a\n", "b\n"]
    assert background("logs").out == "b\n"


def test_what_has_not_started(background: Background) -> None:
    """There is nothing to show yet, and it is said how to wait for it."""
    (held,) = background.submit("true", held="held by you")
    outcome = background("logs", str(held))
    assert outcome.code == 4
    assert f"to wait for it: stoker logs -f {held}" in outcome.err
    background("cancel", str(held))
    assert "never started (cancelled)" in background("logs", str(held)).err


def test_a_log_that_is_gone(background: Background) -> None:
    """A file that somebody removed is said to be missing."""
    (job,) = background.submit("true")
    background.wait_over(job)
    (background.cwd / f"{job}.log").unlink()
    outcome = background("logs", str(job))
    assert outcome.code == 4
    assert "No such file" in outcome.err


def test_bytes_pass_as_they_are(background: Background) -> None:
    """Into a pipe goes what is in the file, whatever it is."""
    (job,) = background.submit(r"printf '10%%\r20%%\r\377\000\033[31m'; head -c 300000 /dev/zero | tr '\0' x")
    background.wait_over(job)
    with open(background.cwd / f"{job}.log", "rb") as log:
        written = log.read()
    for arguments in (["logs", str(job)], ["logs", "-f", str(job)]):
        process = background.start(*arguments)
        out, _ = process.communicate(timeout=60)
        assert out == written


def test_progress_bars_on_a_terminal(background: Background) -> None:
    """A terminal sees a bar as it stood in the end, and the file is left as it is."""
    (job,) = background.submit(r"printf '10%%\r20%%\r30%%\ndone\n'")
    background.wait_over(job)
    assert _on_a_terminal(background, "logs", str(job)) == b"30%\r\ndone\r\n"
    assert background.log(job) == "10%\r20%\r30%\ndone\n".replace("\r", "\n")  # as text mode reads it


def test_lines_as_json(background: Background) -> None:
    """Each line is a value that tells its run and stream, whatever bytes are in it."""
    line = r"printf 'one\ntwo\377'; echo err >&2; [ $STOKER_ATTEMPT = 2 ]"
    (job,) = background.submit(line, retries=1, err=str(background.cwd / "%j.err"))
    background.wait_over(job)
    values = [json.loads(value) for value in background("logs", str(job), "--jsonl", "--attempt", "1").out.splitlines()]
    assert [(value["run"], value["stream"], value["text"]) for value in values] == [
        (1, "out", "one"),
        (1, "out", "two\\xff"),
        (1, "err", "err"),
    ]
    assert (values[0]["schema"], values[0]["id"], values[0]["shown"]) == ("stoker.log/1", job, str(job))
    assert len(background("follow", str(job), "--jsonl").out.splitlines()) == 3


def test_follow(background: Background) -> None:
    """Output is shown as it comes, until the job is over, whose code is the exit code."""
    (job,) = background.submit(f"echo one; {until('gate')}; echo two; exit 5")
    with _following(background, str(job)) as process:
        assert _line(process) == b"one\n"
        background.open_gate("gate")
        assert _line(process) == b"two\n"
        outcome = background.finish(process)
    assert outcome.code == 5
    assert f"{job} exit 5" in outcome.err


def test_follow_over_retries(background: Background) -> None:
    """Every run is followed, from the one that goes on to the last."""
    (job,) = background.submit(f"echo run $STOKER_ATTEMPT; {until('gate')}; [ $STOKER_ATTEMPT = 3 ]", retries=2)
    with _following(background, str(job)) as process:
        assert _line(process) == b"run 1\n"
        background.open_gate("gate")
        outcome = background.finish(process)
    assert outcome.code == 0
    assert outcome.out == "run 2\nrun 3\n"
    assert f"{job}: run 3" in outcome.err


def test_follow_what_waits(background: Background) -> None:
    """A job that waits is waited for, and why it waits is told."""
    busy, waiting = background.submit(until("gate"), "echo mine", resources=WHOLE)
    background.wait_word("running", busy)
    process = background.start("follow", str(waiting))
    while b"waits: needs 2 GPUs; none free" not in (line := line_from(process.stderr)):
        assert b"about to start" in line, line  # the engine has it, and has not yet planned
    background.open_gate("gate")
    outcome = background.finish(process)
    assert (outcome.code, outcome.out) == (0, "mine\n")


def test_follow_across_a_crash(background: Background) -> None:
    """The engine may die: the output comes from the file, and the code from the next engine."""
    (job,) = background.submit(f"echo one; {until('gate')}; echo two; exit 6")
    with _following(background, str(job)) as process:
        assert _line(process) == b"one\n"
        background.kill_engine()
        background.open_gate("gate")
        assert _line(process) == b"two\n"
        assert background.finish(process).code == 6


def test_interrupted(background: Background) -> None:
    """Ctrl-C ends only the looking, and says so."""
    (job,) = background.submit(f"echo one; {until('gate')}")
    with _following(background, str(job)) as process:
        assert _line(process) == b"one\n"
        process.send_signal(signal.SIGINT)
        outcome = background.finish(process)
    assert outcome.code == 130
    assert f"detached; {job} continues" in outcome.err
    background.wait_word("running", job)  # its output may come before the record of its start


def test_nobody_reads_on(background: Background) -> None:
    """A reader that has seen enough ends it without a word."""
    (job,) = background.submit("seq 200000")
    background.wait_over(job)
    outcome = background.typed(f"{PROGRAM} logs {job} | head -n 1")
    assert (outcome.out, outcome.err) == ("1\n", "")


@pytest.mark.parametrize(
    ("arguments", "code"), [(["9"], 4), (["-f", "9"], 4), (["-n", "-1"], 2), (["1-"], 2), (["1", "-f", "--path"], 2)]
)
def test_nonsense(background: Background, arguments: list[str], code: int) -> None:
    """What cannot be meant is refused."""
    background.submit("true", start=False)
    assert background("logs", *arguments).code == code


@contextmanager
def _following(background: Background, job: str) -> Iterator[subprocess.Popen[bytes]]:
    process = background.start("logs", "-f", job)
    yield process


def _line(process: subprocess.Popen[bytes]) -> bytes:
    return line_from(process.stdout)


def _on_a_terminal(background: Background, *arguments: str) -> bytes:
    ours, theirs = pty.openpty()
    process = subprocess.Popen([PROGRAM, *arguments], cwd=background.cwd, env=background.environment, stdout=theirs)
    assert process.wait(PATIENCE_SECONDS) == 0
    os.close(theirs)
    shown = bytearray()
    wait_until(lambda: _is_read(ours, shown))
    os.close(ours)
    return bytes(shown)


def _is_read(descriptor: int, into: bytearray) -> bool:
    """Whether a terminal that nobody writes to any more has given all."""
    assert select.select([descriptor], [], [], PATIENCE_SECONDS)[0], "it is still open somewhere"
    try:
        part = os.read(descriptor, 65_536)
    except OSError:
        return True
    into += part
    return not part


def test_an_array_is_followed_as_a_whole(background: Background) -> None:
    """Whole lines of all tasks, each with its task before it, until all are over; the exit code tells of failures."""
    lines = [
        f"printf 'a{task}\\nb'; {until('gate')}; printf 'c{task}\\n\\033[31mred'; exit {task}" for task in range(2)
    ]
    ids = background.submit(*lines, array=True)
    process = background.start("logs", "-f", str(ids[0]))
    background.wait_word("running", *ids)
    background.open_gate("gate")
    outcome = background.finish(process)
    array = ids[0]
    assert sorted(outcome.out.splitlines()) == sorted(
        f"{array}.{task} | {text}" for task in range(2) for text in (f"a{task}", f"bc{task}", "\x1b[31mred")
    )
    assert outcome.code == 1
    assert f"{array}.1 exit 1" in outcome.err
    assert f"{array}.0 " not in outcome.err


def test_jobs_without_output_are_counted(background: Background) -> None:
    """Of several jobs those that ran are shown."""
    (over,) = background.submit("echo hi")
    background.wait_over(over)
    (held,) = background.submit("true", held="held by you")
    outcome = background("logs", str(over), str(held))
    assert outcome.out == f"==> {over} echo hi <==\nhi\n"
    assert "1 job without output yet" in outcome.err
