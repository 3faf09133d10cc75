"""`stoker run` as people type it: where the commands come from, where they run, and what is told of it."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stoker.app.views.run import RunResult
from support.cli import Stoker, until
from support.wait import PATIENCE_SECONDS, ending, wait_until

EVENT = re.compile(r"\d\d:\d\d:\d\d (start|done|FAILED|again) #\d+ ")


def has_driver() -> bool:
    """Whether this machine could have a GPU."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


# -- where the commands come from ----------------------------------------------------------------


def test_a_list_runs_every_line_once(stoker: Stoker) -> None:
    """Lines of a file run once each, with a log each; blank lines and comments are skipped."""
    stoker.write("jobs.txt", "echo one >> ran; echo said", "", "  # a comment", "echo two >> ran")
    result = stoker("run", "--devices", "0,1", "jobs.txt")
    assert (result.code, result.out) == (0, "")
    assert sorted(stoker.lines("ran")) == ["one", "two"]
    assert stoker.logs() == ["said\n", ""]


def test_a_pipe_gets_one_line_per_event(stoker: Stoker) -> None:
    """Without a terminal each start and each end is a line with a time, and nothing is ever overwritten."""
    result = stoker("run", "--devices", "0", "-", stdin="true\nfalse\n")
    *events, counts, failure, logs = result.err.splitlines()
    assert [match[1] for line in events if (match := EVENT.match(line))] == ["start", "done", "start", "FAILED"]
    assert "\r" not in result.err
    assert re.fullmatch(r"1 ok, 1 failed · \d\d:\d\d wall · 0\.00 GPU-hours", counts)
    assert failure.startswith("  ✗ #2 false: exit 1")
    assert logs.startswith("  logs: stoker-runs/")


@pytest.mark.parametrize("line", ["stoker run - < jobs.txt", "stoker run < jobs.txt", "cat jobs.txt | stoker run -"])
def test_standard_input_is_a_list(stoker: Stoker, line: str) -> None:
    """`-`, a redirection and a pipe all give the lines, also a last one without a newline."""
    (stoker.cwd / "jobs.txt").write_bytes(b"echo one >> ran\necho two >> ran")
    assert stoker.typed(line, STOKER_DEVICES="0").code == 0
    assert stoker.lines("ran") == ["one", "two"]


def test_jobs_start_as_their_lines_arrive(stoker: Stoker) -> None:
    """The first line's job is over before the second line is written."""
    run = stoker.start("run", "--devices", "0", "-")
    assert run.stdin
    run.stdin.write(b"echo one >> ran\nech")
    run.stdin.flush()
    stoker.wait_lines("ran", 1)
    run.stdin.write(b"o two >> ran\n")
    run.stdin.flush()
    stoker.wait_lines("ran", 2)
    assert stoker.finish(run).code == 0


def test_a_growing_file_is_followed(stoker: Stoker) -> None:
    """`tail -f -n 0 queue | stoker run -` runs what is appended, and ends with its tail."""
    queue = stoker.write("queue", "echo old >> ran")
    with ending(subprocess.Popen(["tail", "-f", "-n", "0", queue], stdout=subprocess.PIPE)) as tail:
        assert tail.stdout
        run = stoker.start("run", "--devices", "0", "-", stdin=tail.stdout)
        wait_until(lambda: appended(queue, "echo ready >> ran") and stoker.lines("ran"))
        appended(queue, "echo new >> last")
        stoker.wait_lines("last", 1)
        tail.terminate()
        assert stoker.finish(run).code == 0
    assert set(stoker.lines("ran")) == {"ready"}


def appended(queue: Path, line: str) -> bool:
    """Append a line; nobody can tell when tail has found the end of the file and starts to watch it."""
    with queue.open("a") as file:
        file.write(line + "\n")
    return True


