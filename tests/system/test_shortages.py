"""A machine that is short of something: no job fails for it, and none runs twice because its worker died."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest

from stoker.core.job import Ended
from stoker.core.spec import Dependency, Resources
from support.background import Background
from support.cli import PROGRAM, Stoker
from support.disk import small_disk
from support.local import end, holders
from support.users import User, made_users, reachable_directory, typed_by
from support.wait import PATIENCE_SECONDS, ending, wait_until

CPU = Resources(gpus=0)
ALONE = "exec 8>>only.$STOKER_JOB_ID; flock -n 8 || echo twice >> twice; echo $$ >> ran.$STOKER_JOB_ID; "
"""The kernel shows a second run at once: descriptor 8 is inherited by all that follows."""


def limit_processes(user: User, pids: Iterable[int], most: int) -> None:
    """Set how many processes the user may have, as his processes see it; -1 is no limit."""
    text = "unlimited" if most == resource.RLIM_INFINITY else str(most)
    for pid in pids:
        command = typed_by(user, "prlimit", "--pid", str(pid), f"--nproc={text}:")
        subprocess.run(command, check=False, timeout=PATIENCE_SECONDS)  # it may have ended


def workers_in(state: Path) -> list[int]:
    """The processes that hold the locks of workers."""
    return [process.pid for lock in state.glob("*/workers/*/lock") for process in holders(lock)]


@contextlib.contextmanager
def killing(state: Path) -> Iterator[None]:
    """Leave no worker and no job behind, also where the test fails."""
    try:
        yield
    finally:
        for worker in workers_in(state):
            end([psutil.Process(worker), *psutil.Process(worker).children(recursive=True)])


def test_no_processes() -> None:
    """Starts that fail for want of processes are tried again: all jobs are done in the end, each in one try."""
    with made_users(1) as (user,), reachable_directory() as home:
        os.chown(home, user.uid, user.gid)
        state, said = home / "state", home / "said"
        paths = {"HOME": str(home), "STOKER_STATE": str(state), "STOKER_LEDGER": str(home / "ledger")}
        waits, tells = "touch up; while ! [ -e go ]; do sleep 0.05; done\n", "echo $STOKER_ATTEMPT >> tries\n"
        (home / "list").write_text(waits + tells * 8)
        command = typed_by(user, PROGRAM, "run", "-G", "0", "-j", "1", "--no-bar", "list")
        with said.open("wb") as out:
            run = subprocess.Popen(command, cwd=home, env={**os.environ, **paths}, stdout=out, stderr=out)
        with ending(run), killing(state):
            wait_until((home / "up").exists)
            engine = [run.pid, *(process.pid for process in psutil.Process(run.pid).children())]
            limit_processes(user, {*engine, *workers_in(state)}, 1)
            (home / "go").touch()
            wait_until(lambda: "temporarily unavailable" in said.read_text())
            limit_processes(user, {*engine, *workers_in(state)}, resource.getrlimit(resource.RLIMIT_NPROC)[0])
            assert run.wait(PATIENCE_SECONDS) == 0, said.read_text()
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
        wait_until(lambda: "No space left on device" in background("engine", "status").out, pause=0.1)
        assert "cannot write its output" in background("status", "--plain").out
        assert not any(isinstance(background.job(job).state, Ended) for job in (*short, after))
        for number in range(2):
            (disk / f"ballast{number}").unlink()
        subprocess.run(["mount", "-o", "remount,nr_inodes=100", disk], check=True, timeout=PATIENCE_SECONDS)
        background.wait_over(*short, after)
    assert {background.ended(job).result for job in (*short, after)} == {"done"}
    assert {background.job(job).tries for job in short} == {1}


def test_the_directory_of_logs_cannot_be_written(background: Background) -> None:
    """That is never the fault of a job: it waits, says why, and runs when the directory is there again."""
    assert background("submit", "--hold", "-G", "0", "--", "sh", "-c", "echo ran; exit 6").code == 0
    logs = background.paths.logs
    logs.rename(logs.with_suffix(".away"))
    logs.touch()
    assert background("resume", "1").code == 0
    wait_until(lambda: "cannot write its output" in background("status", "--plain", "1").out, pause=0.1)
    logs.unlink()
    logs.with_suffix(".away").rename(logs)
    background.wait_over(1)
    assert (background.ended(1).code, background.job(1).tries) == (6, 1)


def test_a_read_only_disk_shows_how_things_were(stoker: Stoker) -> None:
    """Viewers show the last state and say so; what would write is refused, with the reason."""
    with small_disk(stoker.cwd / "disk", "size=30m") as disk:
        stoker.environment |= {"STOKER_STATE": str(disk), "STOKER_SIM": "2x24G"}
        assert stoker("submit", "--hold", "--parsable", "--", "echo", "later").out == "1\n"
        assert stoker("engine", "stop").code == 0
        read_only = ["mount", "-o", "remount,ro", str(disk)]
        wait_until(lambda: subprocess.run(read_only, check=False, timeout=PATIENCE_SECONDS).returncode == 0)
        shown = stoker("status", "--plain")
        assert (shown.code, "echo later" in shown.out) == (0, True), shown
        assert "is read-only: this is its last state" in shown.err
        assert stoker("history").code == 0
        for words in (["submit", "true"], ["cancel", "1"], ["resume", "1"]):
            refused = stoker(*words)
            assert (refused.code, "queue.db is read-only" in refused.err) == (125, True), refused


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
