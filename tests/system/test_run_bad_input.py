"""`stoker run` given what it cannot use: one clear sentence, the right code, and nothing lost."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.cli import Stoker, until
from support.disk import fill, small_disk
from support.wait import line_from, wait_until


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--devices", "0,1", "--on", "5"], 5, "no device '5' on this machine"),
        (["--sim", "2x8G", "--devices", "2"], 5, "no device '2' on this machine"),
        (["--devices", "0,1", "--on", "1,1"], 2, "--on 1,1 contains a device twice"),
        (["--devices", "0,1", "--prefer", "0,0"], 2, "--prefer 0,0 contains a device twice"),
        (["--devices", "0,1", "-G", "3"], 5, "needs 3 GPUs; this machine has 2"),
        (["--sim", "2x8G", "--vram", "9G"], 5, "needs 9.0G on a GPU; the largest has 8.0G"),
        (["--sim", "2x8G", "--on", "0", "-G", "2"], 5, "needs 2 GPUs; 1 is allowed"),
        (["--devices", "0,,1"], 2, "--devices '0,,1' contains an empty name"),
        (["--devices", "0,\udcff"], 2, "contains an unprintable name"),
        (["--sim", "4y8G"], 2, "'4y8G' is not a description of simulated GPUs"),
        (["--devices", "0", "--mem", "3G"], 2, "did you mean --vram (GPU)"),
        (["--devicse", "0"], 2, "did you mean --devices?"),
        (["--devices", "0", "-t", "soon"], 2, "'soon' is not a duration"),
        (["--devices", "0", "-j", "0"], 2, "0 is not in the range x>=1"),
        (["--devices", "0", "-G", "-1"], 2, "-G must not be negative"),
        (["--devices", "0", "--halt", "soon"], 2, "--halt 'soon' is not understood"),
        (["--devices", "0", "--env", "SEED"], 2, "--env 'SEED' is not of the form NAME=VALUE"),
        (["--devices", "0", "-D", "nowhere"], 2, "nowhere: No such file or directory"),
        (["--devices", "0", "-D", "jobs.txt"], 2, "jobs.txt: Not a directory"),
        (["--devices", "0", "--results", "jobs.txt"], 2, "cannot create the log directory"),
        (["--devices", "0", "--joblog", "no/log"], 2, "cannot write the job log no/log: No such file or directory"),
        (["--devices", "0", "--joblog", "/dev/full"], 2, "cannot write the job log /dev/full: No space left on device"),
    ],
)
def test_a_mistake_gets_a_sentence(stoker: Stoker, arguments: list[str], code: int, sentence: str) -> None:
    """A wrong option is told before anything has started, on standard error and without a traceback."""
    stoker.write("jobs.txt", "touch ran")
    result = stoker("run", *arguments, "jobs.txt")
    assert (result.code, result.out) == (code, "")
    assert sentence in result.err
    assert len(result.err.splitlines()) <= 4
    assert not (stoker.cwd / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["run", "--devices", "0", "nolist"], 2, "cannot read the job list nolist: No such file or directory"),
        (["run", "--devices", "0", "."], 2, ". is a directory"),
        (["run", "--devices", "0", ""], 2, "the name of the job list is empty"),
        (["run", "--devices", "0", "--"], 2, "no command given after --"),
        (["run", "--devices", "0", "--", ""], 2, "the command is empty"),
        (["run", "jobs.txt", "--devices", "0"], 2, "write the options before it"),
        (["rn"], 2, "did you mean run?"),
        (["run", "--devices", "0", "--", "no-such-command"], 127, "no-such-command: command not found"),
        (["run", "--devices", "0", "--", "./jobs.txt"], 126, "./jobs.txt: Permission denied"),
        (["run", "--devices", "0", "--", "./jobs.txt/x"], 126, "./jobs.txt/x: Not a directory"),
        (["run", "--devices", "0", "-o", "out", "--", "no-such-command"], 127, "no-such-command: command not found"),
        (["run", "--devices", "0", "-o", "no/out", "--", "true"], 126, "no/out: No such file or directory"),
    ],
)
def test_a_wrong_word_gets_a_sentence(stoker: Stoker, arguments: list[str], code: int, sentence: str) -> None:
    """A list, a verb or a command that is not there is told once."""
    stoker.write("jobs.txt", "touch ran")
    result = stoker(*arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.count(sentence) == 1
    assert not (stoker.cwd / "ran").exists()


@pytest.mark.parametrize(("words", "code"), [(["--on", "5"], 5), (["--devicse"], 2)])
def test_errors_as_json(stoker: Stoker, words: list[str], code: int) -> None:
    """With --json an error is one value on standard output; a --json of the job's own does not count."""
    result = stoker("run", "--devices", "0", "--json", *words, "--", "true")
    error = json.loads(result.out)["error"]
    assert (result.code, error["code"], set(error)) == (code, code, {"code", "message", "hint"})
    assert stoker("run", "--devices", "0", *words, "--", "true", "--json").out == ""


