"""simple_gpu_scheduler, typed as in its documents and in ways that hurt its users."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.app.jobs.parent import declare_here
from stoker.core.settings import Policy
from stoker.features.compat.simple_gpu_scheduler import _newer_spelling, _setup
from support.local import lives
from support.shell import Shell
from support.wait import ending, wait_until

DOCUMENTED_COMMANDS = [
    "python train_model.py --lr 0.001 --output run_1",
    "python train_model.py --lr 0.0005 --output run_2",
    "python train_model.py --lr 0.0001 --output run_3",
]
TRAIN_SCRIPT = """\
import os, sys
with open("runs", "a") as runs:
    runs.write(f"{os.environ['CUDA_VISIBLE_DEVICES']} {' '.join(sys.argv[1:])}\\n")
"""
GATED = "until [ -e {gate} ]; do sleep 0.01; done"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    for queue in shell.queues:
        if queue.process.poll() is None:
            queue.process.terminate()
        queue.end()


def announced(lines: list[str]) -> list[tuple[str, str]]:
    """Command and slot of each announcement among the lines."""
    said = [line for line in lines if line.startswith("Processing command `")]
    pairs = [line.removeprefix("Processing command `").rpartition("` on gpu ") for line in said]
    return [(command, slot) for command, _, slot in pairs]


# -- the documents, as typed there -----------------------------------------------------------------


def test_document_simple_example(shell: Shell) -> None:
    """The first example prints the three lines of the document, to the letter, and runs the three commands."""
    (shell.directory / "train_model.py").write_text(TRAIN_SCRIPT)
    (shell.directory / "gpu_commands.txt").write_text("\n".join(DOCUMENTED_COMMANDS) + "\n")
    result = shell.typed("simple_gpu_scheduler --gpus 0 1 2 < gpu_commands.txt")
    assert (result.returncode, result.stderr) == (0, b"")
    assert result.stdout.decode() == (
        "Processing command `python train_model.py --lr 0.001 --output run_1` on gpu 2\n"
        "Processing command `python train_model.py --lr 0.0005 --output run_2` on gpu 1\n"
        "Processing command `python train_model.py --lr 0.0001 --output run_3` on gpu 0\n"
    )
    expected = ["0 --lr 0.0001 --output run_3", "1 --lr 0.0005 --output run_2", "2 --lr 0.001 --output run_1"]
    assert sorted(shell.text("runs").splitlines()) == expected


@pytest.mark.parametrize(("option", "count"), [("", 9), (" --n-samples 5", 5)])
def test_document_hyperparameter_search(shell: Shell, option: str, count: int) -> None:
    """Both search examples run each command once, on the GPUs that were named."""
    (shell.directory / "train_dnn.py").write_text(TRAIN_SCRIPT)
    result = shell.typed(
        f'simple_hypersearch "python3 train_dnn.py --lr {{lr}} --batch_size {{bs}}"{option}'
        " -p lr 0.001 0.0005 0.0001 -p bs 32 64 128 | simple_gpu_scheduler --gpus 0,1,2"
    )
    assert (result.returncode, result.stderr) == (0, b"")
    printed = announced(result.stdout.decode().splitlines())
    runs = [line.split(" ", 1) for line in shell.text("runs").splitlines()]
    assert len(printed) == len({arguments for _, arguments in runs}) == count
    assert {slot for slot, _ in runs} <= {"0", "1", "2"}
    assert sorted(printed) == sorted((f"python3 train_dnn.py {arguments}", slot) for slot, arguments in runs)


def test_document_queue_file(shell: Shell) -> None:
    """A command appended to the queue file starts at once; what was in the file before is not run."""
    shell.program("my_command_with", "echo pipes")
    shell.program("and", 'cat; echo "$@"')
    (shell.directory / "gpu.queue").write_text("touch too_early\n")
    line = "touch gpu.queue\ntail -f -n 0 gpu.queue | simple_gpu_scheduler --gpus 0,1,2"
    command = ["bash", "-c", line]
    program = subprocess.Popen(command, cwd=shell.directory, env=shell.environment, start_new_session=True)
    with ending(program) as recipe:
        try:
            wait_until(lambda: shell.typed("echo touch ready >> gpu.queue; ls ready").returncode == 0)
            shell.typed('echo "my_command_with | and stuff > logfile" >> gpu.queue')
            wait_until(lambda: shell.text("logfile") == "pipes\nstuff\n")
        finally:
            os.killpg(recipe.pid, signal.SIGTERM)
    assert not (shell.directory / "too_early").exists()


def test_document_help(shell: Shell) -> None:
    """`simple_gpu_scheduler -h` shows the one option and how it is used."""
    result = shell.typed("simple_gpu_scheduler -h")
    assert result.returncode == 0
    assert result.stdout.startswith(b"usage: simple_gpu_scheduler [-h] --gpus GPUS [GPUS ...]\n")


# -- the option, and the order of slots ------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "slots"),
    [
        ("--gpus 0 1 2", ["2", "1", "0"]),
        ("--gpus 0,1,2", ["2", "1", "0"]),
        ("--gpus=0,1,2", ["2", "1", "0"]),
        ("--gp 0", ["0"]),
        ("--gpus 0 --gpus 5", ["5"]),
        ("--gpus 0,1 2,3", ["2,3", "0,1"]),
        ("--gpus 0,0,1,1", ["1", "1", "0", "0"]),
        ("--gpus 0 0", ["0", "0"]),
        ("--gpus GPU-8f2b MIG-41c0", ["MIG-41c0", "GPU-8f2b"]),
        ("--gpus -1", ["-1"]),
        # Blanks and stray commas are passed on as they are, with a warning.
        ("--gpus '0, 1'", [" 1", "0"]),
        ("--gpus 0, 1, 2,3", ["2,3", "1,", "0,"]),
        ("--gpus ''", [""]),
    ],
)
def test_forms_of_slots(shell: Shell, words: str, slots: list[str]) -> None:
    """Each slot runs a command at the same time as the others, the last listed first, with its own word to see."""
    gate = f"until [ $(ls | grep -c started) = {len(slots)} ]; do sleep 0.01; done; printenv CUDA_VISIBLE_DEVICES"
    commands = [f"touch {number}.started; {gate}" for number in range(len(slots))]
    result = shell.typed(f"simple_gpu_scheduler {words}", "\n".join(commands).encode())
    lines = result.stdout.decode().splitlines()
    odd = {slot for slot in slots if any(not part or part != part.strip() for part in slot.split(","))}
    warnings = [line for line in result.stderr.decode().splitlines() if "for one GPU each write 0,1,2 or 0 1 2" in line]
    assert (result.returncode, len(warnings), result.stderr.count(b"\n")) == (0, len(odd), len(odd))
    assert [slot for _, slot in announced(lines)] == slots
    assert sorted(lines[len(slots) :]) == sorted(slots)


def test_missing_option_is_refused(shell: Shell) -> None:
    """Without --gpus nothing runs, and one line says what is missing."""
    result = shell.typed("simple_gpu_scheduler", b"touch ran")
    assert (result.returncode, result.stdout) == (2, b"")
    expected = (
        b"simple_gpu_scheduler: error: the following arguments are required: --gpus; see simple_gpu_scheduler -h\n"
    )
    assert result.stderr == expected


@pytest.mark.parametrize("module", ["simple_gpu_scheduler.scheduler", "simple_gpu_scheduler.command_line"])
def test_modules_run_as_the_script(shell: Shell, module: str) -> None:
    """Both `python -m` forms are the console script."""
    result = shell.typed(f"python -m {module} --gpus 3", b"exit 4")
    assert (result.returncode, result.stdout) == (1, b"Processing command `exit 4` on gpu 3\n")


def test_slot_freed_last_is_taken_first(shell: Shell) -> None:
    """Of the free slots the one that became free last is next, as a stack gives them out."""
    scheduler = shell.start("0,1,2")
    scheduler.feed(*(f"{GATED.format(gate=gate)}; exit {code}" for gate, code in [("a", 11), ("b", 12), ("c", 13)]))
    for gate, code, slot in [("b", 12, 1), ("c", 13, 0), ("a", 11, 2)]:
        shell.open_gate(gate)
        scheduler.wait_said(f"exit {code} on gpu {slot}")
    scheduler.feed(*(f"{GATED.format(gate='rest')}; echo {name}" for name in "def"))
    scheduler.wait_printed("echo f` on gpu")
    shell.open_gate("rest")
    _, printed, _ = scheduler.end()
    assert [slot for _, slot in announced(printed.splitlines())] == ["2", "1", "0", "2", "0", "1"]


# -- announcements ---------------------------------------------------------------------------------


def test_announcements_come_at_once_and_first(shell: Shell) -> None:
    """Each command is announced once, before anything it prints, though hundreds are very short."""
    scheduler = shell.start("0,1")
    scheduler.feed("echo early")
    scheduler.wait_printed("Processing command `echo early` on gpu 1\nearly\n")
    scheduler.feed(*(f"echo short {number}" for number in range(300)))
    code, printed, errors = scheduler.end()
    lines = printed.splitlines()
    assert (code, errors, len(lines)) == (0, "", 602)
    place = {line.rpartition(" on gpu ")[0] or line: number for number, line in enumerate(lines)}
    assert all(place[f"Processing command `echo short {n}`"] < place[f"short {n}"] for n in range(300))


def test_short_commands_are_prefetched_as_by_stoker_run() -> None:
    """No slot waits for the scheduler between commands that take tenths of a second."""
    with contextlib.closing(declare_here(["0"])) as devices:
        policy = _setup(["0"], devices).policy
    assert policy == Policy(order="age", newest_first=True)
    assert policy.ahead >= 0.2


def test_command_that_comes_back_is_announced_once(shell: Shell) -> None:
    """Short commands stuck behind a long one are queued again, without a second announcement for the same slot."""
    commands = [
        *(f"true {number}" for number in range(40)),
        "sleep 1.5",
        *(f"true {number}" for number in range(40, 60)),
    ]
    code, lines, errors = shell.run(*commands)
    assert (code, errors) == (0, "")
    assert announced(lines) == [(command, "0") for command in commands]


def test_bytes_pass_through(shell: Shell) -> None:
    """A line that is no UTF-8 is announced and run as it came."""
    result = shell.typed("simple_gpu_scheduler --gpus 0", b"  echo '\xff'  \r\n")
    assert (result.returncode, result.stdout) == (0, b"Processing command `  echo '\xff'` on gpu 0\n\xff\n")


def test_readers_who_leave_do_not_stop_the_commands(shell: Shell) -> None:
    """With standard output at its end or closed from the start, the commands run all the same."""
    result = shell.typed("simple_gpu_scheduler --gpus 0 | true; exit ${PIPESTATUS[0]}", b"touch a\ntouch b\n")
    assert result.returncode == 0
    result = shell.typed("simple_gpu_scheduler --gpus 0 >&- 2>&-", b"echo nowhere; touch c\ntouch d\n")
    assert result.returncode == 0
    assert {"a", "b", "c", "d"} == {path.name for path in shell.directory.iterdir()}


# -- what a command finds --------------------------------------------------------------------------


def test_shell_magic(shell: Shell) -> None:
    """Lines go through the user's shell, in his directory and environment, with all that only bash knows."""
    shell.environment["WISH"] = "a b"
    code, _, errors = shell.run(
        "echo gpu $CUDA_VISIBLE_DEVICES > where",
        "printf 'b\\na\\n' | sort > sorted",
        '[[ $PWD == */work && $WISH == "a b" ]]',
        gpus="7",
    )
    assert (code, errors) == (0, "")
    assert (shell.text("where"), shell.text("sorted")) == ("gpu 7\n", "a\nb\n")


