"""Jobs on a cluster that give way, that hold GPUs without use, that hang, and that cannot start in time."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from features.slurm.cluster import RAN, ClusterQueue
from stoker.core.job import Running, Waiting
from support.cli import until
from support.slurm import Slurm
from support.wait import wait_until

SAVES = (
    "echo run $STOKER_RESTART; trap 'echo saved; exit 75' $STOKER_SAVE_SIGNAL; touch ready$STOKER_RESTART; "
    f"{until('enough')}"
)
HOLDS = f"exec {sys.executable} -m stoker.devices.demo_job --seconds 1000 --load 0"


@pytest.fixture
def pilots(tmp_path: Path, slurm: Slurm) -> Iterator[ClusterQueue]:
    """A queue whose jobs run in a pilot with four simulated GPUs."""
    queue = ClusterQueue(tmp_path, slurm, sim="4x24G", pilots="always", pilots_max=1)
    with contextlib.closing(queue):
        yield queue


def why(queue: ClusterQueue, job: int) -> str:
    (shown,) = json.loads(queue("status", "--json", str(job)).out)["jobs"]
    return str(shown["why"])


def saving_job(pilots: ClusterQueue) -> int:
    """A job that has all GPUs and handles its signal."""
    job = pilots.submit("-G", "4", "--preemptible", SAVES)
    wait_until((pilots.cwd / "ready").exists)
    pilots.wait_word("running", job)
    return job


def test_a_job_in_a_pilot_saves_and_comes_back(pilots: ClusterQueue) -> None:
    """The other job runs meanwhile in the same allocation, and the head says who took the GPUs."""
    long = saving_job(pilots)
    short = pilots.submit("-G", "4", f"{RAN} {until('gate')}")
    assert pilots("preempt", str(long), "--for", str(short)).out == f"asked to save and leave: {long}\n"
    pilots.wait_word("running", short)
    wait_until(lambda: pilots.job(long).preemptions == 1)
    (shown,) = json.loads(pilots("status", "--json", str(long)).out)["jobs"]
    assert f"preempted by you, its GPUs are for job {short}" in [event["detail"] for event in shown["events"]]
    assert shown["attempts"][0]["why"] == "preempted"
    assert len(pilots.slurm.run("squeue", "-h", "-n", "stoker-pilot").splitlines()) == 1
    (pilots.cwd / "gate").touch()
    wait_until((pilots.cwd / "ready1").exists)
    (pilots.cwd / "enough").touch()
    assert pilots.wait(long).code == 0
    job = pilots.job(long)
    assert (job.preemptions, job.failures, job.losses, job.tries) == (1, 0, 0, 2)
    assert pilots("logs", str(long)).out.splitlines()[-1] == "run 1"
    assert pilots.ran() == [short]


def test_the_head_is_killed_after_it_asked(pilots: ClusterQueue) -> None:
    """The next one repeats the order; the job is asked once, and nothing is lost."""
    long = saving_job(pilots)
    assert pilots("preempt", str(long)).code == 0
    pilots.kill_engine()
    pilots("status")
    wait_until((pilots.cwd / "ready1").exists)
    (pilots.cwd / "enough").touch()
    assert pilots.wait(long).code == 0
    assert (pilots.job(long).preemptions, pilots.job(long).losses) == (1, 0)


def test_a_job_saves_before_its_pilot_ends(pilots: ClusterQueue) -> None:
    """Slurm's signal a minute before the end reaches it as its own."""
    long = saving_job(pilots)
    [pilot] = pilots.slurm.run("squeue", "-h", "-n", "stoker-pilot", "-t", "R", "-o", "%i").split()
    pilots.slurm.run("scancel", "--signal=USR1", "--batch", pilot)
    wait_until((pilots.cwd / "ready1").exists)
    (pilots.cwd / "enough").touch()
    assert pilots.wait(long).code == 0
    assert (pilots.job(long).preemptions, pilots.job(long).losses) == (1, 0)


