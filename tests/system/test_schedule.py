"""The older tool schedule, typed as in its document and as its users got hurt by it."""

from __future__ import annotations

import os
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

from stoker.compat.schedule_info import place_of_info
from support.nvml import Bench, FakeGpu, FakeMachine, compiled
from support.schedule import ScheduleDesk
from support.users import made_users, reachable_directory
from support.wait import PATIENCE_SECONDS, ending, line_from, wait_until

FOUR_FREE = "Free GPU:\n---------\nGPU 0\nGPU 1\nGPU 2\nGPU 3\n"
ANNOUNCED = re.compile(r"GPU: (\S+)\nSCH PID: (\d+)\nTASK PID: (\d+)\nSCH PGID: (\d+)\nTASK PGID: (\d+)\n")
SAY_GPU = "sh -c 'echo I have $GPU'"
CLOCK = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[ScheduleDesk]:
    builder = ScheduleDesk(tmp_path)
    yield builder
    builder.close()


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


def test_document_example(builder: ScheduleDesk) -> None:
    """The task is started as soon as GPU 2 is free, with GPU set to cuda2, and the end is told."""
    builder.program("train.py", 'echo "$GPU: $*" > trained')
    holder = builder.hold("-fg", "2")
    task = builder.begin("train.py foo --bar 5", "--forced_gpu", "2", "--verbose")
    task.wait_printed(f"Scheduler (PID: {task.process.pid}) is waiting for GPU 2.\n")
    assert not builder.text("trained")
    builder.open_gate("gate")
    holder.end()
    code, out, err = task.end()
    assert (code, err, builder.text("trained")) == (0, "", "cuda2: foo --bar 5\n")
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


def test_document_file_is_made_on_the_first_start(builder: ScheduleDesk) -> None:
    """It is made for four GPUs, in the layout that other scripts read, so that every user can update it."""
    assert builder.schedule("true")[0] == 0
    columns = ["avail", "gpu_name", "task", "task_pid", "task_start", "user"]
    values = {name: "true" if name == "avail" else "null" for name in columns}
    lists = [f'    "{name}": [\n' + ",\n".join([f"        {values[name]}"] * 4) + "\n    ]" for name in columns]
    assert builder.info_path.read_text() == "{\n" + ",\n".join(lists) + "\n}"
    assert builder.info_path.stat().st_mode & 0o777 == 0o666


def test_document_place_of_the_file() -> None:
    """It is /tmp/gpu_scheduler_info."""
    assert place_of_info({}) == Path("/tmp/gpu_scheduler_info")


def test_document_gpu_is_blocked_until_the_task_finishes(builder: ScheduleDesk) -> None:
    """The file tells of the task while it runs, and nothing of it afterwards."""
    task = builder.hold()
    pid = task.wait_started()
    wait_until(lambda: builder.info()["task_pid"][0] == pid)
    info = {name: column[0] for name, column in builder.info().items()}
    start = info.pop("task_start")
    words = ["sh", "-c", "until [ -e gate ]; do sleep 0.01; done"]
    user = psutil.Process().username()
    assert info == {"avail": False, "gpu_name": "cuda0", "task": words, "task_pid": pid, "user": user}
    assert re.fullmatch(CLOCK, start)
    builder.open_gate("gate")
    assert task.end()[0] == 0
    assert builder.schedule("-s") == (0, FOUR_FREE, "")


def test_document_usage(builder: ScheduleDesk) -> None:
    """`schedule -h` shows every documented option, long and short."""
    code, out, err = builder.schedule("-h")
    assert (code, err) == (0, "")
    assert out.startswith("usage: schedule [-h] [-gc GPU_COUNT] [-i INIT [INIT ...]] [-v] [-o [OUT]]")
    for option in [
        "-gc",
        "--gpu_count",
        "-i",
        "--init",
        "-v",
        "--verbose",
        "-o",
        "--out",
        "-e",
        "--err",
        "-pg",
        "--prefered_gpu",
    ]:
        assert f" {option}" in out
    for option in ["-fg", "--forced_gpu", "-s", "--status", "-rg", "--release_gpu"]:
        assert f" {option}" in out