@pytest.mark.parametrize("user_shell", ["", "/usr/sbin/nologin", "/bin/false", "/no/such/shell"])
def test_without_a_shell_of_the_users(shell: Shell, user_shell: str) -> None:
    """Where SHELL is not set, or is none as for a service account, /bin/sh reads the lines, with a warning."""
    shell.environment["SHELL"] = user_shell
    code, _, errors = shell.run("readlink /proc/$$/exe > shell")
    assert (code, shell.text("shell").strip()) == (0, os.path.realpath("/bin/sh"))
    warning = f"simple_gpu_scheduler: warning: SHELL is {user_shell}, which cannot run commands; using /bin/sh\n"
    assert errors == (warning if user_shell else "")


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        (["0", "1"], "--devices 0,1"),
        (["0,1", "2,3"], "-G 2 --devices 0,1,2,3"),
        (["GPU-1", " 1"], "--devices 'GPU-1, 1'"),
    ],
)
def test_hint_for_the_rest(slots: list[str], words: str) -> None:
    """The command that runs the rest of a list names the same GPUs."""
    assert _newer_spelling(slots) == words


def test_command_cannot_eat_the_queue(shell: Shell) -> None:
    """A command that reads standard input finds it empty, and the lines after it run."""
    code, lines, _ = shell.run("cat > eaten", "touch after")
    assert (code, len(lines), shell.text("eaten")) == (0, 2, "")
    assert (shell.directory / "after").exists()


