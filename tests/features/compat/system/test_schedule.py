"""schedule with tasks; tests/compat has the file and the options that need none."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from support.local import lives
from support.nvml import Bench, FakeGpu, FakeMachine, compiled
from support.schedule import ScheduleMachine
from support.users import made_users, reachable_directory
from support.wait import ending, line_from, wait_until

FOUR_FREE = "Free GPU:\n---------\nGPU 0\nGPU 1\nGPU 2\nGPU 3\n"
ANNOUNCED = re.compile(r"GPU: (\S+)\nSCH PID: (\d+)\nTASK PID: (\d+)\nSCH PGID: (\d+)\nTASK PGID: (\d+)\n")
SAY_GPU = "sh -c 'echo I have $GPU'"
CLOCK = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[ScheduleMachine]:
    machine = ScheduleMachine(tmp_path)
    yield machine
    machine.close()


@contextmanager
def killed_at_the_end(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours."""
    with ending(subprocess.Popen(command, stdout=subprocess.PIPE)) as process:
        try:
            yield process
        finally:
            process.kill()


def gpu_of(printed: str) -> str:
    """The GPU that was announced."""
    found = ANNOUNCED.search(printed)
    assert found, printed
    return found[1]


# -- the document, as typed there ------------------------------------------------------------------


def test_document_example(machine: ScheduleMachine) -> None:
    """The task is started as soon as GPU 2 is free, with GPU set to cuda2, and the end is told."""
    machine.program("train.py", 'echo "$GPU: $*" > trained')
    holder = machine.hold("-fg", "2")
    task = machine.begin("train.py foo --bar 5", "--forced_gpu", "2", "--verbose")
    task.wait_printed(f"Scheduler (PID: {task.process.pid}) is waiting for GPU 2.\n")
    assert not machine.text("trained")
    machine.open_gate("gate")
    holder.end()
    code, out, err = task.end()
    assert (code, err, machine.text("trained")) == (0, "", "cuda2: foo --bar 5\n")
    found = ANNOUNCED.search(out)
    assert found
    gpu, scheduler, pid, group, task_group = found.groups()
    assert (gpu, scheduler, group) == ("cuda2", str(task.process.pid), str(task.process.pid))
    assert pid == task_group
    assert re.search(
        r"\ntask: \['train.py', 'foo', '--bar', '5'\]\nstdout: <stdout>\nstderr: <stderr>\n"
        rf"start: {CLOCK}\nend: {CLOCK}\ntotal time: 0:0:\d+\n\n$",
        out,
    )


def test_document_gpu_is_blocked_until_the_task_finishes(machine: ScheduleMachine) -> None:
    """The file tells of the task while it runs, and nothing of it afterwards."""
    task = machine.hold()
    pid = task.wait_started()
    wait_until(lambda: machine.info()["task_pid"][0] == pid)
    info = {name: column[0] for name, column in machine.info().items()}
    start = info.pop("task_start")
    words = ["sh", "-c", "until [ -e gate ]; do sleep 0.01; done"]
    user = psutil.Process().username()
    assert info == {"avail": False, "gpu_name": "cuda0", "task": words, "task_pid": pid, "user": user}
    assert re.fullmatch(CLOCK, start)
    machine.open_gate("gate")
    assert task.end()[0] == 0
    assert machine.schedule("-s") == (0, FOUR_FREE, "")