@pytest.mark.parametrize("option", ["-i", "--init"])
def test_init(builder: ScheduleDesk, option: str) -> None:
    """-i 5 3 4 means that there are 5 GPUs, of which 3 and 4 are not used."""
    assert builder.schedule(option, "5", "3", "4") == (0, "", "")
    assert builder.info()["avail"] == [True, True, True, False, False]
    assert gpu_of(builder.schedule("true", "-pg", "3")[1]) == "cuda0"
    assert gpu_of(builder.schedule("true", "-gc", "3")[1]) == "cuda0,cuda1,cuda2"
    assert builder.info()["avail"] == [True, True, True, False, False]


@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_verbose(builder: ScheduleDesk, option: str) -> None:
    """The summary comes only with the option, also beside -o without a name."""
    assert "total time" not in builder.schedule("true")[1]
    code, out, _ = builder.schedule("true", option, "-o")
    assert code == 0
    assert re.search(r"\ntask: \['true'\]\nstdout: <stdout>\nstderr: <stderr>\nstart: ", out)


@pytest.mark.parametrize(("out", "err"), [("-o", "-e"), ("--out", "--err")])
def test_output_files(builder: ScheduleDesk, out: str, err: str) -> None:
    """Each stream goes to its file, relative to the directory and emptied before; announcements do not."""
    (builder.directory / "o%j").write_text("a long text from the last time")
    code, printed, said = builder.schedule("sh -c 'echo yes; echo no >&2'", out, "o%j", err, "err", "-v")
    assert (code, said, builder.text("o%j"), builder.text("err")) == (0, "", "yes\n", "no\n")
    assert f"\nstdout: {builder.directory}/o%j\nstderr: {builder.directory}/err\n" in printed
    assert gpu_of(printed) == "cuda0"


def test_output_in_one_file_only(builder: ScheduleDesk) -> None:
    """The other stream stays the caller's; both may go to the same file."""
    _, printed, said = builder.schedule("sh -c 'echo yes; echo no >&2'", "-o", "file")
    assert (builder.text("file"), said) == ("yes\n", "no\n")
    assert "yes" not in printed
    builder.schedule("sh -c 'echo yes; echo no >&2'", "-o", "file", "-e", "file")
    assert builder.text("file") == "yes\nno\n"


@pytest.mark.parametrize("option", ["-pg", "--prefered_gpu"])
def test_preferred(builder: ScheduleDesk, option: str) -> None:
    """The preferred GPU is taken if it is free, otherwise another."""
    assert gpu_of(builder.schedule("true", option, "3")[1]) == "cuda3"
    builder.hold("-fg", "3")
    assert gpu_of(builder.schedule("true", option, "3")[1]) == "cuda0"
    assert gpu_of(builder.schedule("true", option, "77")[1]) == "cuda0"


@pytest.mark.parametrize("option", ["-fg", "--forced_gpu"])
def test_forced(builder: ScheduleDesk, option: str) -> None:
    """A forced GPU that is free is taken without a word; one that cannot be is refused."""
    code, out, err = builder.schedule("true", option, "1")
    assert (code, gpu_of(out), err) == (0, "cuda1", "")
    assert "waiting" not in out
    assert builder.schedule("true", option, "4") == (
        5,
        "",
        "schedule: error: there is no GPU 4; they are 0 to 3; schedule -i N says how many\n",
    )


