"""Pilots: engines inside allocations of Slurm's, which pack jobs on the GPUs they were given."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from features.slurm.allocation_faults import kill, strike, victims
from features.slurm.cluster import RAN, ClusterQueue
from features.slurm.cluster_faults import Heads, replace_program
from support.cli import until
from support.local import wait_pid
from support.reaper import is_alive
from support.slurm import Slurm
from support.wait import wait_until

OOM = (
    "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of"
    " 23.69 GiB of which 1.00 GiB is free. Including non-PyTorch memory, this process has 4.00 GiB memory in use.'"
)


@pytest.fixture
def pilots(tmp_path: Path, slurm: Slurm) -> Iterator[ClusterQueue]:
    """A queue whose jobs run in pilots with simulated GPUs of 24 GB."""
    queue = ClusterQueue(tmp_path, slurm, sim="4x24G", pilots="always", pilots_max=1)
    with contextlib.closing(queue):
        yield queue


def pilot_id(lab: ClusterQueue) -> str:
    """Slurm's id of the only pilot."""
    [found] = lab.slurm.run("squeue", "-h", "-n", "stoker-pilot", "-t", "R", "-o", "%i").split()
    return found


def test_four_jobs_share_each_gpu(pilots: ClusterQueue) -> None:
    """Sixteen jobs run at once on the four GPUs of one allocation, each on a GPU that the pilot names."""
    job = pilots.submit("--vram", "5G", f"{RAN} {until('gate')}; exit 3", count="0-15")
    tasks = range(job, job + 16)
    pilots.wait_word("running", *tasks)
    devices = [getattr(pilots.job(task).state, "devices")[0] for task in tasks]  # noqa: B009
    assert {devices.count(device) for device in devices} == {4}
    assert all(device.startswith("lab:n") for device in devices)
    assert len(pilots.slurm.run("squeue", "-h").splitlines()) == 1
    (pilots.cwd / "gate").touch()
    pilots.wait(job)
    assert {pilots.ended(task).code for task in tasks} == {3}
    assert pilots.ran() == list(tasks)


def test_out_of_memory_is_diagnosed_inside(pilots: ClusterQueue) -> None:
    """Beside others it is no failure of the job; alone on a GPU it is."""
    other = pilots.submit("--vram", "4G", until("gate"), count="0-3")
    pilots.wait_word("running", other, other + 1, other + 2, other + 3)
    job = pilots.submit("--vram", "4G", f"{RAN} {OOM}; exit 1")
    wait_until(lambda: pilots.job(job).shared_failures >= 1)
    (pilots.cwd / "gate").touch()
    pilots.wait(job)
    assert pilots.ended(job).result == "oom"
    assert len(pilots.ran()) >= 2


def test_cancel_retry_and_hold(pilots: ClusterQueue) -> None:
    """Commands reach jobs in a pilot."""
    job = pilots.submit("--vram", "4G", f"{RAN} trap 'exit 9' TERM; {until('gate')}")
    pilots.wait_word("running", job)
    assert pilots("cancel", str(job)).code == 0
    pilots.wait(job)
    assert (pilots.ended(job).result, pilots.ended(job).code) == ("cancelled", 9)
    (pilots.cwd / "gate").touch()
    assert pilots("retry", str(job)).code == 0
    assert pilots.wait(job).code == 0
    assert pilots.ran() == [job, job]


def test_the_pilot_is_cancelled_in_slurm(pilots: ClusterQueue) -> None:
    """What ran runs again in the next one, and nothing counts as a loss of the job; what waited loses nothing."""
    line = f"{RAN} [ -e second ] || sleep 60"
    first = pilots.submit(line, count="0-5")
    jobs = list(range(first, first + 6))
    pilots.wait_word("running", *jobs[:4])
    pilots.wait_lines("ran", 4)
    (pilots.cwd / "second").touch()
    pilots.slurm.run("scancel", pilot_id(pilots))
    for job in jobs:
        assert pilots.wait(job).code == 0
        assert pilots.job(job).losses == 0
    ran = pilots.ran()
    assert len(ran) == sum(pilots.job(job).tries for job in jobs)
    assert set(ran) == set(jobs)


