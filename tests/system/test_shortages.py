"""A machine that is short of something: no job fails for it, and none runs twice because its worker died."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from stoker.core.job import Ended
from stoker.core.spec import Dependency, Resources
from support.background import Background
from support.cli import PROGRAM
from support.disk import small_disk
from support.local import holders
from support.users import made_users, reachable_directory, typed_by
from support.wait import PATIENCE_SECONDS, ending, wait_until

CPU = Resources(gpus=0)
ALONE = "exec 8>>only.$STOKER_JOB_ID; flock -n 8 || echo twice >> twice; echo $$ >> ran.$STOKER_JOB_ID; "
"""The kernel shows a second run at once: descriptor 8 is inherited by all that follows."""


def limit_processes(pids: Iterable[int], most: int) -> None:
    """Let processes have no children beyond a number, all processes of their user counted."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NPROC, (most, resource.RLIM_INFINITY))


def test_no_processes() -> None:
    """Starts that fail for want of processes are tried again: all jobs are done in the end, each in one try."""
    with made_users(1) as (user,), reachable_directory() as home:
        os.chown(home, user.uid, user.gid)
        environment = {
            **os.environ,
            "HOME": str(home),
            "STOKER_STATE": f"{home}/state",
            "STOKER_LEDGER": f"{home}/ledger",
        }
        (home / "list").write_text(
            "touch up; while ! [ -e go ]; do sleep 0.05; done\n" + "echo $STOKER_ATTEMPT >> tries\n" * 8
        )
        command = typed_by(user, PROGRAM, "run", "-G", "0", "-j", "2", "--plain", "list")
        with ending(
            subprocess.Popen(
                command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        ) as run:
            wait_until((home / "up").exists)
            processes = [process.pid for process in psutil.Process(run.pid).children(recursive=True)]
            workers = [process.pid for lock in home.glob("state/*/keepers/*/lock") for process in holders(lock)]
            limit_processes({*processes, *workers}, 1)
            (home / "go").touch()
            status = [PROGRAM, "engine", "status"]
            wait_until(
                lambda: (
                    b"temporarily unavailable" in b"".join(p.read_bytes() for p in home.glob("state/*/engines/*.view"))
                )
            )
            assert status
            workers = [process.pid for lock in home.glob("state/*/keepers/*/lock") for process in holders(lock)]
            limit_processes({*processes, *workers}, resource.RLIM_INFINITY)
            out, _ = run.communicate(timeout=PATIENCE_SECONDS)
            assert run.returncode == 0, out
        assert (home / "tries").read_text() == "1\n" * 8


def test_no_room_for_logs(background: Background) -> None:
    """Jobs whose output has no place wait and say why; others run; dependants are not skipped."""
    with small_disk(background.cwd / "small", "size=1m,nr_inodes=3") as disk:
        for number in range(2):
            (disk / f"ballast{number}").touch()
        short = background.submit(*["true"] * 5, resources=CPU, out=str(disk / "%j.log"))
        (after,) = background.submit("true", resources=CPU, after=(Dependency(short[0]),))
        (other,) = background.submit("true", resources=CPU)
        background.wait_over(other)
        wait_until(lambda: "No space left on device" in background("engine", "status").out)
        assert "cannot write its output" in background("status", "--plain").out
        assert not any(isinstance(background.job(job).state, Ended) for job in (*short, after))
        for number in range(2):
            (disk / f"ballast{number}").unlink()
        subprocess.run(["mount", "-o", "remount,nr_inodes=100", disk], check=True, timeout=PATIENCE_SECONDS)
        background.wait_over(*short, after)
    assert {background.ended(job).result for job in (*short, after)} == {"done"}
    assert {background.job(job).tries for job in short} == {1}


def kill_worker_of(pid: int) -> None:
    """Kill the worker of a process, which is its oldest ancestor before the forkserver's."""
    os.kill(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)


@pytest.mark.parametrize("gpus", [0, 1])
@pytest.mark.parametrize("way", ["exec env -i sleep 1000", "env -i setsid sleep 1000 8>&8 & exec env -i sleep 1000"])
def test_a_killed_worker(background: Background, gpus: int, way: str) -> None:
    """Its job runs again only when nothing of the first run lives, though it has another environment."""
    line = f"{ALONE} [ -e again ] && exit 0; touch again; {way}"
    (job,) = background.submit(line, resources=Resources(gpus=gpus))
    ran = background.cwd / f"ran.{job}"
    wait_until(lambda: ran.exists() and (background.cwd / "again").exists())
    first = int(ran.read_text())
    kill_worker_of(first)
    background.wait_over(job)
    assert (background.ended(job).result, background.job(job).losses) == ("done", 1)
    assert len(ran.read_text().split()) == 2
    assert not (background.cwd / "twice").exists()


def test_a_damaged_journal(background: Background) -> None:
    """The engine starts, says what is wrong, and serves all others; the exit code behind the damage counts."""
    (job,) = background.submit("touch up; while ! [ -e go ]; do sleep 0.05; done; exit 5", resources=CPU)
    wait_until((background.cwd / "up").exists)
    background.wait_word("running", job)
    background.kill_engine()
    (journal,) = background.paths.workers.glob("*/journal")
    with journal.open("r+b") as file:
        file.write(b"GARBAGE \xff\xfe line\n")
    background.start_engine()
    (other,) = background.submit("true", resources=CPU)
    background.wait_over(other)
    assert "is damaged" in background("engine", "status").out
    background.open_gate("go")
    background.wait_over(job)
    assert background.ended(job).code == 5
    assert list(background.paths.damaged_journals.iterdir())
