"""The live display on real terminals."""

from __future__ import annotations

import errno
import io
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from stoker.app.views.model import RunCounts, RunStatus
from stoker.cli.screens.run import LiveView
from support.cli import until
from support.terminal import Terminal, open_terminal
from support.views import a_device, a_run, a_run_job
from support.wait import wait_until

STOKER = [sys.executable, "-m", "stoker", "run"]
SLEEP = "sleep 600"


def interrupt_twice(terminal: Terminal) -> None:
    """Stop all; signals that are not yet taken count as one, so the answer to the first is waited for."""
    terminal.press("C-c")
    terminal.wait_for("stoker: starting no more jobs")
    terminal.press("C-c")
    terminal.wait_for("exit code 130")


class WorkerLost(io.StringIO):
    """What a terminal is for those who still have it open after it was closed."""

    def write(self, text: str) -> int:
        """As the kernel answers."""
        raise OSError(errno.EIO, text)


def a_list(directory: Path, *lines: str) -> str:
    """The name of a job list."""
    (directory / "jobs.txt").write_text("".join(f"{line}\n" for line in lines))
    return "jobs.txt"


def one_job(seconds: float) -> RunStatus:
    """One job on one GPU, after so many seconds."""
    return a_run([a_device("0", jobs=["1"])], [a_run_job(1, "lr=1", seconds)], elapsed=seconds)


def a_console(**settings: bool) -> tuple[Console, io.StringIO]:
    """A console that writes into a string as if that were a terminal."""
    written = io.StringIO()
    return Console(file=written, force_terminal=True, width=80, height=24, **settings), written  # type: ignore[arg-type]


def test_gpus_jobs_bar_and_summary_are_seen(tmp_path: Path) -> None:
    """While a list runs its GPUs and jobs are shown; afterwards only the summary is left."""
    jobs = a_list(tmp_path, "exit 3", until("go"), until("go"))
    with open_terminal(tmp_path) as terminal:
        terminal.start([*STOKER, "--sim", "2x24G", jobs], 100, 30)
        terminal.wait_for(
            " SIM  stoker run jobs.txt · 3 jobs · 2 GPUs · log dir ./stoker-runs/",
            " GPU0 ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒  0.0/24G  #",
            " ✗ #1",
            "exit 3",
            "stoker logs --sim 1",
            "1/3",
            "0 ok 1 failed 2 running 0 waiting",
        )
        (tmp_path / "go").touch()
        screen = terminal.wait_for("exit code 1")
        assert "2 ok, 1 failed" in screen
        assert "GPU0" not in screen
        assert "──" not in screen


def test_a_waiting_job_says_why(tmp_path: Path) -> None:
    """An idle GPU tells which job is next and what it waits for."""
    (tmp_path / "jobs.jsonl").write_text('{"command": "sleep 600"}\n{"command": "sleep 600", "gpus": 2}\n')
    with open_terminal(tmp_path) as terminal:
        terminal.start([*STOKER, "--devices", "0,1", "jobs.jsonl"], 80, 24)
        terminal.wait_for("idle: next (#2) needs 2 GPUs; 1 free", "1 running 1 waiting")
        interrupt_twice(terminal)


def test_one_interrupt_drains_and_a_second_stops(tmp_path: Path) -> None:
    """The first Ctrl-C is answered above the display and lets jobs run; the second ends them."""
    with open_terminal(tmp_path) as terminal:
        terminal.start([*STOKER, "--devices", "0", a_list(tmp_path, SLEEP, SLEEP)], 80, 24)
        terminal.wait_for("1 running 1 waiting")
        terminal.press("C-c")
        screen = terminal.wait_for("press again to stop them", "… starting no more jobs")
        assert screen.count("GPU0") == 1, "the display was not taken away before it was drawn again"
        terminal.press("C-c")
        screen = terminal.wait_for("exit code 130")
        assert "stopping 1 (TERM, then KILL after the grace time)" in screen
        assert "1 cancelled, 1 not started" in screen


