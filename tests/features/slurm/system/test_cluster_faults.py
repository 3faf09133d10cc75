"""What goes wrong around a cluster: no job runs twice, and none is forgotten."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from features.slurm.cluster import RAN, ClusterQueue, once, two_queues
from features.slurm.cluster_faults import replace_program
from support.cli import until
from support.faults.table import faketime_library
from support.optional import refuse
from support.slurm import Slurm, running_slurm
from support.wait import PATIENCE_SECONDS, wait_until


@contextlib.contextmanager
def queue_on(home: Path, slurm: Slurm) -> Iterator[ClusterQueue]:
    with contextlib.closing(ClusterQueue(home, slurm)) as queue:
        yield queue


LIMITED = """
count=1
for word; do case $word in --array=*) last=${word#--array=0-}; count=$((${last%%%*} + 1));; esac; done
if [ $(($(squeue -h -r | wc -l) + count)) -gt $limit ]; then
  echo >> $once.refused
  echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2
  echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, ...)" >&2
  exit 1
fi
exec $real "$@"
"""
"""An sbatch with a submit limit, which a Slurm without a database of accounts cannot have."""


def slurm_id(lab: ClusterQueue) -> str:
    """Slurm's id of the only job."""
    [found] = lab.slurm.run("squeue", "-h", "-o", "%i").split()
    return found


def test_every_job_is_submitted_twice(lab: ClusterQueue) -> None:
    """Claims keep the second one from running anything."""
    twice = 'cat > $once.script; $real "$@" < $once.script; exec $real "$@" < $once.script'
    lab.environment |= replace_program(lab, "sbatch", twice, lab.home / "once")
    job = lab.submit("-G", "0", f"{RAN} exit 3", count="0-9")
    assert lab.wait(job).code == 1
    assert {lab.ended(job + index).code for index in range(10)} == {3}
    assert lab.ran() == list(range(job, job + 10))


def test_a_submit_limit_that_is_smaller_than_an_array(lab: ClusterQueue) -> None:
    """All that the limit allows is in Slurm, the rest waits and says why, and each task runs once."""
    lab.environment |= replace_program(lab, "sbatch", f"limit=5{LIMITED}", lab.home / "once")
    job = lab.submit("-G", "0", f"{RAN} {until('gate')}", count="0-11")
    wait_until(lambda: len(lab.lines("ran")) == 5)
    reason = "your submit limit in Slurm is reached (QOSMaxSubmitJobPerUserLimit)"
    wait_until(lambda: reason in lab("status", "--plain").out, pause=0.1)
    (lab.cwd / "gate").touch()
    assert lab.wait(job).code == 0
    assert lab.ran() == list(range(job, job + 12))
    assert len((lab.home / "once.refused").read_text()) < 15, "sbatch is not called again and again"


def test_a_submit_limit_that_allows_nothing(lab: ClusterQueue) -> None:
    """A job that is refused alone, with nothing in Slurm that could end, is held with Slurm's words."""
    lab.environment |= replace_program(lab, "sbatch", f"limit=0{LIMITED}", lab.home / "once")
    job = lab.submit("-G", "0", RAN)
    lab.wait_word("held", job)
    assert "QOSMaxSubmitJobPerUserLimit; Batch job submission failed" in lab("status", "--plain", str(job)).out


def test_cancelled_tasks_leave_slurm(lab: ClusterQueue) -> None:
    """All of them, also more than one scancel takes."""
    blocker = lab.submit("-G", "12", "--nodes", "3", until("gate"))
    lab.wait_word("running", blocker)
    first = lab.submit("-G", "4", RAN, count="0-699")
    second = lab.submit("-G", "4", RAN, count="0-9")
    wait_until(lambda: len(lab.slurm.run("squeue", "-h", "-r").splitlines()) == 711)
    lab("cancel", str(first), f"{second}.0-8")  # on a slow machine it is answered before it is carried out
    wait_until(lambda: len(lab.slurm.run("squeue", "-h", "-r").splitlines()) == 2)
    (lab.cwd / "gate").touch()
    lab.wait(second)
    assert lab.ran() == [second + 9]