SHOW = "sh -c 'echo cvd ${CUDA_VISIBLE_DEVICES-unset} $CUDA_DEVICE_ORDER'"
SHOW_WORDS = ["--", "sh", "-c", "echo cvd $CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ([SAY_GPU, "-fg", "1"], "I have cuda1\n"),
        ([SAY_GPU, "-pg", "3"], "I have cuda3\n"),
        ([SAY_GPU, "-pg", "77"], "I have cuda0\n"),
        ([SAY_GPU, "-gc", "2"], "I have cuda0,cuda1\n"),
        ([SAY_GPU, "-n", "2"], "I have cuda0,cuda1\n"),
        ([SAY_GPU, "-gc", "2", "-fg", "2"], "I have cuda2,cuda0\n"),
        # GPUs that -i marks are not used, and keep their marks.
        ([SAY_GPU, "-i", "5", "3", "4", "-pg", "3"], "I have cuda0\n"),
        ([SAY_GPU, "-i", "5", "0", "4", "-gc", "3"], "I have cuda1,cuda2,cuda3\n"),
        # cuda2 is the third GPU that the task sees, so nothing is hidden from it.
        ([SHOW, "-fg", "2"], "cvd unset PCI_BUS_ID\n"),
        # The tool's later versions take lists, and give the task its GPUs in CUDA_VISIBLE_DEVICES in their order.
        (["-n", "3", "-p", "[3,2]", *SHOW_WORDS], "cvd 3,2,0\n"),
        (["-f", "[1,3]", *SHOW_WORDS], "cvd 1,3\n"),
        (["--force", "2", *SHOW_WORDS], "cvd 2\n"),
        (["--prefer", "2", *SHOW_WORDS], "cvd 2\n"),
        # A word __num__ stands for a port of the GPU's own, and nothing else does.
        (["echo --port __num__ x__num__", "-fg", "3"], "--port 3900 x__num__\n"),
        # One word is taken apart as a shell does, without one; several are the task as they are.
        (["show 'a b'\n\\$HOME # c", "-v"], "<a b>\n<$HOME>\n<#>\n<c>\n"),
        (["--", "show", "a b", "-v"], "<a b>\n<-v>\n"),
        (["show", "a b", "-fg", "1", "c"], "<a b>\n<c>\n"),
        # The summary comes with the option, also beside -o without a name.
        (["true", "-v", "-o"], "\ntask: ['true']\nstdout: <stdout>\nstderr: <stderr>\nstart: "),
        (["echo __num__", "-v"], "\ntask: ['echo', '3600']\n"),
    ],
)
def test_options(machine: ScheduleMachine, words: list[str], printed: str) -> None:
    """Each option does what its document says, without a word on standard error."""
    machine.program("show", 'for word; do echo "<$word>"; done')
    code, out, err = machine.schedule(*words)
    assert (code, err.replace("schedule: warning: a preferred GPU does not exist; GPUs are 0 to 3\n", "")) == (0, "")
    assert printed in out
    assert "waiting" not in out
    assert ("total time" in out) == ("-v" in words and "--" not in words)


def test_output_files(machine: ScheduleMachine) -> None:
    """Each stream goes to its file, relative to the directory and emptied before; announcements do not."""
    (machine.directory / "o%j").write_text("a long text from the last time")
    both = "sh -c 'echo yes; echo no >&2'"
    code, printed, said = machine.schedule(both, "-o", "o%j", "-e", "err", "-v")
    assert (code, said, machine.text("o%j"), machine.text("err")) == (0, "", "yes\n", "no\n")
    assert "\nstdout: o%j\nstderr: err\n" in printed
    assert gpu_of(printed) == "cuda0"
    _, printed, said = machine.schedule(both, "-o", "file")
    assert (machine.text("file"), said, "yes" in printed) == ("yes\n", "no\n", False)
    machine.schedule(both, "-o", "file", "-e", "file")
    assert machine.text("file") == "yes\nno\n"


def test_used_gpus(machine: ScheduleMachine) -> None:
    """A preferred GPU in use is passed over, forced ones are waited for; each GPU of a task shows it."""
    machine.hold("-gc", "2", "-fg", "3")
    wait_until(lambda: machine.info()["gpu_name"] == ["cuda3,cuda0", None, None, "cuda3,cuda0"])
    assert gpu_of(machine.schedule("true", "-pg", "3")[1]) == "cuda1"
    task = machine.begin("-f", "[1,3]", *SHOW_WORDS)
    task.wait_printed(f"Scheduler (PID: {task.process.pid}) is waiting for GPU(s) [1, 3].\n")
    machine.open_gate("gate")
    assert "cvd 1,3\n" in task.end()[1]


def test_status(machine: ScheduleMachine) -> None:
    """A used GPU is shown with user, task, process and start, then the free ones."""
    machine.schedule("-i", "2")
    pid = machine.hold("-fg", "1").wait_started()
    user = psutil.Process().username()
    assert re.fullmatch(
        "Currently used GPU:\n-------------------\n"
        rf"GPU: cuda1\nUser: {user}\nTask: \['sh', '-c', 'until .*'\]\nTask PID: {pid}\nStarted: {CLOCK}\n\n"
        "Free GPU:\n---------\nGPU 0\n",
        machine.schedule("-s")[1],
    )


def test_all_in_one_call(machine: ScheduleMachine) -> None:
    """First the file is made, then GPUs are released, then the state is shown, then the task runs."""
    code, out, _ = machine.schedule(SAY_GPU, "-i", "3", "0", "1", "2", "-rg", "1", "-s")
    assert code == 0
    assert out.index("Free GPU:\n---------\nGPU 1\n") < out.index("I have cuda1")


