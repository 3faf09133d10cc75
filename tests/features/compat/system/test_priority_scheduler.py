"""priority_scheduler, typed as in its document and in ways that hurt its users."""

from __future__ import annotations

import fcntl
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import Stoker
from support.mps import NAME as MPS_CONTROL
from support.mps import scripted
from support.shell import Running
from support.users import reachable_directory
from support.wait import wait_until

HEADER = "Directory,Executable,Filename,Epochs,Priority"
PROGRAM = str(Path(sys.executable).parent / "priority_scheduler")
SCRIPT = """\
name=$1; shift
echo "$name $* $(basename "$PWD")" >> "$RUNS"
"""
"""Notes that it ran, with what and where."""
GATED = SCRIPT + 'case "$*" in --epochs=2*) ;; *) until [ -e "$GATE" ]; do sleep 0.02; done ;; esac\n'
"""Waits for the gate when it is trained."""
TRAIN = """\
import os, subprocess, sys
memory, epochs = sys.argv[1], int(sys.argv[2].removeprefix("--epochs="))
def note(word):
    with open("runs", "a") as runs:
        runs.write(f"{word} {epochs} {os.environ['STOKER_GPU_IDS']}\\n")
note("begin")
options = ["--memory", memory, "--load", "70", "--seconds", str(0.4 * epochs)]
job = [sys.executable, "-m", "stoker.devices.demo_job", *options]
code = subprocess.call(job)
note("end")
sys.exit(code)
"""
"""Holds memory of a simulated GPU for as long as its epochs take."""