def test_the_allocation_is_about_to_end(pilots: ClusterQueue) -> None:
    """The pilot starts nothing more, gives back what waits, lets end what runs, and stops what the user cancels."""
    first = pilots.submit(f"{RAN} {until('gate')}", count="0-5")
    jobs = list(range(first, first + 6))
    pilots.wait_word("running", *jobs[:4])
    pilots.slurm.run("scancel", "--batch", "--signal=USR1", pilot_id(pilots))
    wait_until(lambda: len(pilots.slurm.run("squeue", "-h", "-n", "stoker-pilot").splitlines()) == 2)
    pilots("cancel", f"{first}.0")
    pilots.wait_word("cancelled", jobs[0])
    (pilots.cwd / "gate").touch()
    for job in jobs[1:]:
        assert pilots.wait(job).code == 0
    assert pilots.ran() == jobs


def test_jobs_go_on_while_no_head_lives(pilots: ClusterQueue) -> None:
    """The next command starts one, which reads what the pilot wrote meanwhile."""
    job = pilots.submit("--vram", "5G", f"{RAN} {until('gate')}; exit 6", count="0-11")
    pilots.wait_word("running", *range(job, job + 8))
    pilots.kill_engine()
    (pilots.cwd / "gate").touch()
    pilots.wait_lines("ran", 12)
    pilots.wait(job)
    assert {pilots.ended(job + index).code for index in range(12)} == {6}
    assert pilots.ran() == list(range(job, job + 12))


def test_the_head_is_killed_at_any_moment(pilots: ClusterQueue) -> None:
    """Ten times while jobs are handed over; none runs twice, none is forgotten."""
    moments = random.Random(5)
    jobs = []
    for _ in range(10):
        jobs.append(pilots.submit("--vram", "5G", f"{RAN} sleep 0.1", count="0-5"))
        time.sleep(moments.uniform(0.0, 0.5))
        if pilots.engine is not None:
            pilots.kill_engine()
    for job in jobs:
        assert pilots.wait(job).code == 0
    assert pilots.ran() == [job + index for job in jobs for index in range(6)]


def test_a_pilot_that_finds_too_few_gpus(tmp_path: Path, slurm: Slurm) -> None:
    """After three tries the jobs are held with the reason; one without GPUs goes to Slurm directly."""
    settings: dict[str, object] = {"private": True, "pilots": "always", "pilots_max": 3}
    with contextlib.closing(ClusterQueue(tmp_path, slurm, sim="1x24G", **settings)) as lab:
        job = lab.submit("-G", "2", RAN)
        limited = lab.submit("-G", "0", RAN)
        assert lab.wait(limited).code == 0
        lab.wait_word("held", job)
        said = lab("status", "--plain", str(job)).out
        assert "found 1 GPU, and a job needs 2; see nvidia-smi there" in said
        assert f"stoker resume {job}" in said
        assert lab.ran() == [limited]


@pytest.fixture
def two_pilots(tmp_path: Path, slurm: Slurm) -> Iterator[ClusterQueue]:
    """A queue that may have two pilots."""
    queue = ClusterQueue(tmp_path, slurm, sim="4x24G", pilots="always", pilots_max=2)
    with contextlib.closing(queue):
        yield queue


def test_a_free_pilot_gets_what_waits_in_another(two_pilots: ClusterQueue) -> None:
    """The first one was given all jobs before the second one began."""
    slurm, others = two_pilots.slurm, "NodeName=n2,n3"
    slurm.run("scontrol", "update", others, "State=DRAIN", "Reason=test")
    try:
        job = two_pilots.submit(f"{RAN} {until('gate')}", count="0-7")
        two_pilots.wait_word("running", *range(job, job + 4))
        wait_until(lambda: "waits in a pilot on n1" in two_pilots("status", str(job + 7)).out)
    finally:
        slurm.run("scontrol", "update", others, "State=RESUME")
    two_pilots.wait_word("running", *range(job, job + 8))
    (two_pilots.cwd / "gate").touch()
    assert two_pilots.wait(job).code == 0
    assert two_pilots.ran() == list(range(job, job + 8))


def test_the_limit_of_an_array_holds_across_pilots(two_pilots: ClusterQueue) -> None:
    """No more tasks run at once than it allows, in two pilots together, and the others say why they wait."""
    first = two_pilots.submit(until("up"), count="0-7")
    two_pilots.wait_word("running", *range(first, first + 8))  # so there are two pilots
    (two_pilots.cwd / "up").touch()
    two_pilots.wait(first)
    line = f"echo + >> marks; {RAN} {until('gate')}; echo - >> marks"
    job = two_pilots.submit(line, count="0-11%3")
    tasks = range(job, job + 12)
    two_pilots.wait_word("running", *tasks[:3])
    devices = [getattr(two_pilots.job(task).state, "devices")[0] for task in tasks[:3]]  # noqa: B009
    assert len({device.split()[0] for device in devices}) == 2
    wait_until(lambda: "array limit reached (3 of 3 running)" in two_pilots("status", str(tasks[-1])).out)
    (two_pilots.cwd / "gate").touch()
    assert two_pilots.wait(job).code == 0
    assert two_pilots.ran() == list(tasks)
    steps = [{"+": 1, "-": -1}[line] for line in two_pilots.lines("marks")]
    assert max(itertools.accumulate(steps)) == 3