@pytest.mark.parametrize("option", ["-s", "--status"])
def test_status(builder: ScheduleDesk, option: str) -> None:
    """Used GPUs with user, task, process and start, then the free ones."""
    assert builder.schedule(option) == (0, FOUR_FREE, "")
    builder.schedule("-i", "2")
    pid = builder.hold("-fg", "1").wait_started()
    user = psutil.Process().username()
    shown = builder.schedule(option)[1]
    assert re.fullmatch(
        "Currently used GPU:\n-------------------\n"
        rf"GPU: cuda1\nUser: {user}\nTask: \['sh', '-c', 'until .*'\]\nTask PID: {pid}\nStarted: {CLOCK}\n\n"
        "Free GPU:\n---------\nGPU 0\n",
        shown,
    )
    builder.hold("-fg", "0")
    assert builder.schedule(option)[1].endswith("\n\nNo GPU available.\n")


@pytest.mark.parametrize("option", ["-rg", "--release_gpu"])
def test_release(builder: ScheduleDesk, option: str) -> None:
    """-rg 0 2 releases GPU 0 and 2."""
    builder.schedule("-i", "4", "0", "1", "2")
    assert builder.schedule(option, "0", "2") == (0, "", "")
    assert builder.info()["avail"] == [True, False, True, True]


def test_all_in_one_call(builder: ScheduleDesk) -> None:
    """First the file is made, then GPUs are released, then the state is shown, then the task runs."""
    code, out, _ = builder.schedule(SAY_GPU, "-i", "3", "0", "1", "2", "-rg", "1", "-s")
    assert code == 0
    assert out.index("Free GPU:\n---------\nGPU 1\n") < out.index("I have cuda1")


# -- several GPUs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-gc", "--gpu_count", "-n", "--num"])
def test_gpu_count(builder: ScheduleDesk, option: str) -> None:
    """Several GPUs are a list with commas, and each of them shows the task."""
    assert "I have cuda0,cuda1\n" in builder.schedule(SAY_GPU, option, "2")[1]
    builder.hold(option, "3")
    wait_until(lambda: builder.info()["gpu_name"] == ["cuda0,cuda1,cuda2"] * 3 + [None])


def test_gpu_count_with_forced(builder: ScheduleDesk) -> None:
    """The forced one is among them, and is waited for though others are free."""
    assert "I have cuda2,cuda0\n" in builder.schedule(SAY_GPU, "-gc", "2", "-fg", "2")[1]
    builder.hold("-fg", "2")
    task = builder.begin(SAY_GPU, "-gc", "2", "-fg", "2")
    task.wait_printed("is waiting for GPU 2.")
    builder.open_gate("gate")
    assert "I have cuda2,cuda0\n" in task.end()[1]


@pytest.mark.parametrize(("words", "code"), [(["-gc", "5"], 5), (["-gc", "0"], 2), (["-gc", "1", "-f", "[1,2]"], 2)])
def test_impossible_counts(builder: ScheduleDesk, words: list[str], code: int) -> None:
    """A task that could never start is refused instead of waiting for ever."""
    got, out, err = builder.schedule("true", *words)
    assert (got, out) == (code, "")
    assert err.startswith("schedule: error: ")


# -- the task --------------------------------------------------------------------------------------


def test_task_is_a_line_or_words(builder: ScheduleDesk) -> None:
    """One word is taken apart as a shell does, without one; several are the task as they are."""
    builder.program("show", 'for word; do echo "<$word>"; done')
    shown = builder.schedule("show 'a b'\n\\$HOME # c", "-v")[1]
    assert "<a b>\n<$HOME>\n<#>\n<c>\n" in shown
    assert "<a b>\n<-v>\n" in builder.schedule("--", "show", "a b", "-v")[1]
    assert "<a b>\n<c>\n" in builder.schedule("show", "a b", "-fg", "1", "c")[1]


def test_num(builder: ScheduleDesk) -> None:
    """A word __num__ stands for a port of the GPU's own, and nothing else does."""
    out = builder.schedule("echo --port __num__ x__num__", "-fg", "3", "-v")[1]
    assert "--port 3900 x__num__\n" in out
    assert "task: ['echo', '--port', '3900', 'x__num__']\n" in out


