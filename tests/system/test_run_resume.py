"""`stoker run --resume`: what was done is skipped by its content, what a dead run left goes on, nothing runs twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

from stoker.core.job import Assigned, advance
from stoker.devices.detect import DeclaredDevices
from stoker.store.schema import Change
from support.cli import Stoker, until
from support.engines import Workshop
from support.wait import wait_until


def test_done_work_is_skipped_by_content(stoker: Stoker) -> None:
    """Lines may be moved, added and repeated: each runs as often as it is listed, counting what succeeded before."""
    stoker.write("jobs.txt", "echo a >> ran", "echo b >> ran", "[ -e go ] && echo c >> ran")
    assert stoker("run", "--devices", "0", "jobs.txt").code == 1
    (stoker.cwd / "go").touch()
    stoker.write("jobs.txt", "echo new >> ran", "[ -e go ] && echo c >> ran", "echo b >> ran", *["echo a >> ran"] * 2)
    result = stoker("run", "--devices", "0", "--resume", "jobs.txt")
    assert result.code == 0
    assert Counter(stoker.lines("ran")) == {"a": 2, "b": 1, "c": 1, "new": 1}
    assert "3 ok, 2 skipped (already done)" in result.err


def test_another_place_is_other_work(stoker: Stoker) -> None:
    """The same line in another directory, or with other variables, has not been done."""
    (stoker.cwd / "other").mkdir()
    for options in ([], ["-D", "other"], ["--env", "SEED=1"]):
        for _ in range(2):
            stoker("run", "--devices", "0", "--resume", *options, "-", stdin='echo "$SEED" >> ran\n')
    assert stoker.lines("ran") == ["", "1"]
    assert stoker.lines("other/ran") == [""]


def test_one_command_done_before_is_told(stoker: Stoker) -> None:
    """A single command that --resume skips says so, and succeeds."""
    command = ["run", "--devices", "0", "--resume", "--", "sh", "-c", "echo >> ran"]
    assert stoker(*command).err == ""
    result = stoker(*command)
    assert (result.code, len(stoker.lines("ran"))) == (0, 1)
    assert "already done; leave out --resume" in result.err


def test_without_resume_everything_runs_again(stoker: Stoker) -> None:
    """Resuming is asked for, never assumed."""
    for _ in range(2):
        stoker("run", "--devices", "0", "-", stdin="echo >> ran\n")
    assert len(stoker.lines("ran")) == 2


def test_a_killed_run_goes_on(stoker: Stoker) -> None:
    """After kill -9 the running job lives on; --resume waits for it, runs the waiting ones, and repeats nothing."""
    held = f"echo held >> ran; {until('go')}; echo held end >> ran"
    stoker.write("jobs.txt", "echo first >> ran", held, *(f"echo {number} >> ran" for number in range(30)))
    run = stoker.start("run", "--devices", "0", "jobs.txt")
    stoker.wait_lines("ran", 2)
    run.kill()
    assert stoker.finish(run).code == -signal.SIGKILL
    again = stoker.start("run", "--devices", "0", "--resume", "jobs.txt")
    (stoker.cwd / "go").touch()
    result = stoker.finish(again)
    assert result.code == 0, result.err
    assert stoker.lines("ran")[:3] == ["first", "held", "held end"]
    assert Counter(stoker.lines("ran")) == Counter(["first", "held", "held end", *map(str, range(30))])


def test_a_job_that_ended_while_nobody_looked(stoker: Stoker) -> None:
    """The codes of jobs that ended after their run was killed are found, success and failure alike."""
    stoker.write("jobs.txt", f"echo good >> ran; {until('go')}", f"echo bad >> ran; {until('go')}; exit 3")
    run = stoker.start("run", "--devices", "0,1", "jobs.txt")
    stoker.wait_lines("ran", 2)
    run.kill()
    stoker.finish(run)
    (stoker.cwd / "go").touch()
    wait_until(lambda: not stoker.job_processes())
    result = stoker("run", "--devices", "0,1", "--resume", "jobs.txt")
    assert (result.code, sorted(stoker.lines("ran"))) == (1, ["bad", "good"])
    assert "1 ok, 1 failed" in result.err


def test_another_run_leaves_a_dead_ones_jobs_alone(stoker: Stoker) -> None:
    """A run without --resume starts nothing that a killed run left, and waits for the device its job still holds."""
    stoker.write("jobs.txt", f"echo held >> ran; {until('go')}; echo held end >> ran", "echo waiting >> ran")
    run = stoker.start("run", "--devices", "0", "jobs.txt")
    stoker.wait_lines("ran", 1)
    run.kill()
    stoker.finish(run)
    other = stoker.start("run", "--devices", "0", "-")
    assert other.stdin
    other.stdin.write(b"echo other >> ran\n")
    other.stdin.close()
    other.stdin = None
    (stoker.cwd / "go").touch()
    assert stoker.finish(other).code == 0
    assert stoker.lines("ran") == ["held", "held end", "other"]


def test_nothing_runs_twice_however_often_it_is_killed(stoker: Stoker) -> None:
    """A run of short jobs that is killed again and again, and resumed each time, runs each exactly once."""
    stoker.write("jobs.txt", *(f"echo {number} >> ran; sleep 0.01" for number in range(200)))
    for kills in range(1, 5):
        run = stoker.start("run", "--devices", "0,1", "--resume", "jobs.txt")
        stoker.wait_lines("ran", 30 * kills)
        run.kill()
        stoker.finish(run)
    result = stoker("run", "--devices", "0,1", "--resume", "jobs.txt")
    assert result.code == 0, result.err
    assert sorted(map(int, stoker.lines("ran"))) == list(range(200))


def test_a_stream_can_be_resumed(stoker: Stoker) -> None:
    """Lines on standard input are compared like those of a file."""
    for _ in range(2):
        assert stoker("run", "--devices", "0", "--resume", "-", stdin="echo a >> ran\necho b >> ran\n").code == 0
    assert stoker.lines("ran") == ["a", "b"]


def test_a_part_of_the_list_can_be_resumed(stoker: Stoker) -> None:
    """Jobs that a dead run had handed over ahead run once, though only every second line is resumed at first."""
    lines = [f"echo {number} >> ran; sleep 0.02" for number in range(60)]
    stoker.write("jobs.txt", *lines)
    stoker.write("half.txt", *lines[::2])
    run = stoker.start("run", "--devices", "0", "jobs.txt")
    stoker.wait_lines("ran", 10)
    run.kill()
    stoker.finish(run)
    assert stoker("run", "--devices", "0", "--resume", "half.txt").code == 0
    assert stoker("run", "--devices", "0", "--resume", "jobs.txt").code == 0
    assert sorted(stoker.lines("ran"), key=int) == [str(number) for number in range(60)]


def test_two_that_resume_at_once_share_the_work(stoker: Stoker) -> None:
    """Of two runs that resume one list at the same moment, each line is run by only one."""
    lines = [f"echo {number} >> ran; sleep 0.02" for number in range(80)]
    stoker.write("jobs.txt", *lines)
    run = stoker.start("run", "--devices", "0", "jobs.txt")
    stoker.wait_lines("ran", 5)
    run.kill()
    stoker.finish(run)
    both = [stoker.start("run", "--devices", device, "--resume", "jobs.txt") for device in ("1", "2")]
    assert [stoker.finish(one).code for one in both] == [0, 0]
    assert sorted(stoker.lines("ran"), key=int) == [str(number) for number in range(80)]


def test_what_is_resumed_writes_to_the_new_terminal(stoker: Stoker) -> None:
    """With -o - the output of taken-up jobs comes to whoever resumes, not to the run that died."""
    stoker.write("jobs.txt", f"echo first; touch up; {until('go')}", "echo second", "echo third")
    run = stoker.start("run", "--devices", "0", "-o", "-", "jobs.txt")
    wait_until((stoker.cwd / "up").exists)
    run.kill()
    resumed = stoker.start("run", "--devices", "0", "-o", "-", "--resume", "jobs.txt")
    (stoker.cwd / "go").touch()
    assert stoker.finish(resumed).out.split() == ["second", "third"]
    assert stoker.finish(run).out.split() == ["first"]


def test_an_assignment_that_was_never_sent_is_found(tmp_path: Path) -> None:
    """An engine that dies between the record and the order leaves a job that its living worker gives back."""
    first = Workshop(tmp_path, name="first", devices=DeclaredDevices(["0"]))
    (running,) = first.submit(f"touch up; {until('go')}")
    first.work_until((tmp_path / "up").exists)
    (unsent,) = first.submit("echo once >> ran")
    assigned = Assigned(first.store.attempts(running)[0].ref, ("0",), str(tmp_path / "log"), 1.0)
    first.store.record([Change(advance(first.job(unsent), assigned), [(1, assigned)])])
    first.abandon()
    with Workshop(tmp_path, name="second", devices=DeclaredDevices(["0"])) as second:
        for job_id in (running, unsent):
            second.engine.adopt(second.job(job_id), adopted=False)
        (tmp_path / "go").touch()
        second.finish()
        assert [second.ended(job_id).result for job_id in (running, unsent)] == ["done", "done"]
        assert (tmp_path / "ran").read_text() == "once\n"


def test_a_run_that_is_over_leaves_nothing_beside_its_jobs(stoker: Stoker) -> None:
    """Locks, bells and what an engine showed of itself are gone, and so are its workers."""
    assert stoker("run", "--devices", "0", "--", "true").code == 0
    (state,) = Path(stoker.environment["STOKER_STATE"]).iterdir()
    assert [*(state / "engines").iterdir(), *(state / "workers").iterdir()] == []


def kill_all(stoker: Stoker, run: subprocess.Popen[bytes]) -> None:
    """As a crash of the machine does: the run, its workers and its jobs."""
    workers = [pid for pid in processes_below(run.pid) if pid != run.pid]
    run.kill()
    stoker.finish(run)
    for pid in [*workers, *stoker.job_processes()]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not stoker.job_processes() and not any(Path(f"/proc/{pid}").exists() for pid in workers))


def processes_below(pid: int) -> list[int]:
    """A process, its children and theirs."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(below for child in children for below in processes_below(int(child)))]