def test_lines_that_are_no_commands(shell: Shell) -> None:
    """Blank lines and comments are skipped, a backslash goes on in the next line, the last newline may be missing."""
    code, lines, _ = shell.run("", "  # a remark", "echo one \\", "  two", "   ", "echo three")
    assert code == 0
    assert [command for command, _ in announced(lines)] == ["echo one   two", "echo three"]
    assert {"one two", "three"} <= {*lines}


# -- what goes wrong -------------------------------------------------------------------------------


def test_failures_are_told(shell: Shell) -> None:
    """Each failure is a line on standard error, with a count at the end and exit code 1."""
    code, _, errors = shell.run("exit 3", "true", "kill -9 $$", "no_such_program 2> /dev/null")
    assert code == 1
    assert sorted(errors.splitlines()) == [
        "simple_gpu_scheduler: 3 of 4 commands failed",
        "simple_gpu_scheduler: exit 127 on gpu 0: `no_such_program 2> /dev/null`",
        "simple_gpu_scheduler: exit 3 on gpu 0: `exit 3`",
        "simple_gpu_scheduler: signal 9 on gpu 0: `kill -9 $$`",
    ]


def test_impossible_lines_do_not_lose_the_slot(shell: Shell) -> None:
    """A NUL byte and a line too long for the kernel are failures of their own; the next command has the slot."""
    code, lines, errors = shell.run("echo \0", f"echo {'x' * 300_000}", "echo alive")
    assert (code, lines[-1]) == (1, "alive")
    assert "stdin line 1 is left out: it contains a NUL byte" in errors
    assert "the command is too long for the kernel" in errors
    assert errors.endswith("simple_gpu_scheduler: 2 of 3 commands failed\n")