def test_a_ledger_that_pilots_make_is_shared(pilots: ClusterQueue) -> None:
    """All users may write into it and its directory of the node; one that cannot be made is a reason to hold jobs."""
    ledger = pilots.home / "new ledger"
    pilots.environment["STOKER_LEDGER"] = str(ledger)
    before = os.umask(0o077)
    try:
        job = pilots.submit(RAN)
    finally:
        os.umask(before)
    assert pilots.wait(job).code == 0
    assert {path.stat().st_mode & 0o7777 for path in (ledger, *ledger.iterdir())} == {0o1777}

    pilots.kill_engine()
    pilots.slurm.run("scancel", "-n", "stoker-pilot")
    pilots.environment["STOKER_LEDGER"] = "/nowhere/ledger"
    held = pilots.submit(RAN)
    pilots.wait_word("held", held)
    said = pilots("status", "--plain", str(held)).out
    assert "the ledger cannot be used: /nowhere/ledger: No such file or directory" in said


def test_everything_between_slurm_and_the_jobs_is_killed(pilots: ClusterQueue) -> None:
    """The node shows that nothing of the jobs is left, by a job of Slurm's, before they run again."""
    queue = Heads(pilots)
    strike(queue, "all but the jobs", 0.0, pilots=True)
    wait_until(lambda: "wait for a check there that nothing of them is left" in pilots("status", "--json").out)
    queue.wait_jobs()
    assert queue.findings(losses=True) == []
    assert {pilots.job(job).losses for job in queue.jobs} == {1}
    assert "stoker-check COMPLETED" in pilots.slurm.run("squeue", "-h", "-t", "all", "-o", "%j %T")


def test_a_job_that_waits_for_a_check_can_be_cancelled(pilots: ClusterQueue) -> None:
    """At once, though its node is drained and cannot be checked; what is left of it is killed when it can."""
    job = pilots.submit("echo $$ > pid; exec sleep 600")
    process = wait_pid(pilots.cwd / "pid")
    node = pilots.slurm.run("squeue", "-h", "-n", "stoker-pilot", "-t", "R", "-o", "%N").strip()
    kill(victims(pilots.slurm, "all but the jobs", pilots=True))
    pilots.slurm.run("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    try:
        wait_until(lambda: f"jobs lost on {node} wait for a check" in pilots("status", "--json").out, pause=0.1)
        assert is_alive(process)
        pilots("cancel", str(job))
        pilots.wait_word("cancelled", job)
    finally:
        pilots.slurm.run("scontrol", "update", f"nodename={node}", "state=resume")
    wait_until(lambda: not is_alive(process))


def test_the_shared_directory_is_out_of_sight_for_a_while(pilots: ClusterQueue) -> None:
    """The pilot and its jobs go on, and their ends are told when it is back."""
    job = pilots.submit(f"{RAN} {until('gate')}; touch over; exit 3")
    pilots.wait_word("running", job)
    hidden = pilots.shared.rename(pilots.home / "hidden")
    wait_until(lambda: "cannot be reached; jobs on the cluster go on" in pilots("status", "--json").out, pause=0.1)
    (pilots.cwd / "gate").touch()
    wait_until((pilots.cwd / "over").exists)
    hidden.rename(pilots.shared)
    assert pilots.wait(job).code == 3
    assert pilots.ran() == [job]


def test_every_pilot_is_submitted_twice(pilots: ClusterQueue) -> None:
    """The second one does nothing, and does not tell that the first is over."""
    twice = 'cat > $once.script; $real "$@" < $once.script; exec $real "$@" < $once.script'
    pilots.environment |= replace_program(pilots, "sbatch", twice, pilots.home / "once")
    job = pilots.submit(f"{RAN} {until('gate')}; exit 3")
    pilots.wait_word("running", job)
    states = ("squeue", "-h", "-n", "stoker-pilot", "-t", "all", "-o", "%T")
    wait_until(lambda: "COMPLETED" in pilots.slurm.run(*states))
    [events] = pilots.shared.rglob("events")
    assert '"over"' not in events.read_text()
    (pilots.cwd / "gate").touch()
    assert pilots.wait(job).code == 3
    assert pilots.ran() == [job]
    assert pilots.job(job).tries == 1