def test_a_job_that_another_run_found_lost_is_resumed(stoker: Stoker) -> None:
    """A run records the losses of all dead runs, but their lists have to be resumed: it does not keep their jobs."""
    stoker.write("ours.txt", f"echo up >> ran; [ -e again ] || {until('never')}; echo done >> ran")
    run = stoker.start("run", "--devices", "0", "ours.txt")
    stoker.wait_lines("ran", 1)
    kill_all(stoker, run)
    stoker.write("theirs.txt", f"echo other >> other; {until('go')}")
    other = stoker.start("run", "--devices", "1", "theirs.txt")
    stoker.wait_lines("other", 1)
    (stoker.cwd / "again").touch()
    resumed = stoker("run", "--devices", "0", "--resume", "ours.txt")
    (stoker.cwd / "go").touch()
    assert stoker.finish(other).code == 0
    assert (resumed.code, stoker.lines("ran")) == (0, ["up", "up", "done"]), resumed.err


def test_a_stream_takes_up_a_lost_job(stoker: Stoker) -> None:
    """Though the loss is recorded before the line with the job arrives, it is the old job that goes on."""
    line = f"echo up >> ran; [ -e again ] || {until('never')}; echo done >> ran"
    stoker.write("jobs.txt", line)
    run = stoker.start("run", "--devices", "0", "jobs.txt")
    stoker.wait_lines("ran", 1)
    kill_all(stoker, run)
    (stoker.cwd / "again").touch()
    resumed = stoker.start("run", "--devices", "0", "--resume", "-")
    wait_until(lambda: '"state":"queued"' in stoker("status", "--json").out, pause=0.1)
    result = stoker.finish(resumed, line + "\n")
    assert (result.code, stoker.lines("ran")) == (0, ["up", "up", "done"]), result.err
    assert json.loads(stoker("status", "--json").out)["counts"] == {"active": 0, "waiting": 0, "held": 0}


def test_what_another_run_had_in_hand_is_taken_up_when_it_dies(stoker: Stoker) -> None:
    """A resumed run does not end while a job of its list waits that no living run has."""
    stoker.write("both.txt", f"echo first >> ran; {until('go')}", "echo second >> ran")
    first = stoker.start("run", "--devices", "0", "both.txt")
    stoker.wait_lines("ran", 1)
    stoker.write(
        "more.txt", "echo first >> ran; " + until("go"), "echo second >> ran", f"echo own >> own; {until('go')}"
    )
    resumed = stoker.start("run", "--devices", "1", "--resume", "more.txt")
    stoker.wait_lines("own", 1)
    first.kill()
    stoker.finish(first)
    (stoker.cwd / "go").touch()
    result = stoker.finish(resumed)
    assert (result.code, stoker.lines("ran")) == (0, ["first", "second"]), result.err