def test_gpu_count_with_forced(machine: ScheduleMachine) -> None:
    """The forced one is among them, and is waited for though others are free."""
    machine.hold("-fg", "2")
    task = machine.begin(SAY_GPU, "-gc", "2", "-fg", "2")
    task.wait_printed("is waiting for GPU 2.")
    machine.open_gate("gate")
    assert "I have cuda2,cuda0\n" in task.end()[1]


# -- the task --------------------------------------------------------------------------------------


def test_standard_input_is_the_callers(machine: ScheduleMachine) -> None:
    """`echo hi | schedule cat` shows hi."""
    assert b"hi\n" in machine.typed("echo hi | schedule cat").stdout


@pytest.mark.parametrize(
    ("task", "code"),
    [("sh -c 'exit 7'", 7), ("sh -c 'kill -9 $$'", 137), ("no-such-program", 127), ("/", 126), ("true", 0)],
)
def test_exit_code_is_the_tasks(machine: ScheduleMachine, task: str, code: int) -> None:
    """Failures show in the exit code, and the GPU is free again."""
    assert machine.schedule(task)[0] == code
    assert all(machine.info()["avail"])


def test_refusal_is_told_though_errors_go_to_a_file(machine: ScheduleMachine) -> None:
    """What keeps a task from starting is on the terminal once, wherever its own errors go."""
    assert machine.schedule("no-such-program")[2] == "stoker: no-such-program: command not found\n"
    said = machine.schedule("no-such-program", "-e", "err")[2]
    assert said == "schedule: no-such-program: no-such-program: command not found\n"


# -- the ledger is the truth -----------------------------------------------------------------------


def test_scheduler_killed_while_its_task_runs(machine: ScheduleMachine) -> None:
    """The GPU stays with the task, and is free as soon as that is dead, without anybody's help."""
    task = machine.hold("-fg", "1")
    pid = task.wait_started()
    task.press(signal.SIGKILL)
    task.process.wait(timeout=60)
    assert f"Task PID: {pid}\n" in machine.schedule("-s")[1]
    waiting = machine.begin(SAY_GPU, "-fg", "1")
    waiting.wait_printed("is waiting for GPU 1.")
    machine.open_gate("gate")
    assert "I have cuda1\n" in waiting.end()[1]
    assert all(machine.info()["avail"])


def test_task_that_does_not_want_to_end_keeps_its_gpu(machine: ScheduleMachine) -> None:
    """Between TERM and its death nobody else gets the GPU, nor does its end free the GPU of the next."""
    ignores = "sh -c 'trap \"\" TERM; touch deaf; until [ -e gate ]; do sleep 0.01; done'"
    first = machine.begin(ignores, "-fg", "0")
    first.wait_started()
    machine.wait_file("deaf")
    first.press()
    first.wait_printed("Next Ctrl-C")
    first.press()
    first.wait_printed("was terminated.")
    second = machine.begin(SAY_GPU, "-fg", "0")
    second.wait_printed("is waiting for GPU 0.")
    assert machine.info()["avail"][0] is False
    machine.open_gate("gate")
    first.end()
    assert "I have cuda0\n" in second.end()[1]


def test_waiters_are_served_in_order(machine: ScheduleMachine) -> None:
    """Who came first goes first, and whoever comes last does not slip in."""
    machine.hold("-fg", "0")
    waiting = []
    for name in "abcd":
        task = machine.begin(f"sh -c 'echo {name} >> order'", "-fg", "0")
        task.wait_printed("is waiting for GPU 0.")
        waiting.append(task)
    machine.open_gate("gate")
    assert [task.end()[0] for task in waiting] == [0, 0, 0, 0]
    assert machine.text("order") == "a\nb\nc\nd\n"


def test_release_waits_for_the_task(machine: ScheduleMachine) -> None:
    """-rg does not give a GPU away while its task lives; it says who has it."""
    pid = machine.hold("-fg", "0").wait_started()
    code, out, err = machine.schedule("-rg", "0", "9")
    user = psutil.Process().username()
    assert (code, out) == (1, "")
    assert err == (
        "schedule: warning: there is no GPU 9; they are 0 to 3\n"
        f"schedule: GPU 0 stays with the task of {user}, process {pid}: it is free as soon as that ends\n"
    )
    assert machine.info()["task_pid"][0] == pid


def test_init_does_not_forget_tasks(machine: ScheduleMachine) -> None:
    """A file made anew still tells of what runs."""
    pid = machine.hold("-fg", "0").wait_started()
    assert machine.schedule("-i", "2", "1")[0] == 0
    assert machine.info()["task_pid"] == [pid, None]
    assert machine.info()["avail"] == [False, False]