def test_visible_devices_are_left_alone(builder: ScheduleDesk) -> None:
    """cuda2 is the third GPU that the task sees, so nothing is hidden from it."""
    show = "sh -c 'echo cvd ${CUDA_VISIBLE_DEVICES-unset} $CUDA_DEVICE_ORDER'"
    assert "cvd unset PCI_BUS_ID\n" in builder.schedule(show, "-fg", "2")[1]


def test_later_options(builder: ScheduleDesk) -> None:
    """The tool's later versions take lists, and give the task its GPUs in CUDA_VISIBLE_DEVICES in their order."""
    show = ["--", "sh", "-c", "echo cvd $CUDA_VISIBLE_DEVICES"]
    assert "cvd 3,2,0\n" in builder.schedule("-n", "3", "-p", "[3,2]", *show)[1]
    assert "cvd 1,3\n" in builder.schedule("-f", "[1,3]", *show)[1]
    assert "cvd 2\n" in builder.schedule("--force", "2", *show)[1]
    assert "cvd 2\n" in builder.schedule("--prefer", "2", *show)[1]
    builder.schedule("-i", "4", "1")
    builder.schedule("-r", "1")
    assert all(builder.info()["avail"])
    holder = builder.hold("-fg", "3")
    task = builder.begin("-f", "[1,3]", *show)
    task.wait_printed(f"Scheduler (PID: {task.process.pid}) is waiting for GPU(s) [1, 3].\n")
    builder.open_gate("gate")
    holder.end()
    assert "cvd 1,3\n" in task.end()[1]


def test_standard_input_is_the_callers(builder: ScheduleDesk) -> None:
    """`echo hi | schedule cat` shows hi."""
    assert b"hi\n" in builder.typed("echo hi | schedule cat").stdout


@pytest.mark.parametrize(
    ("task", "code"),
    [("sh -c 'exit 7'", 7), ("sh -c 'kill -9 $$'", 137), ("no-such-program", 127), ("/", 126), ("true", 0)],
)
def test_exit_code_is_the_tasks(builder: ScheduleDesk, task: str, code: int) -> None:
    """Failures show in the exit code, and the GPU is free again."""
    assert builder.schedule(task)[0] == code
    assert all(builder.info()["avail"])


def test_refusal_is_told_though_errors_go_to_a_file(builder: ScheduleDesk) -> None:
    """What keeps a task from starting is on the terminal once, wherever its own errors go."""
    assert builder.schedule("no-such-program")[2] == "stoker: no-such-program: command not found\n"
    said = builder.schedule("no-such-program", "-e", "err")[2]
    assert said == "schedule: no-such-program: no-such-program: command not found\n"


