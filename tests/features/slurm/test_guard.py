"""The first process of a task: nothing that came from it is left when it ends, and a check finds what is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.core.launch import attempt_key
from stoker.features.slurm.guard import OVER, check, gone_line, tell
from stoker.features.slurm.pilot.files import Leaving, Over, PilotFolder, PilotPlan
from stoker.runner import processes
from support.reaper import is_alive
from support.wait import PATIENCE_SECONDS, ending, wait_until

GUARD = """
import os, signal, sys
from stoker.features.slurm.guard import guard
line, at_death = sys.argv[1:]
guard(lambda: os.execv("/bin/sh", ["sh", "-c", line]), lambda code: print("over", code, flush=True), int(at_death))
"""
DAEMON = "setsid sh -c 'echo $$ > daemon; exec sleep 60' & while ! [ -s daemon ]; do sleep 0.01; done; "
"""A process that leaves its session; its parent is soon gone."""


def guarded(cwd: Path, line: str, *wrapper: str) -> subprocess.Popen[str]:
    words = [*wrapper, sys.executable, "-c", GUARD, line, str(int(signal.SIGKILL))]
    return subprocess.Popen(words, cwd=cwd, stdout=subprocess.PIPE, text=True)


def daemon(cwd: Path) -> int:
    wait_until(lambda: (cwd / "daemon").exists() and (cwd / "daemon").read_text().strip())
    return int((cwd / "daemon").read_text())


@pytest.mark.parametrize(("last", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_it_ends_after_all_that_came_from_it(tmp_path: Path, last: str, code: int) -> None:
    """Also what left its session; and the exit code is that of the program, as a shell tells it."""
    with ending(guarded(tmp_path, DAEMON + last)) as guard:
        assert guard.communicate(timeout=PATIENCE_SECONDS)[0] == f"over {code}\n"
    assert guard.returncode == code
    assert not is_alive(daemon(tmp_path))


HOPPING = """
import os, time
for hop in range(4000):
    if os.fork():
        os._exit(3)
time.sleep(60)
"""


def test_what_flees_is_killed(tmp_path: Path) -> None:
    """A process that forks and ends again and again is somewhere else at each look."""
    program = tmp_path / "hopping.py"
    program.write_text(HOPPING)
    with ending(guarded(tmp_path, f"exec {sys.executable} {program}")) as guard:
        assert guard.communicate(timeout=PATIENCE_SECONDS)[0] == "over 3\n"
        assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if bytes(program) in _content(path)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_signals_reach_the_program(tmp_path: Path) -> None:
    """Slurm sends some of them to its first process alone."""
    line = "trap 'exit 5' USR1; touch ready; while :; do sleep 0.01; done"
    with ending(guarded(tmp_path, line)) as guard:
        wait_until((tmp_path / "ready").exists)
        guard.send_signal(signal.SIGUSR1)
        assert guard.communicate(timeout=PATIENCE_SECONDS)[0] == "over 5\n"


def test_the_program_dies_with_it(tmp_path: Path) -> None:
    """The kernel kills the program of a guard that was killed."""
    with ending(guarded(tmp_path, "echo $$ > daemon; exec sleep 60")) as guard:
        program = daemon(tmp_path)
        guard.kill()
    wait_until(lambda: not is_alive(program))


def test_it_ends_with_the_process_of_slurm(tmp_path: Path) -> None:
    """Its parent is killed, and Slurm will give the GPUs to another job."""
    words = ["sh", "-c", '"$@"; true', "step"]
    with ending(guarded(tmp_path, "echo $$ > daemon; exec sleep 60", *words)) as step:
        program = daemon(tmp_path)
        step.kill()
        wait_until(lambda: not is_alive(program))
        assert step.communicate(timeout=PATIENCE_SECONDS)[0] == "over 137\n"


def test_a_check_kills_what_is_left(tmp_path: Path) -> None:
    """Processes of the allocation and all below them, though none of their parents lives; no others."""
    allocation, journal = str(tmp_path / "bundle/3"), tmp_path / "journal"
    journal.write_bytes(b"S 7.1 1.0 n1 -\nE 7.")
    marked, other = ({**os.environ, processes.ALLOCATION: name} for name in (allocation, f"{allocation}1"))
    with ending(subprocess.Popen(["sleep", "60"], env=other)) as spared:
        subprocess.run(["sh", "-c", DAEMON], cwd=tmp_path, env=marked, check=True, timeout=PATIENCE_SECONDS)
        left = daemon(tmp_path)
        assert is_alive(left)
        check(allocation, str(journal), gone_line(attempt_key(7, 1)))
        assert not is_alive(left)
        assert is_alive(spared.pid)
        spared.kill()
    assert journal.read_text().splitlines()[-1] == "G 7.1"


def test_a_second_job_for_a_pilot_does_nothing(tmp_path: Path) -> None:
    """Slurm may have taken it twice; only the first tells when nothing is left of the pilot."""
    folder = PilotFolder(tmp_path / "pilot1")
    folder.make_pilot(PilotPlan("lab", "", 1.0))
    words = [sys.executable, "-m", "stoker.features.slurm.guard", "pilot", folder.path, "/usr/bin/touch"]
    for name in ("first", "second"):
        subprocess.run([*words, str(tmp_path / name)], check=True, timeout=PATIENCE_SECONDS)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["first"]
    assert folder.read_events(0)[0] == [Over()]


def test_news_of_a_pilot_that_died_in_a_line(tmp_path: Path) -> None:
    """The last line stays unread, and that nothing is left of the pilot is read."""
    folder = PilotFolder(tmp_path / "pilot1")
    folder.make_pilot(PilotPlan("lab", "", 1.0))
    folder.report([Leaving()])
    news = Path(folder.at("events"))
    with news.open("ab") as file:
        file.write(b'{"type":"rep')
    tell(str(news), OVER)
    assert folder.read_events(0)[0] == [Leaving(), Over()]