def test_many_commands_run_exactly_once(stoker: Stoker) -> None:
    """Of 1,201 short commands none is lost and none runs twice."""
    stoker.write("jobs.txt", *(f"echo {number} >> ran" for number in range(1201)))
    result = stoker("run", "--devices", "0,1,2,3", "jobs.txt")
    assert result.code == 0
    assert sorted(map(int, stoker.lines("ran"))) == list(range(1201))
    assert "1201 ok" in result.err


def test_an_empty_list_is_no_failure(stoker: Stoker) -> None:
    """A stream without commands is done at once; a file without any is a mistake, as for submit."""
    assert stoker("run", "--devices", "0", "-").code == 0
    (stoker.cwd / "empty.txt").write_text("# later\n")
    outcome = stoker("run", "--devices", "0", "empty.txt")
    assert outcome.code == 2
    assert outcome.err == "stoker: there is no job in empty.txt\n        write one command on each line\n"
    assert msgspec.json.decode(stoker("run", "--json", "--devices", "0", "empty.txt").out)["error"]["code"] == 2


# -- one command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137)])
def test_one_command_gives_its_own_code(stoker: Stoker, script: str, code: int) -> None:
    """The exit code of a single command is that of the job, or 128 and the signal."""
    assert stoker("run", "--devices", "0", "--", "sh", "-c", script).code == code


def test_one_command_writes_to_the_caller(stoker: Stoker) -> None:
    """A single command's output is the caller's output, its errors the caller's errors, with nothing added."""
    result = stoker("run", "--devices", "7", "echo out $CUDA_VISIBLE_DEVICES; echo err >&2")
    assert (result.code, result.out, result.err) == (0, "out 7\n", "err\n")


def test_several_words_are_executed_as_they_are(stoker: Stoker) -> None:
    """Several words see no shell: blanks, variables and stars arrive unchanged, options of the command too."""
    result = stoker("run", "--devices", "0", "printf", "%s|", "a  b", "$HOME", "*", "-j", "--", "--json")
    assert result.out == "a  b|$HOME|*|-j|--|--json|"


def test_one_quoted_word_goes_through_the_shell(stoker: Stoker) -> None:
    """A single word with blanks is a line for $SHELL, with dashes in front of it or without."""
    assert stoker("run", "--devices", "0", "echo $((1+1)) | tr 2 3").out == "3\n"
    assert stoker("run", "--devices", "0", "--", "echo $0", SHELL="/bin/bash").out == "/bin/bash\n"


def test_a_job_reads_nothing(stoker: Stoker) -> None:
    """A job's standard input is empty: it cannot eat the list."""
    result = stoker("run", "--devices", "0", "-", stdin="cat > eaten\necho two >> ran\n")
    assert result.code == 0
    assert (stoker.lines("eaten"), stoker.lines("ran")) == ([], ["two"])