@pytest.mark.parametrize(("width", "height"), [(60, 15), (40, 10), (120, 40)])
def test_sixteen_gpus_fit_on_any_terminal(tmp_path: Path, width: int, height: int) -> None:
    """The display is never taller than the terminal: its first and its last line are both seen."""
    with open_terminal(tmp_path) as terminal:
        terminal.start([*STOKER, "--sim", "16x24G", a_list(tmp_path, *[SLEEP] * 20)], width, height)
        terminal.wait_for(" SIM  stoker run jobs.txt", "0/20", "#16" if height > 20 else "more GPUs")
        interrupt_twice(terminal)


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1"}])
def test_terminals_that_cannot_be_drawn_on_get_lines(tmp_path: Path, variables: dict[str, str]) -> None:
    """Without cursor movements or the characters for bars every event is a line of its own."""
    words = ["env", *[f"{name}={value}" for name, value in variables.items()], *STOKER]
    with open_terminal(tmp_path) as terminal:
        terminal.start([*words, "--devices", "0", a_list(tmp_path, "true")], 80, 24)
        screen = terminal.wait_for("exit code 0")
        assert " start #1 gpu=0 true" in screen
        assert " done #1" in screen


def test_a_run_outlives_its_terminal(tmp_path: Path) -> None:
    """When the terminal is closed, what runs ends in peace and is recorded."""
    jobs = a_list(tmp_path, "touch started; while [ ! -e go ]; do sleep 0.05; done; touch ended")
    with open_terminal(tmp_path) as terminal:
        terminal.start([*STOKER, "--devices", "0", "--joblog", "log", jobs], 80, 24)
        terminal.wait_for("1 running")
        wait_until((tmp_path / "started").exists)
    (tmp_path / "go").touch()
    wait_until((tmp_path / "ended").exists)
    wait_until(lambda: "touch ended" in (tmp_path / "log").read_text())


def test_nothing_is_drawn_twice() -> None:
    """A frame that looks like the one on the screen costs no output."""
    console, written = a_console()
    view = LiveView(console)
    view.draw(one_job(1.0))
    length = len(written.getvalue())
    view.draw(one_job(1.2))
    assert len(written.getvalue()) == length
    view.draw(one_job(2.0))
    assert len(written.getvalue()) > length
    view.close()


def test_no_colour_means_no_colour() -> None:
    """With NO_COLOR no colour is set, and the text is the same."""
    console, written = a_console(no_color=True)
    view = LiveView(console)
    view.draw(one_job(1.0))
    view.close()
    assert "GPU0" in written.getvalue()
    assert not any(f"\x1b[{code}m" in written.getvalue() for code in (31, 32, 35, "1;31"))


def test_what_is_said_cannot_move_the_cursor() -> None:
    """Sentences are printed with everything unprintable escaped, and without markup."""
    console, written = a_console()
    view = LiveView(console)
    view.say("evil \x1b[2J [bold]name[/bold]")
    assert written.getvalue() == "stoker: evil \\x1b[2J [bold]name[/bold]\n"


def test_a_terminal_that_is_gone_is_left_alone() -> None:
    """A display whose terminal cannot be written any more does not end the run."""
    view = LiveView(Console(file=WorkerLost(), force_terminal=True, width=80, height=24))
    view.draw(one_job(1.0))
    view.say("hello")
    view.close()


def test_a_frame_is_cheap() -> None:
    """Drawing takes little of the processor, so that it never holds up the engine."""
    console, _ = a_console()
    view = LiveView(console)
    devices = [a_device(str(gpu), jobs=[str(3 * gpu + job) for job in range(3)]) for gpu in range(8)]
    jobs = [a_run_job(job, f"lr={job}", 1.0) for job in range(24)]
    view.draw(one_job(0.0))
    began = time.process_time()
    for seconds in range(20):
        view.draw(a_run(devices, jobs, counts=RunCounts(100, seconds), elapsed=float(seconds)))
    assert (time.process_time() - began) / 20 < 0.1
    view.close()


def test_keys_do_not_move_the_display(tmp_path: Path) -> None:
    """Enter leaves no copy of a line, and the terminal echoes again afterwards."""
    with open_terminal(tmp_path) as terminal:
        terminal.start([*STOKER, "--devices", "0", a_list(tmp_path, SLEEP, SLEEP)], 80, 24)
        terminal.wait_for("1 running 1 waiting")
        for key in ("Enter", "x", "Enter"):
            terminal.press(key)
        terminal.press("C-c")
        screen = terminal.wait_for("press again to stop them", "… starting no more jobs")
        assert screen.count("stoker run jobs.txt") == 1
        terminal.press("C-c")
        terminal.wait_for("exit code 130")
        terminal.press("z")
        terminal.wait_for("z")