@pytest.mark.parametrize(
    "words",
    [
        ["-i", "5", "3", "task"],
        ["-i", "0"],
        ["-i", "99999"],
        ["-i", "2", "2"],
        ["-gc", "many", "true"],
        ["-f", "1;3", "true"],
        ["-f", "{}", "true"],
        ["-f", "[1,1]", "true"],
        ["-fg", "1", "-f", "1", "true"],
        ["-o", "no/such/folder", "true"],
        ["it's"],
        ["--no-such-option", "true"],
        ["-pg", "-1", "true"],
    ],
)
def test_wrong_words(builder: ScheduleDesk, words: list[str]) -> None:
    """What cannot be understood is said in one line, and nothing runs."""
    code, out, err = builder.schedule(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("schedule: error: ")


@pytest.mark.parametrize("words", [[], [""], ["-v"]])
def test_nothing_to_do(builder: ScheduleDesk, words: list[str]) -> None:
    """Without a task the file is made, and a hint is given."""
    code, out, err = builder.schedule(*words)
    assert (code, out) == (0, "")
    assert "there is no task" in err
    assert len(builder.info()["avail"]) == 4


# -- the ledger is the truth -----------------------------------------------------------------------


def test_scheduler_killed_while_its_task_runs(builder: ScheduleDesk) -> None:
    """The GPU stays with the task, and is free as soon as that is dead, without anybody's help."""
    task = builder.hold("-fg", "1")
    pid = task.wait_started()
    task.press(signal.SIGKILL)
    task.process.wait(PATIENCE_SECONDS)
    assert f"Task PID: {pid}\n" in builder.schedule("-s")[1]
    waiting = builder.begin(SAY_GPU, "-fg", "1")
    waiting.wait_printed("is waiting for GPU 1.")
    builder.open_gate("gate")
    assert "I have cuda1\n" in waiting.end()[1]
    assert all(builder.info()["avail"])


def test_task_that_does_not_want_to_end_keeps_its_gpu(builder: ScheduleDesk) -> None:
    """Between TERM and its death nobody else gets the GPU, nor does its end free the GPU of the next."""
    ignores = "sh -c 'trap \"\" TERM; touch deaf; until [ -e gate ]; do sleep 0.01; done'"
    first = builder.begin(ignores, "-fg", "0")
    first.wait_started()
    builder.wait_file("deaf")
    first.press()
    first.wait_printed("Next Ctrl-C")
    first.press()
    first.wait_printed("was terminated.")
    second = builder.begin(SAY_GPU, "-fg", "0")
    second.wait_printed("is waiting for GPU 0.")
    assert builder.info()["avail"][0] is False
    builder.open_gate("gate")
    first.end()
    assert "I have cuda0\n" in second.end()[1]


def test_waiters_are_served_in_order(builder: ScheduleDesk) -> None:
    """Who came first goes first, and whoever comes last does not slip in."""
    builder.hold("-fg", "0")
    waiting = []
    for name in "abcd":
        task = builder.begin(f"sh -c 'echo {name} >> order'", "-fg", "0")
        task.wait_printed("is waiting for GPU 0.")
        waiting.append(task)
    builder.open_gate("gate")
    assert [task.end()[0] for task in waiting] == [0, 0, 0, 0]
    assert builder.text("order") == "a\nb\nc\nd\n"


def test_release_waits_for_the_task(builder: ScheduleDesk) -> None:
    """-rg does not give a GPU away while its task lives; it says who has it."""
    pid = builder.hold("-fg", "0").wait_started()
    code, out, err = builder.schedule("-rg", "0", "9")
    user = psutil.Process().username()
    assert (code, out) == (1, "")
    assert err == (
        "schedule: warning: there is no GPU 9; they are 0 to 3\n"
        f"schedule: GPU 0 stays with the task of {user}, process {pid}: it is free as soon as that ends\n"
    )
    assert builder.info()["task_pid"][0] == pid


def test_init_does_not_forget_tasks(builder: ScheduleDesk) -> None:
    """A file made anew still tells of what runs."""
    pid = builder.hold("-fg", "0").wait_started()
    assert builder.schedule("-i", "2", "1")[0] == 0
    assert builder.info()["task_pid"] == [pid, None]
    assert builder.info()["avail"] == [False, False]


def test_gpus_are_shared_with_stoker_run(builder: ScheduleDesk) -> None:
    """What `stoker run` holds is shown, not used, and free again without a trace."""
    gated = "until [ -e gate ]; do sleep 0.01; done"
    command = ["stoker", "run", "--devices", "0", "--", "sh", "-c", f"touch there; {gated}"]
    run = subprocess.Popen(command, cwd=builder.directory, env=builder.environment)
    builder.wait_file("there")
    try:
        assert "GPU: cuda0\n" in builder.schedule("-s")[1]
        assert builder.info()["avail"] == [False, True, True, True]
        assert gpu_of(builder.schedule("true")[1]) == "cuda1"
    finally:
        builder.open_gate("gate")
        assert run.wait(60) == 0
    assert builder.schedule("-s") == (0, FOUR_FREE, "")


# -- what other scripts write ----------------------------------------------------------------------


def test_mark_of_another_script(builder: ScheduleDesk) -> None:
    """A GPU marked unavailable is not used until the mark goes, also by one who waits already."""
    builder.schedule("-i", "1")
    builder.mark(0, avail=False)
    task = builder.begin(SAY_GPU, "-fg", "0")
    task.wait_printed("is waiting for GPU 0.")
    builder.mark(0, avail=True)
    assert "I have cuda0\n" in task.end()[1]


def test_task_of_another_script(builder: ScheduleDesk) -> None:
    """An entry whose process lives is respected; once it is dead the entry frees itself."""
    builder.schedule("-i", "1")
    with killed_at_the_end(["sleep", "600"]) as other:
        start = time.strftime("%Y-%m-%d %H:%M:%S")
        builder.mark(0, avail=False, user="somebody", task=["sleep"], task_pid=other.pid, task_start=start)
        task = builder.begin(SAY_GPU, "-fg", "0")
        task.wait_printed("is waiting for GPU 0.")
        assert builder.schedule("-rg", "0")[0] == 1
    assert "I have cuda0\n" in task.end()[1]
    assert all(builder.info()["avail"])


def test_stale_entry_whose_number_another_process_got(builder: ScheduleDesk) -> None:
    """A process that began long after the task is not the task."""
    builder.schedule("-i", "1")
    builder.mark(0, avail=False, user="x", task=["x"], task_pid=os.getpid(), task_start="2001-01-01 00:00:00")
    assert gpu_of(builder.schedule("true")[1]) == "cuda0"


def test_status_shows_odd_entries_safely(builder: ScheduleDesk) -> None:
    """Control characters of others do not reach the terminal."""
    builder.schedule("-i", "1")
    builder.mark(0, avail=False, user="\x1b[2J", gpu_name="\x07", task=["\x1b]0;x\x07"], task_pid=os.getpid())
    shown = builder.schedule("-s")[1]
    assert "User: \\x1b[2J\n" in shown
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "not json",
        '{"avail": [tru',
        "[" * 100_000,
        "{}",
        '{"avail": []}',
        '{"avail": 3}',
        '{"avail": [' + "true," * 5000 + "true]}",
        '"\ud800"',
        "1" * 10_000,
        "x" * (2 << 20),
    ],
    ids=["text", "half", "deep", "empty", "no GPU", "number", "too many", "surrogate", "digits", "large"],
)
def test_corrupt_file(builder: ScheduleDesk, text: str) -> None:
    """A file that cannot be understood is made anew, with a word, and the task runs."""
    builder.info_path.write_text(text, errors="surrogatepass")
    code, out, err = builder.schedule("true")
    assert (code, gpu_of(out)) == (0, "cuda0")
    assert re.fullmatch(r"schedule: warning: \S+gpu_scheduler_info cannot be understood \(.*\)\n", err)
    assert builder.info()["avail"] == [True] * 4