def test_a_nul_byte_costs_one_line(stoker: Stoker) -> None:
    """A line with a NUL byte is left out and told with its number; its neighbours run."""
    result = stoker("run", "--devices", "0", "-", stdin=b"echo a >> ran\nec\0ho b >> ran\necho c >> ran\n")
    assert (result.code, stoker.lines("ran")) == (1, ["a", "c"])
    assert "stdin line 2 is left out: it contains a NUL byte" in result.err
    assert "2 ok, 1 unusable line" in result.err


def test_a_line_longer_than_the_kernel_takes(stoker: Stoker) -> None:
    """A line of 300 kB fails with the reason, and its neighbours run."""
    stoker.write("jobs.txt", "echo a >> ran", "echo " + "x" * 300_000, "echo c >> ran")
    result = stoker("run", "--devices", "0", "jobs.txt")
    assert (result.code, stoker.lines("ran")) == (1, ["a", "c"])
    assert "exit 126  the command is too long for the kernel (300005 bytes); put it in a script" in result.err
    assert len(result.err) < 4000


def test_bytes_that_are_no_text(stoker: Stoker) -> None:
    """Bytes that are not UTF-8 reach the job unchanged, and every output shows them as escapes."""
    stoker.write("jobs.txt", b"echo \xff > name\xfe")
    result = stoker("run", "--devices", "0", "--json", "--joblog", "log", "jobs.txt")
    assert result.code == 0
    assert (stoker.cwd / os.fsdecode(b"name\xfe")).read_bytes() == b"\xff\n"
    assert json.loads(result.out)["jobs"][0]["command"] == "echo \\xff > name\\xfe"
    assert "echo \\xff > name\\xfe" in result.err
    assert b"echo \xff > name\xfe" in (stoker.cwd / "log").read_bytes()
    assert stoker("run", "--devices", "0", b"printf %s \xff").out == "\udcff"
    assert stoker("run", "--devices", "0", "--json", "-J", b"\xff", "--", b"no\xff").code == 127


def test_a_directory_that_is_gone(stoker: Stoker) -> None:
    """A current directory that was removed is told at once."""
    result = stoker.typed("mkdir gone; cd gone; rmdir ../gone; stoker run --devices 0 -- touch ran")
    assert result.code == 2
    assert "the current directory cannot be used: No such file or directory" in result.err


def test_a_job_whose_directory_is_gone(stoker: Stoker) -> None:
    """A job of a list that cannot enter its own directory fails with the reason; the others run."""
    stoker.write("jobs.jsonl", '{"command": "true", "chdir": "nowhere"}', '{"command": "echo >> ran"}')
    result = stoker("run", "--devices", "0", "jobs.jsonl")
    assert (result.code, len(stoker.lines("ran"))) == (1, 1)
    assert "exit 126  cannot enter" in result.err


def test_a_log_directory_that_is_read_only(stoker: Stoker) -> None:
    """Nothing starts where no log can be written, and the run says how to choose another place."""
    stoker.write("jobs.txt", "touch ran")
    with small_disk(stoker.home / "disk", "size=64k,ro") as disk:
        result = stoker("run", "--devices", "0", "--results", str(disk / "logs"), "jobs.txt")
    assert result.code == 2
    assert "Read-only file system" in result.err
    assert "--results DIR" in result.err
    assert not (stoker.cwd / "ran").exists()


def test_a_log_directory_that_becomes_full(stoker: Stoker) -> None:
    """Jobs whose log cannot be created wait, and the run says why; they start once there is space."""
    stoker.write("jobs.txt", *(f"echo {number} >> ran" for number in range(6)))
    with small_disk(stoker.home / "disk", "size=64k,nr_inodes=5") as disk:
        run = stoker.start("run", "--devices", "0", "--results", str(disk / "logs"), "jobs.txt")
        while b"No space left on device" not in (line := line_from(run.stderr)):
            assert line, "the run ended"
        assert sorted(stoker.lines("ran")) == list("012")
        for log in (disk / "logs").iterdir():
            log.unlink()
        result = stoker.finish(run)
        assert result.code == 0, result.err
    assert sorted(stoker.lines("ran")) == list("012345")