def test_a_job_in_a_pilot_that_does_nothing(pilots: ClusterQueue) -> None:
    """The head reports it, and stops it once its rule says so."""
    job = pilots.submit("--idle", "1s", HOLDS)
    wait_until(lambda: "at 0 %" in why(pilots, job))
    state = pilots.job(job).state
    assert isinstance(state, Running)
    assert state.idle_since is not None
    assert pilots("edit", str(job), "--idle", "1s:stop").code == 0
    pilots.wait(job)
    assert pilots.ended(job).result == "idle"


def test_one_that_slurm_runs_is_not_asked(lab: ClusterQueue) -> None:
    """It says so, and the warning about --idle too."""
    submitted = lab("submit", "-M", "lab", "--preemptible", "--idle", "10m", "--", "sh", "-c", until("gate"))
    assert "on a cluster, --idle has an effect only inside pilots" in submitted.err
    lab.wait_word("running", 1)
    said = lab("preempt", "1")
    assert "not asked: 1 (Slurm runs it; only jobs in pilots can give way)" in said.out + said.err
    state = lab.job(1).state
    assert isinstance(state, Running)
    assert state.giving_way is None
    (lab.cwd / "gate").touch()
    assert lab.wait(1).code == 0


@pytest.mark.parametrize("where", ["direct", "pilot"])
def test_jobs_that_hang(tmp_path: Path, slurm: Slurm, where: str) -> None:
    """The limits of output hold on the nodes, too."""
    pilots: dict[str, Any] = {"pilots": "always", "sim": "4x24G"} if where == "pilot" else {}
    with contextlib.closing(ClusterQueue(tmp_path, slurm, **pilots)) as queue:
        mute = queue.submit("--first-output", "3s", "exec sleep 600")
        silent = queue.submit("--silent", "3s", "echo begun; exec sleep 600")
        queue.wait(mute)
        queue.wait(silent)
        assert (queue.ended(mute).result, queue.ended(silent).result) == ("hung", "hung")


@pytest.mark.parametrize("where", ["direct", "pilot"])
def test_a_job_that_cannot_start_in_time(tmp_path: Path, slurm: Slurm, where: str) -> None:
    """It is given up while it waits in Slurm or in a pilot, and never runs."""
    pilots: dict[str, Any] = {"pilots": "always", "sim": "4x24G", "pilots_max": 1} if where == "pilot" else {}
    with contextlib.closing(ClusterQueue(tmp_path, slurm, **pilots)) as queue:
        words = ("-G", "4") if where == "pilot" else ("-G", "12", "--nodes", "3")
        first = queue.submit(*words, until("gate"))
        queue.wait_word("running", first)
        late = queue.submit(*words, "--start-within", "2s", RAN)
        queue.wait(late)
        assert (queue.ended(late).result, queue.ended(late).note) == ("expired", "did not start within 0:00:02")
        (queue.cwd / "gate").touch()
        assert queue.wait(first).code == 0
        assert queue.ran() == []


def test_nonblock_is_refused(lab: ClusterQueue) -> None:
    """The cluster decides later."""
    said = lab("submit", "-M", "lab", "--nonblock", "--", "true")
    assert (said.code, "--nonblock is for this machine" in said.err) == (2, True)


def test_slurm_preempts_a_job_that_saves(lab: ClusterQueue) -> None:
    """It comes back as one that gave way, with the same variables."""
    line = f'echo run $STOKER_RESTART $STOKER_PREEMPTED; [ -n "$STOKER_RESTART" ] || {until("gate")}'
    job = lab.submit("-G", "12", "--nodes", "3", "--preemptible", line)
    lab.wait_word("running", job)
    lab.slurm.run("sbatch", "-p", "urgent", "-N3", "--gres=gpu:4", "-o", "/dev/null", "--wrap", "sleep 3")
    wait_until(lambda: lab.job(job).preemptions == 1)
    state = lab.job(job).state
    assert not isinstance(state, Waiting) or state.gave_way is not None
    assert lab.wait(job).code == 0
    assert "run 1 1" in lab("logs", str(job)).out
    assert (lab.job(job).losses, lab.job(job).failures) == (0, 0)
