"""What goes wrong around a cluster: no job runs twice, and none is forgotten."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.job import Running
from support.cli import until
from support.cluster import RAN, ClusterQueue
from support.disk import fill, small_disk
from support.faults.table import faketime_library
from support.slurm import Slurm, running_slurm
from support.wait import wait_until

SEEDS = 20


@contextlib.contextmanager
def queue_on(home: Path, slurm: Slurm) -> Iterator[ClusterQueue]:
    with contextlib.closing(ClusterQueue(home, slurm)) as queue:
        yield queue


def replace_program(lab: ClusterQueue, name: str, text: str) -> None:
    """Put a script before one of Slurm's programs, which it finds as $real."""
    real = shutil.which(name, path=lab.environment["PATH"])
    program = lab.home / "bin" / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\nreal={real}\nonce={lab.home}/once\n{text}\n")
    program.chmod(0o700)
    if str(program.parent) not in lab.environment["PATH"]:
        lab.environment["PATH"] = f"{program.parent}:{lab.environment['PATH']}"


def slurm_id(lab: ClusterQueue) -> str:
    """Slurm's id of the only job."""
    [found] = lab.slurm.run("squeue", "-h", "-o", "%i").split()
    return found


@pytest.mark.parametrize(
    "text",
    [
        '[ -e $once ] || { touch $once; kill -9 $PPID; exit 1; }; exec $real "$@"',
        '[ -e $once ] || { touch $once; kill -9 $PPID; sleep 1; }; exec $real "$@"',
        '$real "$@"; code=$?; [ -e $once ] || { touch $once; kill -9 $PPID; }; exit $code',
        'cat > $once.script; $real "$@" < $once.script; exec $real "$@" < $once.script',
    ],
    ids=["before sbatch", "while sbatch runs", "after sbatch", "every job is submitted twice"],
)
def test_the_engine_is_killed_around_a_submit(lab: ClusterQueue, text: str) -> None:
    """The tag in Slurm tells whether sbatch took the bundle; claims keep a second one from running anything."""
    replace_program(lab, "sbatch", text)
    job = lab.submit("-G", "0", f"{RAN} exit 3", count="0-9")
    assert lab.wait(job).code == 1
    assert {lab.ended(job + index).code for index in range(10)} == {3}
    assert lab.ran() == list(range(job, job + 10))


def test_the_engine_is_killed_at_any_moment(lab: ClusterQueue) -> None:
    """Twenty times, while jobs are submitted and run; every command brings it back."""
    moments = random.Random(14)
    jobs: list[int] = []
    for _ in range(SEEDS):
        if len(jobs) < 10:
            jobs.append(lab.submit("-G", "0", f"{RAN} sleep 0.2", count="0-3"))
        else:
            lab("status")
        time.sleep(moments.uniform(0.0, 0.4))
        if lab.engine is not None:
            lab.kill_engine()
    for job in jobs:
        assert lab.wait(job).code == 0
    assert lab.ran() == [job + index for job in jobs for index in range(4)]


def test_ends_are_read_after_slurm_has_forgotten_them(tmp_path: Path) -> None:
    """Exit codes are in journals; what left none, and is unknown to Slurm, was lost and runs again."""
    with running_slurm(min_job_age=2, nodes=1) as slurm, queue_on(tmp_path, slurm) as lab:
        job = lab.submit("-G", "0", f"{RAN} {until('gate')}; exit 5", count="0-2")
        killed = lab.submit("-G", "0", f"{RAN} [ -e second ] || {{ touch second; sleep 60; }}")
        lab.wait_word("running", job, job + 1, job + 2, killed)
        lab.kill_engine()
        (lab.cwd / "gate").touch()
        wait_until(lambda: len(slurm.run("squeue", "-h").splitlines()) == 1)
        slurm.run("scancel", slurm_id(lab))
        wait_until(lambda: not slurm.run("squeue", "-h", "-t", "all"))
        lab.wait(job)
        assert [lab.ended(job + index).code for index in range(3)] == [5, 5, 5]
        assert lab.wait(killed).code == 0
        assert lab.ran() == [job, job + 1, job + 2, killed, killed]
        assert lab.job(killed).losses == 1