class Place(Stoker):
    """A place with a CSV file and scripts that its rows name."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.environment |= {
            "STOKER_SIM": "1x24G",
            "RUNS": str(self.cwd / "runs"),
            "GATE": str(self.cwd / "gate"),
            "XDG_CONFIG_HOME": str(home),
        }
        self.csv = self.cwd / "tasks.csv"
        (self.cwd / "task.sh").write_text(SCRIPT)
        (self.cwd / "gated.sh").write_text(GATED)
        self.schedulers: list[Running] = []

    def tasks(self, *rows: str) -> None:
        """Write the CSV."""
        self.csv.write_text("".join(f"{line}\n" for line in (HEADER, *rows)))

    def left(self) -> list[str]:
        """The rows that are in the CSV."""
        return self.csv.read_text().splitlines()[1:]

    def begin(self, *words: str) -> Running:
        """Start the scheduler and leave it running."""
        self.schedulers.append(Running([PROGRAM, *words], self.cwd, self.environment))
        return self.schedulers[-1]

    def schedule(self, *words: str) -> tuple[int, list[str], str]:
        """Exit code, lines of standard output, and standard error."""
        return ended(self.begin("--csv", "tasks.csv", "--mps", "no", *words))

    def close(self) -> None:
        for scheduler in self.schedulers:
            scheduler.process.kill()
            scheduler.process.wait(timeout=60)
        super().close()


def ended(scheduler: Running) -> tuple[int, list[str], str]:
    """The same of a scheduler that was begun."""
    code, printed, said = scheduler.end()
    return code, printed.splitlines(), said


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.close()


# -- the document ----------------------------------------------------------------------------------


def test_document_default_tasks(place: Place) -> None:
    """`commands.csv` is copied to `commands_1.csv` in `scheduler_files/`, and the program run without arguments."""
    files = place.cwd / "scheduler_files"
    (place.cwd / "vision").mkdir()
    files.mkdir()
    (files / "commands_1.csv").write_text(
        f"{HEADER}\n.,sh,task.sh slow,50,3\nvision,/bin/sh,../task.sh urgent,10,1\n.,sh,task.sh normal,20,2\n"
    )
    (files / "counter.txt").write_text("7")
    code, printed, said = ended(place.begin("--mps", "False"))
    assert code == 0, said
    lines = [
        "return-code for ../task.sh urgent (priority 1) 7: 0",
        "return-code for task.sh normal (priority 2) 8: 0",
        "return-code for task.sh slow (priority 3) 9: 0",
    ]
    assert printed[:5] == ["Number of files: 3", *lines, "peak_mems: [0, 0, 0]"]
    assert [line for line in printed[5:] if line != "Waiting..."] == lines
    assert place.lines("runs") == [
        "urgent --epochs=2 --id=7 vision",
        "normal --epochs=2 --id=8 work",
        "slow --epochs=2 --id=9 work",
        "urgent --epochs=10 --id=7 vision",
        "normal --epochs=20 --id=8 work",
        "slow --epochs=50 --id=9 work",
    ]
    assert (files / "commands_1.csv").read_text() == f"{HEADER}\n"
    assert (files / "counter.txt").read_text() == "10"
    assert said == "priority_scheduler: 3 tasks done\n"


def test_document_batches(place: Place) -> None:
    """The file is taken in batches in its order, and priorities count within each."""
    place.tasks(*(f".,sh,task.sh {name},5,{priority}" for name, priority in zip("abcde", (9, 8, 7, 6, 5), strict=True)))
    code, printed, _ = place.schedule("--num", "2")
    assert code == 0
    assert [line for line in printed if line.startswith("Number")] == [f"Number of files: {k}" for k in (2, 2, 1)]
    trained = [line.split()[0] for line in place.lines("runs") if "--epochs=5" in line]
    assert [set(trained[:2]), set(trained[2:4]), trained[4]] == [{"a", "b"}, {"c", "d"}, "e"]
    assert [line.split()[0] for line in place.lines("runs") if "--epochs=2" in line] == ["b", "a", "d", "c", "e"]


def test_document_memory_decides(place: Place) -> None:
    """Profile runs go one by one; then as many tasks are trained at once, on all GPUs, as their peaks leave room."""
    place.environment["STOKER_SIM"] = "2x10G"
    (place.cwd / "train.py").write_text(TRAIN)
    place.tasks(*[".,-1,train.py 4G,4,1"] * 5)
    code, printed, said = place.schedule()
    assert code == 0, said
    runs = [line.split() for line in place.lines("runs")]
    assert [word for word, epochs, _ in runs if epochs == "2"] == ["begin", "end"] * 5
    running = most = 0
    for word, epochs, _ in runs:
        if epochs == "4":
            running += 1 if word == "begin" else -1
            most = max(most, running)
    assert most == 4
    assert {gpu for _, epochs, gpu in runs if epochs == "4"} == {"0", "1"}
    assert f"peak_mems: {[4 * 2**30] * 5}" in printed
    assert "Waiting..." in printed


TASK_A = ".,sh,task.sh a,5,1\n"
ABOVE = f"exported yesterday\n{HEADER}\n"


@pytest.mark.parametrize(
    ("before", "words", "after", "runs"),
    [
        # Without a header the columns are in the documented order; what stands above a header stays.
        (TASK_A, ["--header", "None"], "", 2),
        (ABOVE + TASK_A, ["--header", "1"], ABOVE, 2),
        (f"{HEADER}\n{TASK_A}{TASK_A}", ["--keep"], f"{HEADER}\n{TASK_A}{TASK_A}", 4),
    ],
    ids=["no header", "header below", "kept"],
)
def test_what_becomes_of_the_file(place: Place, before: str, words: list[str], after: str, runs: int) -> None:
    """Rows that succeeded are gone, and all else stays; with --keep everything does."""
    place.csv.write_text(before)
    assert place.schedule(*words)[0] == 0
    assert (place.csv.read_text(), len(place.lines("runs"))) == (after, runs)


def test_document_mps(place: Place) -> None:
    """Trainings are clients of MPS with the share of threads that was asked for, and its daemon ends with them."""
    place.tasks(".,sh,mps.sh,5,1", ".,sh,mps.sh,6,1")
    (place.cwd / "mps.sh").write_text('echo "$1 ${CUDA_MPS_ACTIVE_THREAD_PERCENTAGE-none}" >> "$RUNS"\n')
    with reachable_directory() as short:
        scripted(short)
        place.environment |= {"PATH": f"{short}:{place.environment['PATH']}", "STOKER_MPS_DIR": str(short / "mps")}
        code, printed, said = ended(place.begin("-c", "tasks.csv", "--thread_percentage", "30"))
        assert (code, said) == (0, "priority_scheduler: 2 tasks done\n")
        (lock,) = short.glob("mps/*/pipe/control_lock")
        wait_until(lambda: _is_free(lock))
    assert "env_value: 30" in printed
    assert place.lines("runs") == ["--epochs=2 none", "--epochs=2 none", "--epochs=5 30", "--epochs=6 30"]


@pytest.mark.skipif(shutil.which(MPS_CONTROL) is not None, reason="it is installed")
def test_mps_is_not_installed(place: Place) -> None:
    """It is said once, and tasks run without."""
    place.tasks(".,sh,task.sh a,5,1", ".,sh,task.sh b,5,1")
    code, _, said = place.begin("-c", "tasks.csv").end()
    assert code == 0
    assert said.count(f"MPS is not used: {MPS_CONTROL} is not found") == 1


def _is_free(lock: Path) -> bool:
    with lock.open("rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


# -- what its users got hurt by --------------------------------------------------------------------


def test_failures(place: Place) -> None:
    """A row that fails stays and is summed up, one whose profile fails is not trained, and the others run."""
    (place.cwd / "late.sh").write_text('case $1 in --epochs=2) exit 0;; esac\necho "loss is nan" >&2\nkill -9 $$\n')
    rows = [
        ".,sh,task.sh well,5,1",
        "nowhere,sh,task.sh a,5,1",
        ".,no-such-python,task.sh b,5,1",
        ".,sh,missing.sh,5,1",
        ".,sh,late.sh,5,1",
        ".,sh,task.sh c,5,high",
    ]
    place.tasks(*rows)
    code, printed, said = place.schedule()
    assert code == 1
    assert place.left() == rows[1:]
    assert len(place.lines("runs")) == 2
    assert "return-code for late.sh (priority 1) 4: -9" in printed
    summary = said.partition("1 task done, 5 failed and left in tasks.csv\n")[2]
    for sentence in (
        "tasks.csv line 7: its Priority is 'high'",
        "task.sh a (priority 1) 1: exit 126 in its profile run: cannot enter",
        "task.sh b (priority 1) 2: exit 127 in its profile run: no-such-python: command not found",
        "missing.sh (priority 1) 3: exit",
        "late.sh (priority 1) 4: signal 9: loss is nan",
    ):
        assert sentence in summary


def test_much_output(place: Place) -> None:
    """A task that prints more than a pipe holds is not held up, and all of it is in its log."""
    (place.cwd / "loud.sh").write_text("yes | head -c 300000\n")
    place.tasks(".,sh,loud.sh,5,1")
    assert place.schedule()[0] == 0
    (log,) = place.cwd.glob("stoker-runs/*/task-0.log")
    assert log.stat().st_size == 300_000


def test_rows_are_appended_meanwhile(place: Place) -> None:
    """They are taken in the next batch, and none is lost though rows before them are removed."""
    place.tasks(".,sh,task.sh a,5,1", ".,sh,gated.sh b,5,2")
    scheduler = place.begin("-c", "tasks.csv", "-m", "0")
    place.wait_lines("runs", 4)
    wait_until(lambda: len(place.left()) == 1)
    with place.csv.open("a") as file:
        file.write(".,sh,task.sh c,5,1\n")
    (place.cwd / "gate").touch()
    assert scheduler.end()[0] == 0
    assert [line.split()[0] for line in place.lines("runs")].count("c") == 2
    assert place.left() == []


def test_the_file_vanishes(place: Place) -> None:
    """What runs goes on; nothing more is taken; both are said, and the exit code tells."""
    place.tasks(".,sh,gated.sh a,5,1", ".,sh,task.sh b,5,1")
    scheduler = place.begin("-c", "tasks.csv", "-n", "1", "-m", "no")
    place.wait_lines("runs", 2)
    place.csv.unlink()
    (place.cwd / "gate").touch()
    code, printed, said = ended(scheduler)
    assert code == 1
    assert printed[-1] == "return-code for gated.sh a (priority 1) 0: 0"
    assert "tasks.csv cannot be updated: No such file or directory" in said
    assert "no more tasks are read from tasks.csv" in said


# -- interruptions ---------------------------------------------------------------------------------


def test_terminated_and_started_again(place: Place) -> None:
    """SIGTERM stops the tasks; their rows stay, and go on under their numbers without another profile run."""
    place.tasks(".,sh,gated.sh a,5,1", ".,sh,task.sh b,5,1")
    scheduler = place.begin("-c", "tasks.csv", "-m", "no")
    wait_until(lambda: any("a --epochs=5" in line for line in place.lines("runs")))
    scheduler.process.send_signal(signal.SIGTERM)
    assert scheduler.end()[0] == 128 + signal.SIGTERM
    wait_until(lambda: not place.job_processes())
    assert len(place.left()) == 2
    assert len(place("status", "--plain", "--sim").out.splitlines()) == 1  # nothing is left in the queue
    (place.cwd / "gate").touch()
    assert place.schedule()[0] == 0
    assert place.left() == []
    assert [line for line in place.lines("runs") if line.startswith("a")] == [
        "a --epochs=2 --id=0 work",
        "a --epochs=5 --id=0 work",
        "a --epochs=5 --id=0 work",
    ]


def test_interrupted(place: Place) -> None:
    """Ctrl-C lets running tasks finish, whose rows go; what has not begun stays."""
    place.tasks(".,sh,gated.sh a,5,1", ".,sh,task.sh b,5,1")
    scheduler = place.begin("-c", "tasks.csv", "-n", "1", "-m", "no")
    place.wait_lines("runs", 2)
    scheduler.process.send_signal(signal.SIGINT)
    scheduler.wait_said("starting no more jobs")
    (place.cwd / "gate").touch()
    code, _, said = scheduler.end()
    assert (code, place.left()) == (128 + signal.SIGINT, [".,sh,task.sh b,5,1"])
    assert "1 task done" in said


def test_killed_while_tasks_run(place: Place) -> None:
    """They run on; the next scheduler waits for them and runs none of them twice."""
    place.tasks(".,sh,gated.sh a,5,1")
    first = place.begin("-c", "tasks.csv", "-m", "no")
    place.wait_lines("runs", 2)
    first.process.kill()
    first.process.wait(timeout=60)
    second = place.begin("-c", "tasks.csv", "-m", "no")
    wait_until(lambda: "peak_mems: [0]" in second.printed)
    (place.cwd / "gate").touch()
    assert second.end()[0] == 0
    assert [place.left(), len(place.lines("runs"))] == [[], 2]


def test_killed_when_they_had_succeeded(place: Place) -> None:
    """A row whose task succeeded while nobody looked is removed, and not run again."""
    place.tasks(".,sh,gated.sh a,5,1")
    first = place.begin("-c", "tasks.csv", "-m", "no")
    place.wait_lines("runs", 2)
    first.process.kill()
    first.process.wait(timeout=60)
    (place.cwd / "gate").touch()
    wait_until(lambda: not place.job_processes())
    code, _, said = place.schedule()
    assert [code, place.left(), len(place.lines("runs"))] == [0, [], 2], said


def test_killed_again_and_again(place: Place) -> None:
    """Whenever it dies, no row is lost, no number is used for two rows, and in the end all have succeeded."""
    names = [f"t{number}" for number in range(6)]
    place.tasks(*(f".,sh,task.sh {name},5,1" for name in names))
    for delay in (0.35, 0.5, 0.45, 0.6, 0.4):
        scheduler = place.begin("-c", "tasks.csv", "-n", "2", "-m", "no")
        try:
            scheduler.process.wait(delay)
        except subprocess.TimeoutExpired:
            scheduler.process.kill()
            scheduler.process.wait(timeout=60)
        trained = {line.split()[0] for line in place.lines("runs") if "--epochs=5" in line}
        assert {row.split()[-1].split(",")[0] for row in place.left()} | trained == set(names)
    assert place.schedule()[0] == 0
    assert place.left() == []
    runs = [line.split() for line in place.lines("runs")]
    assert {name for name, epochs, *_ in runs if epochs == "--epochs=5"} == set(names)
    assert all(len({name for name, _, number, _ in runs if number == each}) == 1 for _, _, each, _ in runs)


# -- bad input -------------------------------------------------------------------------------------


def test_more_than_the_machine_has(place: Place) -> None:
    """A row that asks for more than there is fails with a word, and the others run."""
    place.csv.write_text(f"gpus,vram,{HEADER}\n2,,.,sh,task.sh a,5,1\n,90G,.,sh,task.sh b,5,1\n,,.,sh,task.sh c,5,1\n")
    code, _, said = place.schedule()
    assert code == 1
    assert "line 2 is left out: needs 2 GPUs; this machine has 1" in said
    assert "line 3 is left out: needs 90.0G on a GPU; the largest has 24.0G" in said
    assert len(place.lines("runs")) == 2


# -- the same file in newer words ------------------------------------------------------------------


def test_as_a_list_of_stoker_run(place: Place) -> None:
    """Each row is run once with its epochs, in its directory, lower priorities first; the file is left alone."""
    (place.cwd / "models").mkdir()
    rows = ("models,sh,../task.sh a,5,2", ".,sh,task.sh b,6,1", ".,sh,task.sh c,x,1")
    place.tasks(*rows)
    result = place("run", "tasks.csv")
    assert result.code == 1
    assert place.lines("runs") == ["b --epochs=6 --id=1 work", "a --epochs=5 --id=0 models"]
    assert "tasks.csv line 4 is left out: its Epochs is 'x'" in result.err
    assert place.left() == list(rows)