# -- where they run ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "visible"),
    [
        (["--devices", "3"], "3"),
        (["--devices", "a,b", "--on", "b"], "b"),
        (["--devices", "a,b", "-G", "2"], "a,b"),
        (["--sim", "4x8G", "-G", "2", "--on", "3,1"], "1,3"),
        (["--sim", "4x8G", "--prefer", "2"], "2"),
        (["--sim", "4x8G", "--devices", "1"], "1"),
        (["-G", "0"], ""),
    ],
)
def test_a_job_sees_its_devices_only(stoker: Stoker, options: list[str], visible: str) -> None:
    """CUDA_VISIBLE_DEVICES names what the options gave the job."""
    result = stoker("run", *options, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER")
    assert result.out.split() == [*filter(None, [visible]), "PCI_BUS_ID"]


def test_jobs_that_name_their_memory_share_a_gpu(stoker: Stoker) -> None:
    """Two jobs of 3G meet on one simulated GPU of 8G; each ends only when it has seen the other."""
    jobs = [f"touch {mine}; {until(other)}" for mine, other in (("a", "b"), ("b", "a"))]
    assert stoker("run", "--sim", "1x8G", "--vram", "3G", "-", stdin="\n".join(jobs)).code == 0


@pytest.mark.parametrize(
    "options", [["--sim", "1x8G", "--vram", "5G"], ["--sim", "1x8G"], ["--sim", "3x8G", "-j", "1"]]
)
def test_jobs_that_do_not_fit_take_turns(stoker: Stoker, options: list[str]) -> None:
    """Too much memory, whole GPUs and -j 1 keep jobs apart: none ever finds the other's mark."""
    job = "mkdir busy || echo met >> met; sleep 0.05; rmdir busy; echo >> ran"
    assert stoker("run", *options, "-", stdin=f"{job}\n" * 4).code == 0
    assert (len(stoker.lines("ran")), stoker.lines("met")) == (4, [])


def test_two_runs_take_turns_on_a_device(stoker: Stoker) -> None:
    """Two runs at once on the same declared device never use it together, and both finish."""
    stoker.write("jobs.txt", *["mkdir busy || echo met >> met; sleep 0.05; rmdir busy; echo >> ran"] * 4)
    runs = [stoker.start("run", "--devices", "0", "jobs.txt") for _ in range(2)]
    assert [stoker.finish(run).code for run in runs] == [0, 0]
    assert (len(stoker.lines("ran")), stoker.lines("met")) == (8, [])


def test_a_wide_job_is_not_starved(stoker: Stoker) -> None:
    """A job for two GPUs goes before the many for one that came after it."""
    wide = '{"command": "echo wide >> ran", "gpus": 2}'
    narrow = '{"command": "echo narrow >> ran; sleep 0.05"}'
    stoker.write("jobs.jsonl", narrow, wide, *[narrow] * 20)
    assert stoker("run", "--sim", "2x8G", "-t", "20s", "jobs.jsonl").code == 0
    ran = stoker.lines("ran")
    assert len(ran) == 22
    assert ran.index("wide") < 5


def test_priority_goes_first(stoker: Stoker) -> None:
    """Of jobs that wait for the same device the most important starts first."""
    jobs = [f'{{"command": "echo {number} >> ran", "priority": {number}}}' for number in (1, 3, 2)]
    stoker.write("jobs.jsonl", *jobs)
    assert stoker("run", "--devices", "0", "jobs.jsonl").code == 0
    assert stoker.lines("ran") == ["3", "2", "1"]


@pytest.mark.skipif(has_driver(), reason="this machine has a driver")
def test_without_a_gpu_it_says_what_to_type(stoker: Stoker) -> None:
    """Where there is no GPU, the run says what it looked for and the three ways to go on, with exit code 5."""
    result = stoker("run", "-", stdin="true\n")
    assert (result.code, result.out) == (5, "")
    for words in ("libnvidia-ml.so.1", "--devices 0,1", "--sim 4x24G", "-G 0"):
        assert words in result.err


# -- what can be asked for -----------------------------------------------------------------------


def test_a_limit_ends_a_job(stoker: Stoker) -> None:
    """-t ends a job that takes longer, and says so in the summary."""
    result = stoker("run", "--devices", "0", "-t", "0.2s", "-", stdin="sleep 60\n")
    assert result.code == 1
    assert "✗ #1 sleep 60: timeout" in result.err


def test_one_command_that_reaches_its_limit_is_told(stoker: Stoker) -> None:
    """A single command that was ended by -t gives the code of its death and one sentence."""
    result = stoker("run", "--devices", "0", "-t", "0.2s", "--", "sleep", "60")
    assert (result.code, result.err) == (124, "stoker: stopped: it reached its time limit (-t)\n")


def test_a_failed_job_is_tried_again(stoker: Stoker) -> None:
    """--retries 2 runs a job up to three times, and its success counts."""
    job = "echo try >> tries; [ $(wc -l < tries) = 3 ]"
    result = stoker("run", "--devices", "0", "--retries", "2", "-", stdin=f"{job}\n")
    assert (result.code, len(stoker.lines("tries"))) == (0, 3)
    assert "again #1 after exit 1" in result.err


def test_halt_leaves_the_rest(stoker: Stoker) -> None:
    """After --halt soon,fail=1 what runs may finish, what waits stays for --resume."""
    stoker.write("jobs.txt", "exit 1", *[f"echo {number} >> ran" for number in range(60)])
    result = stoker("run", "--devices", "0", "--halt", "soon,fail=1", "jobs.txt")
    assert result.code == 1
    assert not (stoker.cwd / "ran").exists()
    assert "stopping (--halt)" in result.err
    again = stoker("run", "--devices", "0", "--resume", "jobs.txt")
    assert again.code == 1
    assert sorted(map(int, stoker.lines("ran"))) == list(range(60))


def test_halt_now_stops_what_runs(stoker: Stoker) -> None:
    """--halt now,fail=1 ends a job that would have run for ever."""
    jobs = f"touch up; sleep 600\n{until('up')}; exit 1\n"
    result = stoker("run", "--devices", "0,1", "--halt", "now,fail=1", "-", stdin=jobs)
    assert result.code == 1
    assert "1 cancelled, 1 failed" in result.err


def test_variables_directory_and_outputs(stoker: Stoker) -> None:
    """--env, -D, -o and -e give a job its variables, its place and its files."""
    (stoker.cwd / "a b").mkdir()
    options = ["--env", "A=1", "--env", "B=x=y", "-D", "a b", "-J", "nightly", "-o", "%x-%j.out", "-e", "%j.err"]
    result = stoker("run", "--devices", "0", *options, "--", "sh", "-c", "echo $A $B; pwd; echo oh >&2")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert (stoker.cwd / "a b/nightly-1.out").read_text() == f"1 x=y\n{stoker.cwd}/a b\n"
    assert (stoker.cwd / "a b/1.err").read_text() == "oh\n"


def test_a_variable_stands_for_an_option(stoker: Stoker) -> None:
    """STOKER_<OPTION> sets an option, and the option itself goes before it."""
    result = stoker("run", "--devices", "1", "--", "sh", "-c", "pwd", STOKER_DEVICES="0", STOKER_CHDIR="/")
    assert result.out == "/\n"


def test_the_job_log_has_the_columns_of_parallel(stoker: Stoker) -> None:
    """--joblog appends a line per job: number, host, start, seconds, sizes, exit value, signal, command."""
    for _ in range(2):
        stoker("run", "--devices", "0", "--joblog", "log", "-", stdin="echo four; exit 3\nkill -9 $$\n")
    header, *rows = [line.split("\t") for line in stoker.lines("log")]
    assert header == ["Seq", "Host", "Starttime", "JobRuntime", "Send", "Receive", "Exitval", "Signal", "Command"]
    assert [row[5:] for row in rows] == [["5", "3", "0", "echo four; exit 3"], ["0", "0", "9", "kill -9 $$"]] * 2


# -- what is told --------------------------------------------------------------------------------


def test_a_dry_run_shows_and_runs_nothing(stoker: Stoker) -> None:
    """--dry-run prints each job's device, how it would be executed, where, and why it would wait."""
    result = stoker("run", "--devices", "7", "--dry-run", "-", stdin="touch ran\ntouch ran too\n")
    header, first, second = [line.split("\t") for line in result.out.splitlines()]
    assert header == ["JOB", "GPU", "HOW", "DIRECTORY", "COMMAND", "WHY"]
    assert first == ["1", "7", "/bin/sh -c", str(stoker.cwd), "touch ran", "starts at once"]
    assert second[1:3] == ["-", "/bin/sh -c"]
    assert "needs 1 GPU; none free" in second[5]
    assert list(stoker.cwd.iterdir()) == []


def test_json_is_one_value(stoker: Stoker) -> None:
    """--json prints the whole run as one value on standard output."""
    result = stoker("run", "--sim", "2x8G", "--json", "-", stdin="true\nexit 3\n")
    run = msgspec.json.decode(result.out, type=RunResult, strict=True)
    assert run.schema == "stoker.run/1"
    assert [(job.state, job.exit_code) for job in run.jobs] == [("done", 0), ("failed", 3)]
    assert all(job.log and Path(job.log).is_file() for job in run.jobs)
    assert stoker("run", "--devices", "0", "-", stdin="true\n", STOKER_OUTPUT="json").out.startswith('{"schema"')


@pytest.mark.parametrize("devices", [["--devices", "0"], ["--sim", "1x8G"]])
def test_a_failure_is_shown_with_its_last_words(stoker: Stoker, devices: list[str]) -> None:
    """The summary has the last line of a failed job's log, and the command that shows the rest works as typed."""
    result = stoker("run", *devices, "-", stdin="echo first; echo nan loss >&2; echo; exit 4\n")
    match = re.search(r"✗ #1 .*: exit 4  nan loss  \[(.*)\]", result.err)
    assert match, result.err
    assert stoker.typed(match[1]).out == "first\nnan loss\n\n"


def test_what_to_type_next_works_as_typed(stoker: Stoker) -> None:
    """The line that runs what is missing repeats the options and quotes the name of the list."""
    stoker.write("my 'jobs'.txt", "echo >> ran; [ -e go ]", "echo done >> ran")
    result = stoker("run", "--devices", "0", "my 'jobs'.txt")
    match = re.search(r"rerun the rest: (.*)", result.err)
    assert match, result.err
    (stoker.cwd / "go").touch()
    assert stoker.typed(match[1]).code == 0
    assert stoker.lines("ran") == ["", "done", ""]


def test_hostile_names_are_shown_escaped(stoker: Stoker) -> None:
    """Names, commands, devices and logs with terminal codes reach no terminal as such."""
    script = "printf '\\033[2J\\033]0;owned\\007bad\\033[0m\\n'; exit 1 # \x1b[31m\x9b2J\u202e"
    stoker.write("jobs.txt", script)
    shown = stoker("run", "--devices", "0", "jobs.txt").err
    shown += stoker("run", "--devices", "0\x1b[2J", "jobs.txt").err
    shown += stoker("run", "--devices", "0", "-J", "\x1b]0;me\x07", "--on", "\x1b[7m", "jobs.txt").err
    shown += stoker("run", "--devices", "0", "no\x1b[2Jlist").err
    shown += stoker("run", "--devices", "0", "--dry-run", "jobs.txt").out
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert "\\x1b[31m\\x9b2J\\u202e" in shown
    assert ": exit 1  bad  [" in shown


def test_strange_directories_do_no_harm(tmp_path: Path) -> None:
    """Blanks, quotes, dollars, percent signs and terminal codes in paths reach job, log and summary unharmed."""
    home = tmp_path / "a b'c\"d$e%j\x1b[2J;echo"
    home.mkdir()
    stoker = Stoker(home)
    stoker.write("the jobs.txt", "pwd")
    result = stoker("run", "--devices", "0", "the jobs.txt")
    stoker.close()
    assert result.code == 0
    assert stoker.logs() == [f"{stoker.cwd}\n"]


def test_the_start_is_light(stoker: Stoker) -> None:
    """A run that draws nothing and asks no driver loads neither the drawing nor the driver's libraries."""
    stoker.write("jobs.txt", "true")
    command = [sys.executable, "-X", "importtime", "-m", "stoker", "run", "--devices", "0", "jobs.txt"]
    for arguments in (["--dry-run"], []):
        words = [*command[:-1], *arguments, command[-1]]
        told = subprocess.run(
            words,
            cwd=stoker.cwd,
            env=stoker.environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        )
        loaded = set(re.findall(r"\| +([\w.]+)$", told.stderr, re.MULTILINE))
        assert "stoker.cli.foreground" in loaded
        assert not loaded & {"rich", "psutil", "pynvml", "asyncio", "textual", "numpy"}


def test_the_lease_names_the_command(stoker: Stoker) -> None:
    """Other users read what holds a GPU, not only that it is one command."""
    result = stoker("run", "--devices", "0", "--", "sh", "-c", 'cat "$STOKER_LEDGER"/*.lease')
    assert '"what":"stoker run -- sh -c ' in result.out