def test_gpus_are_shared_with_stoker_run(machine: ScheduleMachine) -> None:
    """What `stoker run` holds is shown, not used, and free again without a trace."""
    gated = "until [ -e gate ]; do sleep 0.01; done"
    command = ["stoker", "run", "--devices", "0", "--", "sh", "-c", f"touch there; {gated}"]
    run = subprocess.Popen(command, cwd=machine.directory, env=machine.environment)
    machine.wait_file("there")
    try:
        assert "GPU: cuda0\n" in machine.schedule("-s")[1]
        assert machine.info()["avail"] == [False, True, True, True]
        assert gpu_of(machine.schedule("true")[1]) == "cuda1"
    finally:
        machine.open_gate("gate")
        assert run.wait(60) == 0
    assert machine.schedule("-s") == (0, FOUR_FREE, "")


# -- what other scripts write ----------------------------------------------------------------------


def test_mark_of_another_script(machine: ScheduleMachine) -> None:
    """A GPU marked unavailable is not used until the mark goes, also by one who waits already."""
    machine.schedule("-i", "1")
    machine.mark(0, avail=False)
    task = machine.begin(SAY_GPU, "-fg", "0")
    task.wait_printed("is waiting for GPU 0.")
    machine.mark(0, avail=True)
    assert "I have cuda0\n" in task.end()[1]


def test_task_of_another_script(machine: ScheduleMachine) -> None:
    """An entry whose process lives is respected; once it is dead the entry frees itself."""
    machine.schedule("-i", "1")
    with killed_at_the_end(["sleep", "600"]) as other:
        start = time.strftime("%Y-%m-%d %H:%M:%S")
        machine.mark(0, avail=False, user="somebody", task=["sleep"], task_pid=other.pid, task_start=start)
        task = machine.begin(SAY_GPU, "-fg", "0")
        task.wait_printed("is waiting for GPU 0.")
        assert machine.schedule("-rg", "0")[0] == 1
    assert "I have cuda0\n" in task.end()[1]
    assert all(machine.info()["avail"])


def test_corrupted_while_a_task_runs(machine: ScheduleMachine) -> None:
    """A running scheduler writes again what it knows."""
    machine.schedule("-i", "3", "2")
    pid = machine.hold("-fg", "1").wait_started()
    machine.info_path.write_text("{")
    wait_until(lambda: machine.info_path.read_text() != "{")
    wait_until(lambda: machine.info()["task_pid"] == [None, pid, None])
    assert machine.info()["avail"] == [True, False, False]


def test_something_else_in_its_place(machine: ScheduleMachine) -> None:
    """With a link in place of the file, GPUs are shared all the same."""
    machine.info_path.symlink_to(machine.info_path.parent / "precious")
    machine.hold("-fg", "0")
    code, out, err = machine.schedule("true")
    assert (code, gpu_of(out)) == (0, "cuda1")
    assert "schedule: warning: " in err
    assert "Task PID: None" in machine.schedule("-s")[1]


def test_locked_file(machine: ScheduleMachine) -> None:
    """Somebody who keeps the lock keeps nobody from working."""
    machine.schedule("-i", "2", "0")
    holder = ["flock", "--no-fork", str(machine.info_path), "sh", "-c", "echo; exec sleep 600"]
    with killed_at_the_end(holder) as process:
        assert process.stdout
        line_from(process.stdout)
        code, out, err = machine.schedule("true")
    assert (code, gpu_of(out)) == (0, "cuda1")
    assert "another process has locked it" in err


# -- signals ---------------------------------------------------------------------------------------


def test_interrupts_one_two_three(machine: ScheduleMachine) -> None:
    """The first tells, the second terminates, those right after are not heard, a later one kills."""
    task = machine.begin("sh -c 'trap \"\" TERM; touch deaf; while :; do sleep 0.01; done'")
    pid = task.wait_started()
    machine.wait_file("deaf")
    task.press()
    task.wait_printed(f"\nNext Ctrl-C terminate the task (PGID: {pid}).\n")
    pressed = time.monotonic()
    task.press()
    task.wait_printed(f"\nThe task (PGID: {pid}) was terminated.\n")

    def pressed_again() -> bool:
        task.press()
        return "killed" in task.printed

    wait_until(pressed_again)
    assert time.monotonic() - pressed > 2.5
    code, out, _ = task.end()
    assert code == 137
    assert out.endswith(f"\nThe task (PGID: {pid}) was killed.\n")
    assert all(machine.info()["avail"])


def test_first_interrupt_lets_the_task_finish(machine: ScheduleMachine) -> None:
    """Its own exit code counts."""
    task = machine.begin("sh -c 'until [ -e gate ]; do sleep 0.01; done; exit 3'")
    task.wait_started()
    task.press()
    task.wait_printed("Next Ctrl-C")
    machine.open_gate("gate")
    assert task.end()[0] == 3