def test_the_controller_is_away_for_a_while(tmp_path: Path) -> None:
    """The engine changes nothing and says so; jobs go on."""
    with running_slurm(nodes=1) as slurm, queue_on(tmp_path, slurm) as lab:
        job = lab.submit("-G", "0", f"{RAN} {until('gate')}", count="0-19")
        lab.wait_word("running", job)
        slurm.stop_controller()
        wait_until(lambda: "Slurm does not answer" in lab("status", "--json").out)
        assert lab.word(job) == "running"
        slurm.start_controller()
        (lab.cwd / "gate").touch()
        assert lab.wait(job).code == 0
        assert lab.ran() == list(range(job, job + 20))


def test_the_controller_is_killed_and_forgets(tmp_path: Path) -> None:
    """It loses acknowledged jobs, starts finished ones again and gives ids out twice; no job runs twice."""
    with running_slurm(nodes=2, kill_wait=1) as slurm, queue_on(tmp_path, slurm) as lab:
        job = lab.submit("-G", "1", f"{RAN} sleep 0.5", count="0-39")
        lab.wait_lines("ran", 6)
        slurm.stop_controller(signal.SIGKILL)
        slurm.start_controller()
        process = lab.start("wait", str(job))

        def resumed() -> bool:  # nodes are drained for "Duplicate jobid"; a person resumes them
            slurm.attempt("scontrol", "update", "nodename=n[1-2]", "state=resume")
            time.sleep(0.5)
            return process.poll() is not None

        wait_until(resumed, 120.0)
        assert lab.finish(process).code == 0
        assert len(set(lab.ran())) == 40
        assert len(lab.ran()) == 40 + sum(lab.job(job + index).losses for index in range(40))


def test_preempted_jobs_run_again_and_lose_nothing(lab: ClusterQueue) -> None:
    """It is not counted as a loss."""
    job = lab.submit("-G", "12", "--nodes", "3", f"{RAN} [ -e second ] || {{ touch second; sleep 60; }}")
    lab.wait_word("running", job)
    lab.slurm.run("sbatch", "-p", "urgent", "-N3", "--gres=gpu:4", "-o", "/dev/null", "--wrap", "sleep 1")
    assert lab.wait(job).code == 0
    assert lab.ran() == [job, job]
    assert (lab.job(job).losses, lab.job(job).tries) == (0, 2)


def test_a_node_dies(tmp_path: Path) -> None:
    """The job is lost, and runs again elsewhere."""
    with running_slurm(nodes=2) as slurm, queue_on(tmp_path, slurm) as lab:
        job = lab.submit("-G", "1", f"{RAN} [ -e second ] || {{ touch second; sleep 60; }}")
        lab.wait_word("running", job)
        state = lab.job(job).state
        assert isinstance(state, Running)
        [device] = state.devices
        node = device.removeprefix("lab:").partition(" ")[0]
        slurm.kill_node(node)
        slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        assert lab.wait(job).code == 0
        assert (lab.job(job).losses, len(lab.ran())) == (1, 2)


def test_slurmd_is_killed_and_comes_back(tmp_path: Path) -> None:
    """The job is unharmed."""
    with running_slurm(nodes=1) as slurm, queue_on(tmp_path, slurm) as lab:
        job = lab.submit("-G", "1", f"{RAN} {until('gate')}; exit 4")
        lab.wait_word("running", job)
        slurm.stop_node("n1", signal.SIGKILL)
        slurm.start_node("n1")
        (lab.cwd / "gate").touch()
        assert lab.wait(job).code == 4
        assert lab.ran() == [job]