@pytest.mark.parametrize(
    "text",
    [
        '{"avail": [1, 0], "task_pid": ["x", -1], "task": 7, "user": [[], {}]}',
        '{"avail": [true, false], "task_pid": [null, 99999999999999999999]}',
        '{"avail": [true, null], "gpu_name": [3], "task_start": [null, "never"], "more": {"a": NaN}}',
    ],
)
def test_odd_file(builder: ScheduleDesk, text: str) -> None:
    """What makes no sense in it counts as not said, and a GPU that is not said to be available is not used."""
    builder.info_path.write_text(text)
    assert gpu_of(builder.schedule("true", "-pg", "1")[1]) == "cuda0"
    assert builder.info()["avail"] == [True, False]


def test_corrupted_while_a_task_runs(builder: ScheduleDesk) -> None:
    """A running scheduler writes again what it knows."""
    builder.schedule("-i", "3", "2")
    pid = builder.hold("-fg", "1").wait_started()
    builder.info_path.write_text("{")
    wait_until(lambda: builder.info_path.read_text() != "{")
    wait_until(lambda: builder.info()["task_pid"] == [None, pid, None])
    assert builder.info()["avail"] == [True, False, False]


def obstruct(path: Path, kind: str) -> None:
    """Put something in the file's place that is no file."""
    if kind == "directory":
        path.mkdir()
    elif kind == "symbolic link":
        path.symlink_to(path.parent / "precious")
    elif kind == "second name":
        os.link(path.parent / "precious", path)
    else:
        os.mkfifo(path)