def test_second_interrupt_reaches_everything_of_the_task(machine: ScheduleMachine) -> None:
    """Background children end with it, and then the GPU is free."""
    task = machine.begin("sh -c 'sleep 601 & sleep 602 & touch there; wait'")
    pid = task.wait_started()
    machine.wait_file("there")
    family = psutil.Process(pid).children()
    task.press()
    task.wait_printed("Next Ctrl-C")
    task.press()
    assert task.end()[0] == 143
    wait_until(lambda: not any(lives(child.pid) for child in family))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_leaving_while_it_waits(machine: ScheduleMachine, number: signal.Signals, code: int) -> None:
    """A scheduler that waits leaves at once, and nothing of its task is left in the queue."""
    machine.hold("-fg", "0")
    task = machine.begin(SAY_GPU, "-fg", "0")
    task.wait_printed("is waiting for GPU 0.")
    task.press(number)
    assert task.end()[0] == code
    queue = "import sys, pathlib; from stoker.store.writer import Store; "
    queue += "[path] = pathlib.Path(sys.argv[1]).glob('*/queue.db');"
    left = subprocess.run(
        [sys.executable, "-c", queue + "print(len(Store(path).engines_with_open_jobs()))", str(machine.home / "state")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert left.stdout == "1\n"


def test_sigterm_stops_the_task(machine: ScheduleMachine) -> None:
    """The scheduler takes its task along, and the GPU is free."""
    task = machine.hold()
    pid = task.wait_started()
    task.press(signal.SIGTERM)
    assert task.end()[0] == 143
    wait_until(lambda: not lives(pid))
    assert all(machine.info()["avail"])


def test_no_terminal_and_no_streams(machine: ScheduleMachine) -> None:
    """It works without a terminal and with its standard streams closed, as under cron."""
    done = machine.typed("setsid -w schedule 'touch done' <&- >&- 2>&-; echo $?")
    assert done.stdout == b"0\n"
    assert (machine.directory / "done").exists()


# -- the machine and its users ---------------------------------------------------------------------


def test_as_many_as_the_driver_knows(machine: ScheduleMachine, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where GPUs are found the file is made for them, and one that a stranger uses is left alone."""
    bench = Bench(compiled(tmp_path_factory.getbasetemp()), machine.home / "machine")
    bench.write(FakeMachine((FakeGpu("GPU-aaaa-1"), FakeGpu("GPU-aabb-2", base=20 << 30))))
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE"):
        machine.environment[name] = bench.environment[name]
    assert machine.schedule("-s") == (0, "Free GPU:\n---------\nGPU 0\nGPU 1\n", "")
    assert gpu_of(machine.schedule("true", "-pg", "1")[1]) == "cuda0"
    machine.schedule("-i", "3")
    assert gpu_of(machine.schedule("true", "-fg", "2")[1]) == "cuda2"


def test_several_users() -> None:
    """They update one file and take turns on one GPU, whoever made the file."""
    with made_users(2) as (alice, bob), reachable_directory() as directory:
        machine = ScheduleMachine(directory)
        for each in (directory, machine.directory):  # as /tmp is
            each.chmod(0o1777)
        try:
            first = machine.begin("sh -c 'until [ -e gate ]; do sleep 0.01; done'", "-fg", "0", user=alice)
            pid = first.wait_started()
            wait_until(lambda: machine.info()["user"][0] == alice.name)
            second = machine.begin(SAY_GPU, "-fg", "0", user=bob)
            second.wait_printed("is waiting for GPU 0.")
            code, _, err = machine.begin("-rg", "0", user=bob).end()
            assert (code, f"the task of {alice.name}, process {pid}:" in err) == (1, True)
            machine.open_gate("gate")
            assert first.end()[0] == 0
            assert "I have cuda0\n" in second.end()[1]
            assert machine.begin("-s", user=bob).end() == (0, FOUR_FREE, "")
            machine.info_path.chmod(0o644)
            code, out, err = machine.begin("true", user=bob).end()
            assert (code, gpu_of(out)) == (0, "cuda0")
            assert "cannot be updated: Permission denied" in err
        finally:
            machine.close()


def test_starts_light(machine: ScheduleMachine) -> None:
    """Neither the command line of stoker nor the driver is loaded for it."""
    program = (
        "import sys, stoker.features.compat.schedule.command; "
        "print({'click', 'rich', 'psutil', 'pynvml'} & {*sys.modules})"
    )
    assert machine.typed(f'{sys.executable} -c "{program}"').stdout == b"set()\n"
