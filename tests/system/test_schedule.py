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
from support.wait import wait_until

FOUR_FREE = "Free GPU:\n---------\nGPU 0\nGPU 1\nGPU 2\nGPU 3\n"
ANNOUNCED = re.compile(r"GPU: (\S+)\nSCH PID: (\d+)\nTASK PID: (\d+)\nSCH PGID: (\d+)\nTASK PGID: (\d+)\n")
SAY_GPU = "sh -c 'echo I have $GPU'"
CLOCK = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[ScheduleDesk]:
    desk = ScheduleDesk(tmp_path)
    yield desk
    desk.close()


@contextmanager
def killed_at_the_end(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is none of ours."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
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


def test_document_example(desk: ScheduleDesk) -> None:
    """The task is started as soon as GPU 2 is free, with GPU set to cuda2, and the end is told."""
    desk.program("train.py", 'echo "$GPU: $*" > trained')
    holder = desk.hold("-fg", "2")
    task = desk.begin("train.py foo --bar 5", "--forced_gpu", "2", "--verbose")
    task.wait_printed(f"Scheduler (PID: {task.process.pid}) is waiting for GPU 2.\n")
    assert not desk.text("trained")
    desk.open_gate("gate")
    holder.end()
    code, out, err = task.end()
    assert (code, err, desk.text("trained")) == (0, "", "cuda2: foo --bar 5\n")
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


def test_document_file_is_made_on_the_first_start(desk: ScheduleDesk) -> None:
    """It is made for four GPUs, in the layout that other scripts read, so that every user can update it."""
    assert desk.schedule("true")[0] == 0
    columns = ["avail", "gpu_name", "task", "task_pid", "task_start", "user"]
    values = {name: "true" if name == "avail" else "null" for name in columns}
    lists = [f'    "{name}": [\n' + ",\n".join([f"        {values[name]}"] * 4) + "\n    ]" for name in columns]
    assert desk.info_path.read_text() == "{\n" + ",\n".join(lists) + "\n}"
    assert desk.info_path.stat().st_mode & 0o777 == 0o666


def test_document_place_of_the_file() -> None:
    """It is /tmp/gpu_scheduler_info."""
    assert place_of_info({}) == Path("/tmp/gpu_scheduler_info")


def test_document_gpu_is_blocked_until_the_task_finishes(desk: ScheduleDesk) -> None:
    """The file tells of the task while it runs, and nothing of it afterwards."""
    task = desk.hold()
    pid = task.wait_started()
    wait_until(lambda: desk.info()["task_pid"][0] == pid)
    info = {name: column[0] for name, column in desk.info().items()}
    start = info.pop("task_start")
    words = ["sh", "-c", "until [ -e gate ]; do sleep 0.01; done"]
    user = psutil.Process().username()
    assert info == {"avail": False, "gpu_name": "cuda0", "task": words, "task_pid": pid, "user": user}
    assert re.fullmatch(CLOCK, start)
    desk.open_gate("gate")
    assert task.end()[0] == 0
    assert desk.schedule("-s") == (0, FOUR_FREE, "")


def test_document_usage(desk: ScheduleDesk) -> None:
    """`schedule -h` shows every documented option, long and short."""
    code, out, err = desk.schedule("-h")
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
def test_init(desk: ScheduleDesk, option: str) -> None:
    """-i 5 3 4 means that there are 5 GPUs, of which 3 and 4 are not used."""
    assert desk.schedule(option, "5", "3", "4") == (0, "", "")
    assert desk.info()["avail"] == [True, True, True, False, False]
    assert gpu_of(desk.schedule("true", "-pg", "3")[1]) == "cuda0"
    assert gpu_of(desk.schedule("true", "-gc", "3")[1]) == "cuda0,cuda1,cuda2"
    assert desk.info()["avail"] == [True, True, True, False, False]


@pytest.mark.parametrize("option", ["-v", "--verbose"])
def test_verbose(desk: ScheduleDesk, option: str) -> None:
    """The summary comes only with the option, also beside -o without a name."""
    assert "total time" not in desk.schedule("true")[1]
    code, out, _ = desk.schedule("true", option, "-o")
    assert code == 0
    assert re.search(r"\ntask: \['true'\]\nstdout: <stdout>\nstderr: <stderr>\nstart: ", out)


@pytest.mark.parametrize(("out", "err"), [("-o", "-e"), ("--out", "--err")])
def test_output_files(desk: ScheduleDesk, out: str, err: str) -> None:
    """Each stream goes to its file, relative to the directory and emptied before; announcements do not."""
    (desk.directory / "o%j").write_text("a long text from the last time")
    code, printed, said = desk.schedule("sh -c 'echo yes; echo no >&2'", out, "o%j", err, "err", "-v")
    assert (code, said, desk.text("o%j"), desk.text("err")) == (0, "", "yes\n", "no\n")
    assert f"\nstdout: {desk.directory}/o%j\nstderr: {desk.directory}/err\n" in printed
    assert gpu_of(printed) == "cuda0"


def test_output_in_one_file_only(desk: ScheduleDesk) -> None:
    """The other stream stays the caller's; both may go to the same file."""
    _, printed, said = desk.schedule("sh -c 'echo yes; echo no >&2'", "-o", "file")
    assert (desk.text("file"), said) == ("yes\n", "no\n")
    assert "yes" not in printed
    desk.schedule("sh -c 'echo yes; echo no >&2'", "-o", "file", "-e", "file")
    assert desk.text("file") == "yes\nno\n"


@pytest.mark.parametrize("option", ["-pg", "--prefered_gpu"])
def test_preferred(desk: ScheduleDesk, option: str) -> None:
    """The preferred GPU is taken if it is free, otherwise another."""
    assert gpu_of(desk.schedule("true", option, "3")[1]) == "cuda3"
    desk.hold("-fg", "3")
    assert gpu_of(desk.schedule("true", option, "3")[1]) == "cuda0"
    assert gpu_of(desk.schedule("true", option, "77")[1]) == "cuda0"


@pytest.mark.parametrize("option", ["-fg", "--forced_gpu"])
def test_forced(desk: ScheduleDesk, option: str) -> None:
    """A forced GPU that is free is taken without a word; one that cannot be is refused."""
    code, out, err = desk.schedule("true", option, "1")
    assert (code, gpu_of(out), err) == (0, "cuda1", "")
    assert "waiting" not in out
    assert desk.schedule("true", option, "4") == (
        5,
        "",
        "schedule: error: there is no GPU 4; they are 0 to 3; schedule -i N says how many\n",
    )


@pytest.mark.parametrize("option", ["-s", "--status"])
def test_status(desk: ScheduleDesk, option: str) -> None:
    """Used GPUs with user, task, process and start, then the free ones."""
    assert desk.schedule(option) == (0, FOUR_FREE, "")
    desk.schedule("-i", "2")
    pid = desk.hold("-fg", "1").wait_started()
    user = psutil.Process().username()
    shown = desk.schedule(option)[1]
    assert re.fullmatch(
        "Currently used GPU:\n-------------------\n"
        rf"GPU: cuda1\nUser: {user}\nTask: \['sh', '-c', 'until .*'\]\nTask PID: {pid}\nStarted: {CLOCK}\n\n"
        "Free GPU:\n---------\nGPU 0\n",
        shown,
    )
    desk.hold("-fg", "0")
    assert desk.schedule(option)[1].endswith("\n\nNo GPU available.\n")


@pytest.mark.parametrize("option", ["-rg", "--release_gpu"])
def test_release(desk: ScheduleDesk, option: str) -> None:
    """-rg 0 2 releases GPU 0 and 2."""
    desk.schedule("-i", "4", "0", "1", "2")
    assert desk.schedule(option, "0", "2") == (0, "", "")
    assert desk.info()["avail"] == [True, False, True, True]


def test_all_in_one_call(desk: ScheduleDesk) -> None:
    """First the file is made, then GPUs are released, then the state is shown, then the task runs."""
    code, out, _ = desk.schedule(SAY_GPU, "-i", "3", "0", "1", "2", "-rg", "1", "-s")
    assert code == 0
    assert out.index("Free GPU:\n---------\nGPU 1\n") < out.index("I have cuda1")


# -- several GPUs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["-gc", "--gpu_count", "-n", "--num"])
def test_gpu_count(desk: ScheduleDesk, option: str) -> None:
    """Several GPUs are a list with commas, and each of them shows the task."""
    assert "I have cuda0,cuda1\n" in desk.schedule(SAY_GPU, option, "2")[1]
    desk.hold(option, "3")
    wait_until(lambda: desk.info()["gpu_name"] == ["cuda0,cuda1,cuda2"] * 3 + [None])


def test_gpu_count_with_forced(desk: ScheduleDesk) -> None:
    """The forced one is among them, and is waited for though others are free."""
    assert "I have cuda2,cuda0\n" in desk.schedule(SAY_GPU, "-gc", "2", "-fg", "2")[1]
    desk.hold("-fg", "2")
    task = desk.begin(SAY_GPU, "-gc", "2", "-fg", "2")
    task.wait_printed("is waiting for GPU 2.")
    desk.open_gate("gate")
    assert "I have cuda2,cuda0\n" in task.end()[1]


@pytest.mark.parametrize(("words", "code"), [(["-gc", "5"], 5), (["-gc", "0"], 2), (["-gc", "1", "-f", "[1,2]"], 2)])
def test_impossible_counts(desk: ScheduleDesk, words: list[str], code: int) -> None:
    """A task that could never start is refused instead of waiting for ever."""
    got, out, err = desk.schedule("true", *words)
    assert (got, out) == (code, "")
    assert err.startswith("schedule: error: ")


# -- the task --------------------------------------------------------------------------------------


def test_task_is_a_line_or_words(desk: ScheduleDesk) -> None:
    """One word is taken apart as a shell does, without one; several are the task as they are."""
    desk.program("show", 'for word; do echo "<$word>"; done')
    shown = desk.schedule("show 'a b'\n\\$HOME # c", "-v")[1]
    assert "<a b>\n<$HOME>\n<#>\n<c>\n" in shown
    assert "<a b>\n<-v>\n" in desk.schedule("--", "show", "a b", "-v")[1]
    assert "<a b>\n<c>\n" in desk.schedule("show", "a b", "-fg", "1", "c")[1]


def test_num(desk: ScheduleDesk) -> None:
    """A word __num__ stands for a port of the GPU's own, and nothing else does."""
    out = desk.schedule("echo --port __num__ x__num__", "-fg", "3", "-v")[1]
    assert "--port 3900 x__num__\n" in out
    assert "task: ['echo', '--port', '3900', 'x__num__']\n" in out


def test_visible_devices_are_left_alone(desk: ScheduleDesk) -> None:
    """cuda2 is the third GPU that the task sees, so nothing is hidden from it."""
    show = "sh -c 'echo cvd ${CUDA_VISIBLE_DEVICES-unset} $CUDA_DEVICE_ORDER'"
    assert "cvd unset PCI_BUS_ID\n" in desk.schedule(show, "-fg", "2")[1]


def test_later_options(desk: ScheduleDesk) -> None:
    """The tool's later versions take lists, and give the task its GPUs in CUDA_VISIBLE_DEVICES in their order."""
    show = ["--", "sh", "-c", "echo cvd $CUDA_VISIBLE_DEVICES"]
    assert "cvd 3,2,0\n" in desk.schedule("-n", "3", "-p", "[3,2]", *show)[1]
    assert "cvd 1,3\n" in desk.schedule("-f", "[1,3]", *show)[1]
    assert "cvd 2\n" in desk.schedule("--force", "2", *show)[1]
    assert "cvd 2\n" in desk.schedule("--prefer", "2", *show)[1]
    desk.schedule("-i", "4", "1")
    desk.schedule("-r", "1")
    assert all(desk.info()["avail"])
    holder = desk.hold("-fg", "3")
    task = desk.begin("-f", "[1,3]", *show)
    task.wait_printed(f"Scheduler (PID: {task.process.pid}) is waiting for GPU(s) [1, 3].\n")
    desk.open_gate("gate")
    holder.end()
    assert "cvd 1,3\n" in task.end()[1]


def test_standard_input_is_the_callers(desk: ScheduleDesk) -> None:
    """`echo hi | schedule cat` shows hi."""
    assert b"hi\n" in desk.typed("echo hi | schedule cat").stdout


@pytest.mark.parametrize(
    ("task", "code"),
    [("sh -c 'exit 7'", 7), ("sh -c 'kill -9 $$'", 137), ("no-such-program", 127), ("/", 126), ("true", 0)],
)
def test_exit_code_is_the_tasks(desk: ScheduleDesk, task: str, code: int) -> None:
    """Failures show in the exit code, and the GPU is free again."""
    assert desk.schedule(task)[0] == code
    assert all(desk.info()["avail"])


def test_refusal_is_told_though_errors_go_to_a_file(desk: ScheduleDesk) -> None:
    """What keeps a task from starting is on the terminal once, wherever its own errors go."""
    assert desk.schedule("no-such-program")[2] == "stoker: no-such-program: command not found\n"
    said = desk.schedule("no-such-program", "-e", "err")[2]
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
def test_wrong_words(desk: ScheduleDesk, words: list[str]) -> None:
    """What cannot be understood is said in one line, and nothing runs."""
    code, out, err = desk.schedule(*words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("schedule: error: ")


@pytest.mark.parametrize("words", [[], [""], ["-v"]])
def test_nothing_to_do(desk: ScheduleDesk, words: list[str]) -> None:
    """Without a task the file is made, and a hint is given."""
    code, out, err = desk.schedule(*words)
    assert (code, out) == (0, "")
    assert "there is no task" in err
    assert len(desk.info()["avail"]) == 4


# -- the ledger is the truth -----------------------------------------------------------------------


def test_scheduler_killed_while_its_task_runs(desk: ScheduleDesk) -> None:
    """The GPU stays with the task, and is free as soon as that is dead, without anybody's help."""
    task = desk.hold("-fg", "1")
    pid = task.wait_started()
    task.press(signal.SIGKILL)
    task.process.wait()
    assert f"Task PID: {pid}\n" in desk.schedule("-s")[1]
    waiting = desk.begin(SAY_GPU, "-fg", "1")
    waiting.wait_printed("is waiting for GPU 1.")
    desk.open_gate("gate")
    assert "I have cuda1\n" in waiting.end()[1]
    assert all(desk.info()["avail"])


def test_task_that_does_not_want_to_end_keeps_its_gpu(desk: ScheduleDesk) -> None:
    """Between TERM and its death nobody else gets the GPU, nor does its end free the GPU of the next."""
    ignores = "sh -c 'trap \"\" TERM; touch deaf; until [ -e gate ]; do sleep 0.01; done'"
    first = desk.begin(ignores, "-fg", "0")
    first.wait_started()
    desk.wait_file("deaf")
    first.press()
    first.wait_printed("Next Ctrl-C")
    first.press()
    first.wait_printed("was terminated.")
    second = desk.begin(SAY_GPU, "-fg", "0")
    second.wait_printed("is waiting for GPU 0.")
    assert desk.info()["avail"][0] is False
    desk.open_gate("gate")
    first.end()
    assert "I have cuda0\n" in second.end()[1]


def test_waiters_are_served_in_order(desk: ScheduleDesk) -> None:
    """Who came first goes first, and whoever comes last does not slip in."""
    desk.hold("-fg", "0")
    waiting = []
    for name in "abcd":
        task = desk.begin(f"sh -c 'echo {name} >> order'", "-fg", "0")
        task.wait_printed("is waiting for GPU 0.")
        waiting.append(task)
    desk.open_gate("gate")
    assert [task.end()[0] for task in waiting] == [0, 0, 0, 0]
    assert desk.text("order") == "a\nb\nc\nd\n"


def test_release_waits_for_the_task(desk: ScheduleDesk) -> None:
    """-rg does not give a GPU away while its task lives; it says who has it."""
    pid = desk.hold("-fg", "0").wait_started()
    code, out, err = desk.schedule("-rg", "0", "9")
    user = psutil.Process().username()
    assert (code, out) == (1, "")
    assert err == (
        "schedule: warning: there is no GPU 9; they are 0 to 3\n"
        f"schedule: GPU 0 stays with the task of {user}, process {pid}: it is free as soon as that ends\n"
    )
    assert desk.info()["task_pid"][0] == pid


def test_init_does_not_forget_tasks(desk: ScheduleDesk) -> None:
    """A file made anew still tells of what runs."""
    pid = desk.hold("-fg", "0").wait_started()
    assert desk.schedule("-i", "2", "1")[0] == 0
    assert desk.info()["task_pid"] == [pid, None]
    assert desk.info()["avail"] == [False, False]


def test_gpus_are_shared_with_stoker_run(desk: ScheduleDesk) -> None:
    """What `stoker run` holds is shown, not used, and free again without a trace."""
    gated = "until [ -e gate ]; do sleep 0.01; done"
    command = ["stoker", "run", "--devices", "0", "--", "sh", "-c", f"touch there; {gated}"]
    run = subprocess.Popen(command, cwd=desk.directory, env=desk.environment)
    desk.wait_file("there")
    try:
        assert "GPU: cuda0\n" in desk.schedule("-s")[1]
        assert desk.info()["avail"] == [False, True, True, True]
        assert gpu_of(desk.schedule("true")[1]) == "cuda1"
    finally:
        desk.open_gate("gate")
        assert run.wait(60) == 0
    assert desk.schedule("-s") == (0, FOUR_FREE, "")


# -- what other scripts write ----------------------------------------------------------------------


def test_mark_of_another_script(desk: ScheduleDesk) -> None:
    """A GPU marked unavailable is not used until the mark goes, also by one who waits already."""
    desk.schedule("-i", "1")
    desk.mark(0, avail=False)
    task = desk.begin(SAY_GPU, "-fg", "0")
    task.wait_printed("is waiting for GPU 0.")
    desk.mark(0, avail=True)
    assert "I have cuda0\n" in task.end()[1]


def test_task_of_another_script(desk: ScheduleDesk) -> None:
    """An entry whose process lives is respected; once it is dead the entry frees itself."""
    desk.schedule("-i", "1")
    with killed_at_the_end(["sleep", "600"]) as other:
        start = time.strftime("%Y-%m-%d %H:%M:%S")
        desk.mark(0, avail=False, user="somebody", task=["sleep"], task_pid=other.pid, task_start=start)
        task = desk.begin(SAY_GPU, "-fg", "0")
        task.wait_printed("is waiting for GPU 0.")
        assert desk.schedule("-rg", "0")[0] == 1
    assert "I have cuda0\n" in task.end()[1]
    assert all(desk.info()["avail"])


def test_stale_entry_whose_number_another_process_got(desk: ScheduleDesk) -> None:
    """A process that began long after the task is not the task."""
    desk.schedule("-i", "1")
    desk.mark(0, avail=False, user="x", task=["x"], task_pid=os.getpid(), task_start="2001-01-01 00:00:00")
    assert gpu_of(desk.schedule("true")[1]) == "cuda0"


def test_status_shows_odd_entries_safely(desk: ScheduleDesk) -> None:
    """Control characters of others do not reach the terminal."""
    desk.schedule("-i", "1")
    desk.mark(0, avail=False, user="\x1b[2J", gpu_name="\x07", task=["\x1b]0;x\x07"], task_pid=os.getpid())
    shown = desk.schedule("-s")[1]
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
def test_corrupt_file(desk: ScheduleDesk, text: str) -> None:
    """A file that cannot be understood is made anew, with a word, and the task runs."""
    desk.info_path.write_text(text, errors="surrogatepass")
    code, out, err = desk.schedule("true")
    assert (code, gpu_of(out)) == (0, "cuda0")
    assert re.fullmatch(r"schedule: warning: \S+gpu_scheduler_info cannot be understood \(.*\)\n", err)
    assert desk.info()["avail"] == [True] * 4


@pytest.mark.parametrize(
    "text",
    [
        '{"avail": [1, 0], "task_pid": ["x", -1], "task": 7, "user": [[], {}]}',
        '{"avail": [true, false], "task_pid": [null, 99999999999999999999]}',
        '{"avail": [true, null], "gpu_name": [3], "task_start": [null, "never"], "more": {"a": NaN}}',
    ],
)
def test_odd_file(desk: ScheduleDesk, text: str) -> None:
    """What makes no sense in it counts as not said, and a GPU that is not said to be available is not used."""
    desk.info_path.write_text(text)
    assert gpu_of(desk.schedule("true", "-pg", "1")[1]) == "cuda0"
    assert desk.info()["avail"] == [True, False]


def test_corrupted_while_a_task_runs(desk: ScheduleDesk) -> None:
    """A running scheduler writes again what it knows."""
    desk.schedule("-i", "3", "2")
    pid = desk.hold("-fg", "1").wait_started()
    desk.info_path.write_text("{")
    wait_until(lambda: desk.info_path.read_text() != "{")
    wait_until(lambda: desk.info()["task_pid"] == [None, pid, None])
    assert desk.info()["avail"] == [True, False, False]


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
def test_something_else_in_its_place(desk: ScheduleDesk, kind: str) -> None:
    """Nothing is written through it, a word is said, and GPUs are shared all the same; only -i cannot be done."""
    precious = desk.info_path.parent / "precious"
    precious.write_text("keep me")
    obstruct(desk.info_path, kind)
    desk.hold("-fg", "0")
    code, out, err = desk.schedule("true")
    assert (code, gpu_of(out)) == (0, "cuda1")
    assert "schedule: warning: " in err
    assert "Task PID: None" in desk.schedule("-s")[1]
    assert desk.schedule("-i", "3")[0] == 1
    assert precious.read_text() == "keep me"


def test_locked_file(desk: ScheduleDesk) -> None:
    """Somebody who keeps the lock keeps nobody from working."""
    desk.schedule("-i", "2", "0")
    holder = ["flock", "--no-fork", str(desk.info_path), "sh", "-c", "echo; exec sleep 600"]
    with killed_at_the_end(holder) as process:
        assert process.stdout
        process.stdout.readline()
        code, out, err = desk.schedule("true")
    assert (code, gpu_of(out)) == (0, "cuda1")
    assert "somebody keeps it locked" in err


# -- signals ---------------------------------------------------------------------------------------


def test_interrupts_one_two_three(desk: ScheduleDesk) -> None:
    """The first tells, the second terminates, those right after are not heard, a later one kills."""
    task = desk.begin("sh -c 'trap \"\" TERM; touch deaf; while :; do sleep 0.01; done'")
    pid = task.wait_started()
    desk.wait_file("deaf")
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
    assert all(desk.info()["avail"])


def test_first_interrupt_lets_the_task_finish(desk: ScheduleDesk) -> None:
    """Its own exit code counts."""
    task = desk.begin("sh -c 'until [ -e gate ]; do sleep 0.01; done; exit 3'")
    task.wait_started()
    task.press()
    task.wait_printed("Next Ctrl-C")
    desk.open_gate("gate")
    assert task.end()[0] == 3


def test_second_interrupt_reaches_everything_of_the_task(desk: ScheduleDesk) -> None:
    """Background children end with it, and then the GPU is free."""
    task = desk.begin("sh -c 'sleep 601 & sleep 602 & touch there; wait'")
    pid = task.wait_started()
    desk.wait_file("there")
    family = psutil.Process(pid).children()
    task.press()
    task.wait_printed("Next Ctrl-C")
    task.press()
    assert task.end()[0] == 143
    assert not any(child.is_running() for child in family)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_leaving_while_it_waits(desk: ScheduleDesk, number: signal.Signals, code: int) -> None:
    """A scheduler that waits leaves at once, and nothing of its task is left in the queue."""
    desk.hold("-fg", "0")
    task = desk.begin(SAY_GPU, "-fg", "0")
    task.wait_printed("is waiting for GPU 0.")
    task.press(number)
    assert task.end()[0] == code
    queue = "import sys, pathlib; from stoker.store.writer import Store; "
    queue += "[path] = pathlib.Path(sys.argv[1]).glob('*/queue.db');"
    left = subprocess.run(
        [sys.executable, "-c", queue + "print(len(Store(path).engines_with_open_jobs()))", str(desk.home / "state")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert left.stdout == "1\n"


def test_sigterm_stops_the_task(desk: ScheduleDesk) -> None:
    """The scheduler takes its task along, and the GPU is free."""
    task = desk.hold()
    pid = task.wait_started()
    task.press(signal.SIGTERM)
    assert task.end()[0] == 143
    assert not psutil.pid_exists(pid)
    assert all(desk.info()["avail"])


def test_no_terminal_and_no_streams(desk: ScheduleDesk) -> None:
    """It works without a terminal and with its standard streams closed, as under cron."""
    done = desk.typed("setsid -w schedule 'touch done' <&- >&- 2>&-; echo $?")
    assert done.stdout == b"0\n"
    assert (desk.directory / "done").exists()


# -- the machine and its users ---------------------------------------------------------------------


def test_as_many_as_the_driver_knows(desk: ScheduleDesk, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where GPUs are found the file is made for them, and one that a stranger uses is left alone."""
    bench = Bench(compiled(tmp_path_factory.getbasetemp()), desk.home / "machine")
    bench.write(FakeMachine((FakeGpu("GPU-aaaa-1"), FakeGpu("GPU-aabb-2", base=20 << 30))))
    for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE"):
        desk.environment[name] = bench.environment[name]
    assert desk.schedule("-s") == (0, "Free GPU:\n---------\nGPU 0\nGPU 1\n", "")
    assert gpu_of(desk.schedule("true", "-pg", "1")[1]) == "cuda0"
    desk.schedule("-i", "3")
    assert gpu_of(desk.schedule("true", "-fg", "2")[1]) == "cuda2"


def test_several_users() -> None:
    """They update one file and take turns on one GPU, whoever made the file."""
    with made_users(2) as (alice, bob), reachable_directory() as directory:
        desk = ScheduleDesk(directory)
        for each in (directory, desk.directory):  # as /tmp is
            each.chmod(0o1777)
        try:
            first = desk.begin("sh -c 'until [ -e gate ]; do sleep 0.01; done'", "-fg", "0", user=alice)
            pid = first.wait_started()
            wait_until(lambda: desk.info()["user"][0] == alice.name)
            second = desk.begin(SAY_GPU, "-fg", "0", user=bob)
            second.wait_printed("is waiting for GPU 0.")
            code, _, err = desk.begin("-rg", "0", user=bob).end()
            assert (code, f"the task of {alice.name}, process {pid}:" in err) == (1, True)
            desk.open_gate("gate")
            assert first.end()[0] == 0
            assert "I have cuda0\n" in second.end()[1]
            assert desk.begin("-s", user=bob).end() == (0, FOUR_FREE, "")
            desk.info_path.chmod(0o644)
            code, out, err = desk.begin("true", user=bob).end()
            assert (code, gpu_of(out)) == (0, "cuda0")
            assert "cannot be updated: Permission denied" in err
        finally:
            desk.close()


def test_starts_light(desk: ScheduleDesk) -> None:
    """Neither the command line of stoker nor the driver is loaded for it."""
    program = "import sys, stoker.compat.schedule; print({'click', 'rich', 'psutil', 'pynvml'} & {*sys.modules})"
    assert desk.typed(f'{sys.executable} -c "{program}"').stdout == b"set()\n"