def test_a_log_disk_without_a_byte_left(stoker: Stoker) -> None:
    """A job that cannot write its output fails by itself; one that says nothing succeeds."""
    with small_disk(stoker.home / "disk", "size=64k") as disk:
        fill(disk)
        result = stoker("run", "--devices", "0", "--results", str(disk / "logs"), "-", stdin="echo said\ntrue\n")
    assert result.code == 1
    assert "1 ok, 1 failed" in result.err


def test_a_queue_on_a_full_disk(stoker: Stoker) -> None:
    """Where the queue cannot be written, nothing starts and there is a sentence instead of a traceback."""
    with small_disk(stoker.home / "disk", "size=64k") as disk:
        fill(disk)
        result = stoker("run", "--devices", "0", "--", "touch", "ran", STOKER_STATE=str(disk))
    assert result.code == 125
    assert "Traceback" not in result.err
    assert "No space left on device" in result.err or "full" in result.err
    assert not (stoker.cwd / "ran").exists()


def test_a_list_that_disappears(stoker: Stoker) -> None:
    """A list that is removed while it runs is run to its end."""
    path = stoker.write("jobs.txt", f"touch up; {until('go')}", *["echo >> ran"] * 3)
    run = stoker.start("run", "--devices", "0", "jobs.txt")
    wait_until((stoker.cwd / "up").exists)
    path.unlink()
    (stoker.cwd / "go").touch()
    assert stoker.finish(run).code == 0
    assert len(stoker.lines("ran")) == 3


def test_a_job_that_closes_its_output(stoker: Stoker) -> None:
    """A job that closes its output is still waited for, and its code counts."""
    result = stoker("run", "--devices", "0", "--", "sh", "-c", "exec >&- 2>&-; sleep 0.2; echo >> ran; exit 3")
    assert result.code == 3


def test_a_job_that_daemonizes(stoker: Stoker) -> None:
    """What a job leaves behind is ended before its GPU is given to the next, and that is told."""
    daemon = "setsid sh -c 'trap \"\" HUP; sleep 600' > /dev/null 2>&1 &"
    result = stoker("run", "--devices", "0", "--", "sh", "-c", daemon)
    assert result.code == 0
    assert "behind, which" in result.err
    assert stoker.job_processes() == []


@pytest.mark.parametrize("closing", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_do_no_harm(stoker: Stoker, closing: str) -> None:
    """With standard streams closed by the caller, jobs write to no file of ours and the code is right."""
    result = stoker.typed(f"stoker run --devices 0 -- sh -c 'echo a; echo b >&2; echo >> ran; exit 3' {closing}")
    assert result.code == 3
    assert len(stoker.lines("ran")) == 1
    assert stoker.typed(f"stoker run --devices 0 --json - {closing} < /dev/null").code == 0


def test_output_that_cannot_be_written(stoker: Stoker) -> None:
    """Full or broken outputs end in a code and a sentence; jobs run in spite of them."""
    full = stoker.typed("echo 'echo >> ran' | stoker run --devices 0 --json - > /dev/full")
    assert full.code == 125
    assert "No space left on device" in full.err
    assert stoker.typed("echo 'echo >> ran' | stoker run --devices 0 - 2> /dev/full").code == 0
    stoker.write("list", *["echo >> ran"] * 3)
    gone = stoker.typed("stoker run --devices 0 list 2>&1 | head -n 1")
    assert gone.code == 0
    assert len(stoker.lines("ran")) == 5
    assert "Traceback" not in full.err + gone.err


def test_a_stream_whose_output_nobody_reads(stoker: Stoker) -> None:
    """An endless stream is read no further, the running job finishes, and the code is that of SIGPIPE."""
    job = "touch began; until test -e gone; do sleep 0.01; done; echo >> ran"
    reader = "until test -e began; do sleep 0.01; done"
    run = f"(yes '{job}' | stoker run --devices 0 - 2> said; echo $? > code) | ({reader})"
    stoker.typed(f"({run}) & until grep -q 'output is gone' said; do sleep 0.01; done; touch gone; wait")
    assert stoker.lines("code") == ["141"]
    assert len(stoker.lines("ran")) == 1
    assert "1 ok, " in stoker.lines("said")[-2]
    assert " not started" in stoker.lines("said")[-2]


def test_an_unreadable_state_directory(stoker: Stoker, tmp_path: Path) -> None:
    """A state directory that is a file is refused with the variable to set."""
    (tmp_path / "file").touch()
    result = stoker("run", "--devices", "0", "--", "true", STOKER_STATE=str(tmp_path / "file"))
    assert result.code == 125
    assert "set STOKER_STATE" in result.err