def test_what_a_command_leaves_behind_is_stopped(shell: Shell) -> None:
    """A process in the background does not outlive its slot, and standard error says so."""
    code, _, errors = shell.run("sleep 1000 & echo $! > left")
    assert code == 0
    assert "left 1 process behind, which was stopped" in errors
    wait_until(lambda: not lives(int(shell.text("left"))))


def test_lost_command_runs_again(shell: Shell) -> None:
    """A command whose worker was killed is announced and run anew; one that always kills it is given up."""
    code, lines, errors = shell.run("touch $STOKER_ATTEMPT; [ $STOKER_ATTEMPT = 2 ] || kill -9 $PPID", "kill -9 $PPID")
    assert code == 1
    assert (shell.directory / "2").exists()
    assert len(announced(lines)) == 6
    assert errors.count("the worker of gpu 0 was killed; retrying: `") == 4
    assert "lost on gpu 0: `kill -9 $PPID` (its worker was killed" in errors
    assert errors.endswith("simple_gpu_scheduler: 1 of 2 commands failed\n")


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ("simple_gpu_scheduler --gpus 0 0> queue", "Bad file descriptor"),
        ("mkdir gone; cd gone; rmdir ../gone; simple_gpu_scheduler --gpus 0", "No such file or directory"),
    ],
)
def test_refusals_of_the_system_get_a_sentence(shell: Shell, line: str, trouble: str) -> None:
    """A queue that cannot be read and a directory that is gone end without a traceback."""
    result = shell.typed(line)
    expected = f"simple_gpu_scheduler: error: {trouble}\n"
    assert (result.returncode, result.stdout, result.stderr.decode()) == (125, b"", expected)


