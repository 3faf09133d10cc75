"""The benchmarks run to their end at tiny sizes; what they measure is not looked at here."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from support.optional import require
from support.wait import wait_until

BENCH = Path(__file__).resolve().parents[2] / "bench"


def bench(script: str, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark as `make bench` does, in a directory of the test's own."""
    return subprocess.run(
        [sys.executable, BENCH / script, "--directory", directory, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


XARGS = ("--only", "xargs")
ALL = (*XARGS, "--only", "stoker run", "--only", "stoker submit")


@pytest.mark.parametrize(
    ("script", "words", "bar"),
    [
        ("dispatch.py", [*ALL, "--rounds", "1", "--jobs", "8", "--gap-jobs", "0"], "rate, stoker run / xargs"),
        ("lab.py", ["--users", "2", "--jobs", "3", "--rounds", "1"], "claim, with / before"),
        ("small.py", ["--jobs", "2", "--rounds", "1"], "ids of 2 jobs at Tab, ms of CPU"),
        ("web.py", ["--jobs", "3", "--rounds", "1", "--seconds", "1"], "end of a job seen, longest, s"),
        ("samples.py", ["--rounds", "1", "--jobs", "8"], "/ without samples"),
        ("keystrokes.py", ["--keys", "3"], "p99 above bash, ms"),
        ("long_list.py", ["--jobs", "20"], "engine's memory, MB"),
        ("gpu_task.py", ["--jobs", "4", "--rounds", "1"], "| stoker's GPUTaskScheduler |"),
        ("submit.py", ["--alone", "--singles", "1", "--jobs", "20", "--rounds", "1"], "one stoker submit, ms of CPU"),
        ("submit_busy.py", ["--alone", "--calls", "2", "--commands", "1", "--jobs", "20000"], "submit() p99 in ms"),
        ("waiting.py", ["--alone", "--jobs", "20", "--rounds", "1", "--seconds", "0.1"], "status --json, ms of CPU"),
        ("scale.py", ["--alone", "--tasks", "20", "--lines", "20", "--seconds", "0.1"], "cancel all, MB of the engine"),
        ("idle.py", ["--alone", "--seconds", "0.2", "--jobs", "8"], "stoker, declared devices, % of a core"),
        ("python_calls.py", ["--alone", "--rounds", "1", "--singles", "1", "--calls", "4"], "stoker.Executor.map"),
    ],
)
def test_it_measures_to_the_end(tmp_path: Path, script: str, words: list[str], bar: str) -> None:
    """Each benchmark prints its bars without any rival that must be installed, and leaves no process behind."""
    told = bench(script, tmp_path, *words)
    assert told.returncode == 0, told.stderr
    assert bar in told.stdout
    wait_until(lambda: not processes_below(tmp_path))  # the last ones may be about to end


def test_dispatch_measures_gaps_on_each_slot(tmp_path: Path) -> None:
    """Eight commands on four slots leave four gaps, stamped by a small C program."""
    require("cc")
    told = bench("dispatch.py", tmp_path, *XARGS, "--rounds", "1", "--jobs", "8", "--gap-jobs", "8")
    assert told.returncode == 0, told.stderr
    (row,) = [line for line in told.stdout.rpartition("gap between")[2].splitlines() if line.startswith("| xargs")]
    assert row.split("|")[-2].strip() == "4"


def test_packing_replays_the_traces_that_it_is_given(tmp_path: Path) -> None:
    """Without any it says so; with some it tells every policy and judges ours."""
    missing = bench("packing.py", tmp_path, "--traces", str(tmp_path))
    assert (missing.returncode, missing.stdout) == (0, "")
    assert "--traces names the directory" in missing.stderr
    rows = [f"2017-10-09 {number % 24:02}:00:00,{60 * number + 60},{1 + number % 2}" for number in range(40)]
    (tmp_path / "philly.csv").write_text("\n".join(["timestamp,duration,num_gpus", *rows]))
    (tmp_path / "gavel_throughputs.json").write_text('{"v100": {"(\'A3C\', 1)": {"null": 7.0}}}')
    told = bench("packing.py", tmp_path, "--traces", str(tmp_path), "--slices", "1", "--jobs", "30", "--rho", "0.9")
    assert told.returncode == 0, told.stderr
    assert "| stoker-auto: mean completion, fifo / ours" in told.stdout
    assert "| srtf-packing " in told.stdout


def processes_below(directory: Path) -> list[Path]:
    """The processes that have their home below a directory."""
    mark = f"\0HOME={directory}".encode()
    return [path for path in Path("/proc").glob("[0-9]*/environ") if mark in environment_of(path)]


def environment_of(path: Path) -> bytes:
    """What a process was started with; empty where it is gone."""
    with contextlib.suppress(OSError):
        return b"\0" + path.read_bytes()
    return b""
