"""schedule without a task: the info file, -i, -rg, -s, and what is refused."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from stoker.features.compat.schedule.command import main
from stoker.features.compat.schedule.info import find_info
from support.schedule import InfoFile

FOUR_FREE = "Free GPU:\n---------\nGPU 0\nGPU 1\nGPU 2\nGPU 3\n"


class Machine(InfoFile):
    """`schedule` typed on a machine with its own state, ledger and info file."""

    def __init__(self, directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.info_path = directory / "gpu_scheduler_info"
        self._capfd = capfd

    def schedule(self, *words: str) -> tuple[int, str, str]:
        code = main(words)
        return code, *self._capfd.readouterr()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Machine:
    monkeypatch.chdir(tmp_path)
    machine = Machine(tmp_path, capfd)
    for name, place in (("STATE", "state"), ("LEDGER", "ledger"), ("SCHEDULE_INFO", machine.info_path.name)):
        monkeypatch.setenv(f"STOKER_{name}", str(tmp_path / place))
    return machine


# -- the file --------------------------------------------------------------------------------------


def test_place_of_the_file() -> None:
    """It is /tmp/gpu_scheduler_info."""
    assert find_info({}) == Path("/tmp/gpu_scheduler_info")


def test_file_is_made_on_the_first_start(machine: Machine) -> None:
    """It is made for four GPUs, in the layout that other scripts read, so that every user can update it."""
    assert machine.schedule("-s") == (0, FOUR_FREE, "")
    columns = ["avail", "gpu_name", "task", "task_pid", "task_start", "user"]
    values = {name: "true" if name == "avail" else "null" for name in columns}
    lists = [f'    "{name}": [\n' + ",\n".join([f"        {values[name]}"] * 4) + "\n    ]" for name in columns]
    assert machine.info_path.read_text() == "{\n" + ",\n".join(lists) + "\n}"
    assert machine.info_path.stat().st_mode & 0o777 == 0o666


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
def test_corrupt_file(machine: Machine, text: str) -> None:
    """A file that cannot be understood is made anew, with a word."""
    machine.info_path.write_text(text, errors="surrogatepass")
    code, out, err = machine.schedule("--status")
    assert (code, out) == (0, FOUR_FREE)
    assert re.fullmatch(r"schedule: warning: \S+gpu_scheduler_info cannot be understood \(.*\)\n", err)
    assert machine.info()["avail"] == [True] * 4


@pytest.mark.parametrize(
    "text",
    [
        '{"avail": [1, 0], "task_pid": ["x", -1], "task": 7, "user": [[], {}]}',
        '{"avail": [true, false], "task_pid": [null, 99999999999999999999]}',
        '{"avail": [true, null], "gpu_name": [3], "task_start": [null, "never"], "more": {"a": NaN}}',
    ],
)
def test_odd_file(machine: Machine, text: str) -> None:
    """What makes no sense in it counts as not said, and a GPU that is not said to be available is not."""
    machine.info_path.write_text(text)
    assert machine.schedule("-s")[1].endswith("Free GPU:\n---------\nGPU 0\n")
    assert [bool(each) for each in machine.info()["avail"]] == [True, False]


@pytest.mark.parametrize("kind", ["directory", "symbolic link", "second name", "pipe"])
def test_something_else_in_its_place(machine: Machine, kind: str) -> None:
    """Nothing is written through it and a word is said; only -i cannot be done."""
    precious = machine.info_path.parent / "precious"
    precious.write_text("keep me")
    if kind == "directory":
        machine.info_path.mkdir()
    elif kind == "symbolic link":
        machine.info_path.symlink_to(precious)
    elif kind == "second name":
        os.link(precious, machine.info_path)
    else:
        os.mkfifo(machine.info_path)
    code, out, err = machine.schedule("-s")
    assert (code, out) == (0, FOUR_FREE)
    assert "schedule: warning: " in err
    assert machine.schedule("-i", "3")[0] == 1
    assert precious.read_text() == "keep me"


# -- what other scripts write ----------------------------------------------------------------------


def test_entry_of_another_script(machine: Machine) -> None:
    """An entry whose process lives is shown and not released; one whose number another process got frees itself."""
    machine.schedule("-i", "1")
    task = {"avail": False, "user": "ada", "gpu_name": "cuda0", "task": ["x", "-y"], "task_pid": os.getpid()}
    start = time.strftime("%Y-%m-%d %H:%M:%S")
    machine.mark(0, **task, task_start=start)
    shown = (
        "Currently used GPU:\n-------------------\n"
        f"GPU: cuda0\nUser: ada\nTask: ['x', '-y']\nTask PID: {os.getpid()}\nStarted: {start}\n\nNo GPU available.\n"
    )
    assert machine.schedule("-s") == (0, shown, "")
    kept = f"schedule: GPU 0 stays with the task of ada, process {os.getpid()}: it is free as soon as that ends\n"
    assert machine.schedule("-rg", "0") == (1, "", kept)
    machine.mark(0, task_start="2001-01-01 00:00:00")
    assert machine.schedule("-s")[1] == "Free GPU:\n---------\nGPU 0\n"


def test_status_shows_odd_entries_safely(machine: Machine) -> None:
    """Control characters of others do not reach the terminal."""
    machine.schedule("-i", "1")
    machine.mark(0, avail=False, user="\x1b[2J", gpu_name="\x07", task=["\x1b]0;x\x07"], task_pid=os.getpid())
    shown = machine.schedule("-s")[1]
    assert "User: \\x1b[2J\n" in shown
    assert shown.replace("\n", "").isprintable()


# -- options ---------------------------------------------------------------------------------------


def test_usage(machine: Machine, capfd: pytest.CaptureFixture[str]) -> None:
    """`schedule -h` shows every documented option, with its long name beside the short one."""
    with pytest.raises(SystemExit) as left:
        main(["-h"])
    out, err = capfd.readouterr()
    assert (left.value.code, err) == (0, "")
    assert out.startswith("usage: schedule [-h] [-gc GPU_COUNT] [-i INIT [INIT ...]] [-v] [-o [OUT]]")
    documented = (
        "gc gpu_count, i init, v verbose, o out, e err, pg prefered_gpu, fg forced_gpu, s status, rg release_gpu"
    )
    for short, long in (pair.split() for pair in f"{documented}, n num, p prefer, f force, r release".split(", ")):
        assert re.search(rf"^  -{short}\b.*, --{long}\b", out, re.MULTILINE), long


@pytest.mark.parametrize(("init", "release"), [("-i", "-rg"), ("--init", "-r")])
def test_init_and_release(machine: Machine, init: str, release: str) -> None:
    """-i 5 3 4 means that there are 5 GPUs, of which 3 and 4 are not used; -rg 3 4 releases them."""
    assert machine.schedule(init, "5", "3", "4") == (0, "", "")
    assert machine.info()["avail"] == [True, True, True, False, False]
    marked = [f"GPU: cuda{number}\nUser: None\nTask: None\nTask PID: None\nStarted: None\n\n" for number in (3, 4)]
    head = "Currently used GPU:\n-------------------\n"
    assert machine.schedule("-s")[1] == f"{head}{''.join(marked)}Free GPU:\n---------\nGPU 0\nGPU 1\nGPU 2\n"
    absent = "schedule: warning: there is no GPU 9; they are 0 to 4\n"
    assert machine.schedule(release, "3", "4", "9") == (0, "", absent)
    assert machine.info()["avail"] == [True] * 5


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-i", "5", "3", "task"], 2),
        (["-i", "0"], 2),
        (["-i", "99999"], 2),
        (["-i", "2", "2"], 2),
        (["-gc", "many", "true"], 2),
        (["-f", "1;3", "true"], 2),
        (["-f", "{}", "true"], 2),
        (["-f", "[1,1]", "true"], 2),
        (["-fg", "1", "-f", "1", "true"], 2),
        (["-o", "no/such/folder", "true"], 2),
        (["it's"], 2),
        (["--no-such-option", "true"], 2),
        (["-pg", "-1", "true"], 2),
        # A task that could never start is refused instead of waiting for ever.
        (["true", "-gc", "5"], 5),
        (["true", "-gc", "0"], 2),
        (["true", "-gc", "1", "-f", "[1,2]"], 2),
        (["true", "-fg", "4"], 5),
        (["true", "--forced_gpu", "4"], 5),
    ],
)
def test_refused_words(machine: Machine, words: list[str], code: int) -> None:
    """What cannot be is said in one line, and nothing runs."""
    got, out, err = machine.schedule(*words)
    assert (got, out, err.count("\n")) == (code, "", 1)
    assert err.startswith("schedule: error: ")


def test_refused_gpu(machine: Machine) -> None:
    """The sentence names the GPUs that are there."""
    expected = "schedule: error: there is no GPU 4; they are 0 to 3; set the number with: schedule -i N\n"
    assert machine.schedule("true", "-fg", "4") == (5, "", expected)


@pytest.mark.parametrize("words", [[], [""], ["-v"]])
def test_nothing_to_do(machine: Machine, words: list[str]) -> None:
    """Without a task the file is made, and a hint is given."""
    code, out, err = machine.schedule(*words)
    assert (code, out) == (0, "")
    assert "no task given" in err
    assert len(machine.info()["avail"]) == 4