def test_scancel_by_hand(lab: ClusterQueue) -> None:
    """It means that the job is cancelled, whether it runs or waits."""
    running = lab.submit("-G", "12", "--nodes", "3", f"{RAN} sleep 60")
    lab.wait_word("running", running)
    lab.slurm.run("scancel", slurm_id(lab))
    lab.wait(running)
    assert (lab.ended(running).result, lab.ended(running).note) == ("cancelled", "cancelled in Slurm")

    lab.slurm.run("sbatch", "-p", "urgent", "-N3", "--gres=gpu:4", "-o", "/dev/null", "--wrap", "sleep 60")
    waiting = lab.submit("-G", "1", RAN)
    wait_until(lambda: len(lab.slurm.run("squeue", "-h", "-t", "PD").splitlines()) == 1)
    lab.slurm.run("scancel", "-t", "PENDING", "-u", str(os.getuid()))
    lab.wait(waiting)
    assert lab.ended(waiting).result == "cancelled"
    assert lab.ran() == [running]


def test_a_job_that_takes_too_much_host_memory(lab: ClusterQueue) -> None:
    """Slurm kills it, and the user sees what Slurm says."""
    lab.configure(options=["--mem=60"])
    eat = "python3 -c 'x = bytearray(400 * 2**20); import time; time.sleep(60)'"
    job = lab.submit("-G", "0", "--no-requeue", f"{RAN} {eat}")
    lab.wait(job)
    assert "memory" in lab.ended(job).note
    assert lab.ran() == [job]


def test_the_shared_directory_is_away(lab: ClusterQueue) -> None:
    """What cannot be seen is not gone: nothing is concluded until it is back."""
    job = lab.submit("-G", "0", f"{RAN} {until('gate')}")
    lab.wait_word("running", job)
    aside = lab.home / "aside"
    lab.shared.rename(aside)
    (lab.cwd / "gate").touch()
    wait_until(lambda: "cannot be reached" in lab("status", "--json").out)
    lab.kill_engine()
    wait_until(lambda: "cannot be reached" in lab("status", "--json").out)
    assert lab.word(job) == "running"
    aside.rename(lab.shared)
    lab("wait", "--timeout", "30s", str(job))
    assert lab.ran() == [job]


def test_the_clock_of_a_node_is_wrong(lab: ClusterQueue) -> None:
    """Order and durations come from the journal, never from two clocks."""
    library = faketime_library()
    if not library:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("libfaketime is missing")
    for skew in ("-120s", "+120s"):
        faked = f'LD_PRELOAD={library} FAKETIME={skew} exec {sys.executable} "$@"'
        python = lab.write(f"python{skew}", "#!/bin/sh", faked)
        python.chmod(0o700)
        lab.configure(python=str(python))
        job = lab.submit("-G", "0", "sleep 1")
        assert lab.wait(job).code == 0
        shown = lab("history", "--json").out
        assert '"seconds":-' not in shown
        done = lab.ended(job)
        assert abs(done.at - time.time()) < 60.0, "shown by the clock of this machine"


def test_python_is_missing_on_the_nodes(lab: ClusterQueue) -> None:
    """After three tries the job is held, and the reason names the interpreter."""
    lab.configure(python="/nowhere/python")
    job = lab.submit("-G", "0", RAN)
    lab.wait_word("held", job)
    assert "/nowhere/python" in lab("status", "--plain", str(job)).out
    assert lab.ran() == []


def test_the_shared_disk_is_full(tmp_path: Path, slurm: Slurm) -> None:
    """Jobs wait and say why, and go on when there is space."""
    with small_disk(tmp_path / "shared", "size=256k") as disk, queue_on(tmp_path, slurm) as lab:
        first = lab.submit("-G", "0", RAN)
        assert lab.wait(first).code == 0
        ballast = fill(disk)
        job = lab.submit("-G", "0", RAN)
        wait_until(lambda: "No space left" in lab("status", "--json").out)
        ballast.unlink()
        assert lab.wait(job).code == 0
        assert lab.ran() == [first, job]