# -- signals ---------------------------------------------------------------------------------------


def test_sigterm_leaves_nothing_running(shell: Shell) -> None:
    """SIGTERM ends the running command and all it started; `stoker run --resume` runs the rest."""
    scheduler = shell.start("0")
    scheduler.feed("sleep 1000 & echo $! $$ > pids; wait; touch survived", "echo $CUDA_VISIBLE_DEVICES > rest")
    wait_until(lambda: shell.text("pids").endswith("\n"))
    scheduler.process.send_signal(signal.SIGTERM)
    code, _, errors = scheduler.end()
    assert code == 128 + signal.SIGTERM
    assert "cancelled on gpu 0: `sleep 1000" in errors
    wait_until(lambda: not any(lives(int(pid)) for pid in shell.text("pids").split()))
    again = "stoker run --resume -o - --devices 0 with the same list and in this directory runs the rest"
    assert f"1 command not started and removed from the queue; {again}" in errors
    assert "`echo" not in errors
    assert shell.typed("stoker status --plain").stdout.count(b"\n") == 1  # nothing is left that `resume` could run
    assert shell.typed("stoker run --resume -o - --devices 0 -", b"echo $CUDA_VISIBLE_DEVICES > rest\n").returncode == 0
    assert shell.text("rest") == "0\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_running_commands_may_finish(shell: Shell, number: signal.Signals) -> None:
    """The first Ctrl-C and a hang-up start nothing more, and let what runs come to its end."""
    scheduler = shell.start("0")
    scheduler.feed(f"touch running; {GATED.format(gate='go')}; touch finished", "touch too_late")
    wait_until((shell.directory / "running").exists)
    scheduler.process.send_signal(number)
    scheduler.wait_said("starting no more jobs")
    shell.open_gate("go")
    code, _, errors = scheduler.end()
    assert code == 128 + number
    assert "1 command not started" in errors
    assert "failed" not in errors
    assert (shell.directory / "finished").exists()
    assert not (shell.directory / "too_late").exists()


# -- other schedulers ---------------------------------------------------------------------------------------


def test_two_schedulers_take_turns(shell: Shell) -> None:
    """A second scheduler on the same GPU says whom it waits for, and its commands never meet the first one's."""
    first, second = shell.start("0"), shell.start("0")
    first.feed(f"mkdir busy && touch running && {GATED.format(gate='go')} && rmdir busy")
    wait_until((shell.directory / "running").exists)
    second.feed(*["mkdir busy && rmdir busy"] * 3)
    second.wait_said("GPU 0 is held by ")
    shell.open_gate("go")
    first.feed(*["mkdir busy && rmdir busy"] * 3)
    assert (first.end()[0], second.end()[0]) == (0, 0)


def test_start_is_light(shell: Shell) -> None:
    """The tool starts without the libraries of the large command line."""
    program = (
        "import sys, stoker.features.compat.simple_gpu_scheduler; "
        "print({'click', 'rich', 'psutil', 'pynvml'} & {*sys.modules})"
    )
    result = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60)
    assert result == "set()\n"
