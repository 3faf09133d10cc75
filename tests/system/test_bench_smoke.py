"""The benchmarks run to their end at tiny sizes; what they measure is not looked at here."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from support.optional import require

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


def test_dispatch_names_every_bar_that_it_can_judge(tmp_path: Path) -> None:
    """A round of xargs and stoker ends with both rates and the bar between them."""
    told = bench(
        "dispatch.py", tmp_path, "--only", "xargs", "--only", "stoker run", "--rounds", "1", "--jobs", "8",
        "--gap-jobs", "0",
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "| xargs " in told.stdout
    assert "rate, stoker run / xargs" in told.stdout
    assert "gap" not in told.stdout


def test_small_costs_have_their_bars(tmp_path: Path) -> None:
    """Importing and pressing Tab are measured over what an empty Python takes."""
    told = bench("small.py", tmp_path, "--jobs", "2", "--rounds", "1")
    assert told.returncode == 0, told.stderr
    assert "import stoker; stoker.report, ms of CPU" in told.stdout
    assert "ids of 2 jobs at Tab, ms of CPU" in told.stdout


def test_web_server_has_its_bars(tmp_path: Path) -> None:
    """A table, one job that ends, and an idle second are enough to judge all of them but the page."""
    told = bench("web.py", tmp_path, "--jobs", "3", "--rounds", "1", "--seconds", "1")
    assert told.returncode == 0, told.stderr
    assert "first table, ms of server CPU" in told.stdout
    assert "end of a job seen, longest, s" in told.stdout


def test_samples_are_compared_with_none(tmp_path: Path) -> None:
    """Three kinds of engines run a short list, and both kinds with samples have a bar."""
    told = bench("samples.py", tmp_path, "--rounds", "1", "--jobs", "8")
    assert told.returncode == 0, told.stderr
    assert told.stdout.count("/ without samples") == 2


def test_keystrokes_are_echoed_in_both_shells(tmp_path: Path) -> None:
    """A few keys in bash and in a session end with both rows and the bar between them."""
    told = bench("keystrokes.py", tmp_path, "--keys", "3")
    assert told.returncode == 0, told.stderr
    assert "| stoker shell " in told.stdout
    assert "p99 above bash, ms" in told.stdout


def test_dispatch_measures_gaps_on_each_slot(tmp_path: Path) -> None:
    """Eight commands on four slots leave four gaps, stamped by a small C program."""
    require("cc")
    told = bench(
        "dispatch.py", tmp_path, "--only", "xargs", "--rounds", "1", "--jobs", "8", "--gap-jobs", "8"
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    (row,) = [line for line in told.stdout.rpartition("gap between")[2].splitlines() if line.startswith("| xargs")]
    assert row.split("|")[-2].strip() == "4"


def test_dispatch_refuses_a_program_it_does_not_know(tmp_path: Path) -> None:
    """A wrong name is answered with the right ones."""
    told = bench("dispatch.py", tmp_path, "--only", "slurm")
    assert told.returncode != 0
    assert "stoker run" in told.stderr


def test_long_list_tells_rates_memory_and_first_start(tmp_path: Path) -> None:
    """Even twenty commands have a first start, ten parts and a peak of memory."""
    told = bench("long_list.py", tmp_path, "--jobs", "20")
    assert told.returncode == 0, told.stderr
    assert "first start after" in told.stdout
    assert "engine's memory, MB" in told.stdout


def test_dispatch_goes_through_the_durable_queue(tmp_path: Path) -> None:
    """A list submitted to the queue is run by an engine in the background, which is gone at the end."""
    told = bench(
        "dispatch.py", tmp_path, "--only", "stoker submit", "--rounds", "1", "--jobs", "8", "--gap-jobs", "0"
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    assert "| stoker submit " in told.stdout


def test_gpu_task_measures_ours_beside_bare_processes(tmp_path: Path) -> None:
    """Without a checkout of the original, ours is measured beside Python processes with nothing around them."""
    told = bench("gpu_task.py", tmp_path, "--jobs", "4", "--rounds", "1")
    assert told.returncode == 0, told.stderr
    assert "name a checkout of it with --original DIR" in told.stderr
    assert "| stoker's GPUTaskScheduler |" in told.stdout


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


@pytest.mark.parametrize(
    ("script", "words", "bar"),
    [
        ("submit.py", ["--singles", "1", "--jobs", "20", "--rounds", "1"], "one stoker submit, ms of CPU"),
        ("submit_busy.py", ["--calls", "2", "--commands", "1", "--jobs", "50000"], "queue.submit() p99 in ms"),
        ("waiting.py", ["--jobs", "20", "--rounds", "1", "--seconds", "0.1"], "stoker status --json, ms of CPU"),
        ("idle.py", ["--seconds", "0.2", "--jobs", "8"], "stoker, declared devices, % of a core"),
        ("python_calls.py", ["--rounds", "1", "--singles", "1", "--calls", "4"], "stoker.Executor.map"),
    ],
)
def test_the_queue_alone_is_measured_to_the_end(tmp_path: Path, script: str, words: list[str], bar: str) -> None:
    """Each benchmark of the queue tells its bars without any rival, and leaves no process behind."""
    told = bench(script, tmp_path, "--alone", *words)
    assert told.returncode == 0, told.stderr
    assert bar in told.stdout
    assert not processes_below(tmp_path)


def processes_below(directory: Path) -> list[Path]:
    """The processes that have their home below a directory."""
    mark = f"\0HOME={directory}".encode()
    return [path for path in Path("/proc").glob("[0-9]*/environ") if mark in environment_of(path)]


def environment_of(path: Path) -> bytes:
    """What a process was started with; empty where it is gone."""
    with contextlib.suppress(OSError):
        return b"\0" + path.read_bytes()
    return b""