def test_what_slurm_lost_runs_again(tmp_path: Path) -> None:
    """Exit codes are in journals; what left none was lost: in a job that Slurm has forgotten, or with its node."""
    with running_slurm(min_job_age=2, nodes=2) as slurm, two_queues(tmp_path, slurm) as (direct, pilots):
        ended = direct.submit("-G", "0", f"{RAN} {until('gate')}; exit 5", count="0-2")
        killed = direct.submit("-G", "0", once("killed"))
        direct.wait_word("running", ended, ended + 1, ended + 2, killed)
        direct.kill_engine()
        (direct.cwd / "gate").touch()
        wait_until(lambda: len(slurm.run("squeue", "-h").splitlines()) == 1)
        slurm.run("scancel", slurm_id(direct))
        wait_until(lambda: not slurm.run("squeue", "-h", "-t", "all"))

        dead = {direct: direct.submit("-G", "4", once("dead")), pilots: pilots.submit("-G", "4", once("dead"))}
        for lab, job in dead.items():
            lab.wait_word("running", job)
        for node in slurm.nodes:
            slurm.kill_node(node)
            slurm.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
            slurm.start_node(node)
            slurm.attempt("scontrol", "update", f"nodename={node}", "state=resume")  # refused if it is back already

        direct.wait(ended)
        assert [direct.ended(ended + index).code for index in range(3)] == [5, 5, 5]
        for lab, job in ((direct, killed), *dead.items()):
            assert lab.wait(job).code == 0
            assert lab.job(job).losses == 1
            assert lab.ran().count(job) == 2


def test_the_controller_is_away_for_a_while(tmp_path: Path) -> None:
    """The engine changes nothing and says so; jobs go on."""
    with running_slurm(nodes=1) as slurm, queue_on(tmp_path, slurm) as lab:
        job = lab.submit("-G", "0", f"{RAN} {until('gate')}", count="0-19")
        lab.wait_word("running", job)
        slurm.stop_controller()
        wait_until(lambda: "Slurm does not answer" in lab("status", "--json").out, 2 * PATIENCE_SECONDS, pause=0.5)
        assert lab.word(job) == "running"
        slurm.start_controller()
        (lab.cwd / "gate").touch()
        assert lab.wait(job).code == 0
        assert lab.ran() == list(range(job, job + 20))


def test_preempted_jobs_run_again_and_lose_nothing(lab: ClusterQueue) -> None:
    """It is not counted as a loss."""
    job = lab.submit("-G", "12", "--nodes", "3", once("second"))
    lab.wait_word("running", job)
    lab.slurm.run("sbatch", "-p", "urgent", "-N3", "--gres=gpu:4", "-o", "/dev/null", "--wrap", "sleep 1")
    assert lab.wait(job).code == 0
    assert lab.ran() == [job, job]
    assert (lab.job(job).losses, lab.job(job).tries) == (0, 2)


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
    wait_until(lambda: len(lab.slurm.run("squeue", "-h", "-t", "R").splitlines()) == 1)
    waiting = lab.submit("-G", "1", RAN)
    wait_until(lambda: len(lab.slurm.run("squeue", "-h", "-t", "PD").splitlines()) == 1)
    lab.slurm.run("scancel", "-t", "PENDING", "-u", str(os.getuid()))
    lab.wait(waiting)
    assert lab.ended(waiting).result == "cancelled"
    assert lab.ran() == [running]


def test_a_suspended_job_is_shown_as_such(lab: ClusterQueue) -> None:
    """It runs on when Slurm lets it, and ends as usual."""
    job = lab.submit("-G", "0", f"{RAN} {until('gate')}; exit 3")
    lab.wait_word("running", job)
    number = slurm_id(lab)
    lab.slurm.run("scontrol", "suspend", number)
    wait_until(lambda: "suspended in Slurm" in lab("status", "--plain").out, pause=0.1)
    (lab.cwd / "gate").touch()
    lab.slurm.run("scontrol", "resume", number)
    assert lab.wait(job).code == 3
    assert lab.ran() == [job]


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
    wait_until(lambda: "cannot be reached" in lab("status", "--json").out, pause=0.1)
    lab.kill_engine()
    wait_until(lambda: "cannot be reached" in lab("status", "--json").out, pause=0.1)
    assert lab.word(job) == "running"
    aside.rename(lab.shared)
    lab.wait(job)
    assert lab.ran() == [job]


def test_the_clock_of_a_node_is_wrong(lab: ClusterQueue) -> None:
    """Order and durations come from the journal, never from two clocks."""
    library = faketime_library()
    if not library:
        refuse("libfaketime is missing: apt-get install libfaketime")
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