@pytest.mark.parametrize("kind", ["directory", "symbolic link", "second name", "pipe"])
def test_something_else_in_its_place(builder: ScheduleDesk, kind: str) -> None:
    """Nothing is written through it, a word is said, and GPUs are shared all the same; only -i cannot be done."""
    precious = builder.info_path.parent / "precious"
    precious.write_text("keep me")
    obstruct(builder.info_path, kind)
    builder.hold("-fg", "0")
    code, out, err = builder.schedule("true")
    assert (code, gpu_of(out)) == (0, "cuda1")
    assert "schedule: warning: " in err
    assert "Task PID: None" in builder.schedule("-s")[1]
    assert builder.schedule("-i", "3")[0] == 1
    assert precious.read_text() == "keep me"


def test_locked_file(builder: ScheduleDesk) -> None:
    """Somebody who keeps the lock keeps nobody from working."""
    builder.schedule("-i", "2", "0")
    holder = ["flock", "--no-fork", str(builder.info_path), "sh", "-c", "echo; exec sleep 600"]
    program = (
        "from stoker.compat import schedule, schedule_info as info\n"
        "info.LOCK_PATIENCE = 0.2\n"
        "raise SystemExit(schedule.main())"
    )
    with killed_at_the_end(holder) as process:
        line_from(process.stdout)
        done = subprocess.run(
            [sys.executable, "-c", program, "true"],
            cwd=builder.directory,
            env=builder.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
    assert (done.returncode, gpu_of(done.stdout)) == (0, "cuda1")
    assert "somebody keeps it locked" in done.stderr


# -- signals ---------------------------------------------------------------------------------------


def test_interrupts_one_two_three(builder: ScheduleDesk) -> None:
    """The first tells, the second terminates, those right after are not heard, a later one kills."""
    task = builder.begin("sh -c 'trap \"\" TERM; touch deaf; while :; do sleep 0.01; done'")
    pid = task.wait_started()
    builder.wait_file("deaf")
    task.press()
    task.wait_printed(f"\nNext Ctrl-C terminate the task (PGID: {pid}).\n")
    task.press()
    task.wait_printed(f"\nThe task (PGID: {pid}) was terminated.\n")

    def pressed_again() -> bool:
        task.press()
        return "killed" in task.printed

    pressed = time.monotonic()
    wait_until(pressed_again)
    assert time.monotonic() - pressed > 2.5
    code, out, _ = task.end()
    assert code == 137
    assert out.endswith(f"\nThe task (PGID: {pid}) was killed.\n")
    assert all(builder.info()["avail"])


def test_first_interrupt_lets_the_task_finish(builder: ScheduleDesk) -> None:
    """Its own exit code counts."""
    task = builder.begin("sh -c 'until [ -e gate ]; do sleep 0.01; done; exit 3'")
    task.wait_started()
    task.press()
    task.wait_printed("Next Ctrl-C")
    builder.open_gate("gate")
    assert task.end()[0] == 3


def test_second_interrupt_reaches_everything_of_the_task(builder: ScheduleDesk) -> None:
    """Background children end with it, and then the GPU is free."""
    task = builder.begin("sh -c 'sleep 601 & sleep 602 & touch there; wait'")
    pid = task.wait_started()
    builder.wait_file("there")
    family = psutil.Process(pid).children()
    task.press()
    task.wait_printed("Next Ctrl-C")
    task.press()
    assert task.end()[0] == 143
    assert not any(child.is_running() for child in family)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_leaving_while_it_waits(builder: ScheduleDesk, number: signal.Signals, code: int) -> None:
    """A scheduler that waits leaves at once, and nothing of its task is left in the queue."""
    builder.hold("-fg", "0")
    task = builder.begin(SAY_GPU, "-fg", "0")
    task.wait_printed("is waiting for GPU 0.")
    task.press(number)
    assert task.end()[0] == code
    queue = "import sys, pathlib; from stoker.store.writer import Store; "
    queue += "[path] = pathlib.Path(sys.argv[1]).glob('*/queue.db');"
    left = subprocess.run(
        [sys.executable, "-c", queue + "print(len(Store(path).engines_with_open_jobs()))", str(builder.home / "state")],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert left.stdout == "1\n"


def test_sigterm_stops_the_task(builder: ScheduleDesk) -> None:
    """The scheduler takes its task along, and the GPU is free."""
    task = builder.hold()
    pid = task.wait_started()
    task.press(signal.SIGTERM)
    assert task.end()[0] == 143
    assert not psutil.pid_exists(pid)
    assert all(builder.info()["avail"])


def test_no_terminal_and_no_streams(builder: ScheduleDesk) -> None:
    """It works without a terminal and with its standard streams closed, as under cron."""
    done = builder.typed("setsid -w schedule 'touch done' <&- >&- 2>&-; echo $?")
    assert done.stdout == b"0\n"
    assert (builder.directory / "done").exists()


# -- the machine and its users ---------------------------------------------------------------------


def test_as_many_as_the_driver_knows(builder: ScheduleDesk, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where GPUs are found the file is made for them, and one that a stranger uses is left alone."""
    bench = Bench(compiled(tmp_path_factory.getbasetemp()), builder.home / "machine")
    bench.write(FakeMachine((FakeGpu("GPU-aaaa-1"), FakeGpu("GPU-aabb-2", base=20 << 30))))
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE"):
        builder.environment[name] = bench.environment[name]
    assert builder.schedule("-s") == (0, "Free GPU:\n---------\nGPU 0\nGPU 1\n", "")
    assert gpu_of(builder.schedule("true", "-pg", "1")[1]) == "cuda0"
    builder.schedule("-i", "3")
    assert gpu_of(builder.schedule("true", "-fg", "2")[1]) == "cuda2"


def test_several_users() -> None:
    """They update one file and take turns on one GPU, whoever made the file."""
    with made_users(2) as (alice, bob), reachable_directory() as directory:
        builder = ScheduleDesk(directory)
        for each in (directory, builder.directory):  # as /tmp is
            each.chmod(0o1777)
        try:
            first = builder.begin("sh -c 'until [ -e gate ]; do sleep 0.01; done'", "-fg", "0", user=alice)
            pid = first.wait_started()
            wait_until(lambda: builder.info()["user"][0] == alice.name)
            second = builder.begin(SAY_GPU, "-fg", "0", user=bob)
            second.wait_printed("is waiting for GPU 0.")
            code, _, err = builder.begin("-rg", "0", user=bob).end()
            assert (code, f"the task of {alice.name}, process {pid}:" in err) == (1, True)
            builder.open_gate("gate")
            assert first.end()[0] == 0
            assert "I have cuda0\n" in second.end()[1]
            assert builder.begin("-s", user=bob).end() == (0, FOUR_FREE, "")
            builder.info_path.chmod(0o644)
            code, out, err = builder.begin("true", user=bob).end()
            assert (code, gpu_of(out)) == (0, "cuda0")
            assert "cannot be updated: Permission denied" in err
        finally:
            builder.close()


def test_starts_light(builder: ScheduleDesk) -> None:
    """Neither the command line of stoker nor the driver is loaded for it."""
    program = "import sys, stoker.compat.schedule; print({'click', 'rich', 'psutil', 'pynvml'} & {*sys.modules})"
    assert builder.typed(f'{sys.executable} -c "{program}"').stdout == b"set()\n"
