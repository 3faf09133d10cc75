"""A shared directory that is slow or full, Slurm's own time limit, and a Slurm that forgets what runs."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from features.slurm.cluster import RAN, ClusterQueue, once, two_queues
from support.cli import until
from support.disk import fill, small_disk
from support.shared_directory import delayed
from support.slurm import Slurm, running_slurm
from support.wait import wait_until

DELAY_SECONDS = 2.0
MISSING_SECONDS = 30.0


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    """A controller that forgets what is over after two seconds."""
    with running_slurm(nodes=2, min_job_age=2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def limited(slurm: Slurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[ClusterQueue, int]]:
    """A job and a pilot whose time in Slurm is over; Slurm looks for such jobs every 30 s, while other tests run."""
    with two_queues(tmp_path_factory.mktemp("limited"), slurm) as both:
        jobs = {lab: lab.submit("-G", gpus, once("second")) for lab, gpus in zip(both, ("0", "1"), strict=True)}
        for lab, job in jobs.items():
            lab.wait_word("running", job)
        # Slurm refuses an end in the second of the start.
        end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 1))
        for number in slurm.run("squeue", "-h", "-o", "%i").split():
            slurm.run("scontrol", "update", f"jobid={number}", f"EndTime={end}")
        yield jobs


@pytest.mark.usefixtures("limited")
def test_a_shared_directory_that_shows_everything_late(tmp_path: Path, slurm: Slurm) -> None:
    """Content is seconds old and missing names stay missing for long, on both sides: jobs run once, commands arrive."""
    with two_queues(tmp_path, slurm) as both:
        jobs = []
        for lab in both:
            lab.environment |= delayed(lab.shared, DELAY_SECONDS, MISSING_SECONDS)
            line = f"{RAN} trap 'exit 9' TERM; {until('gate')}; exit 5"
            jobs.append(lab.submit("-G", "1", "--vram", "4G", line, count="0-2"))
        for lab, job in zip(both, jobs, strict=True):
            lab.wait_word("running", job, job + 1, job + 2)
            assert lab("cancel", str(job + 2)).code == 0
            lab.kill_engine()
            lab("status")
            lab.wait_word("cancelled", job + 2)
            (lab.cwd / "gate").touch()
        for lab, job in zip(both, jobs, strict=True):
            lab.wait(job)
            assert [lab.ended(job + index).code for index in range(3)] == [5, 5, 9]
            assert lab.ran() == [job, job + 1, job + 2]


def test_the_shared_disk_is_full(tmp_path: Path, slurm: Slurm) -> None:
    """What runs keeps its exit code, what Slurm starts waits on its node, and the rest waits here and says why."""
    with small_disk(tmp_path / "shared", "size=1m") as disk, two_queues(tmp_path, slurm, shared=str(disk)) as both:
        direct, pilots = both
        running = [direct.submit("-G", "6", "--nodes", "2", f"{RAN} {until('gate')}; exit 6")]
        running.append(pilots.submit("-G", "1", "--vram", "4G", f"{RAN} {until('gate')}; exit 6"))
        for lab, job in zip(both, running, strict=True):
            lab.wait_word("running", job)
        pending = direct.submit("-G", "6", "--nodes", "2", f"{RAN} exit 5")
        wait_until(lambda: slurm.run("squeue", "-h", "-t", "PD"))
        ballast = fill(disk)
        waiting = [lab.submit("-G", "1", "--vram", "4G", f"{RAN} exit 7") for lab in both]
        for lab in both:
            (lab.cwd / "gate").touch()
        # An order to a pilot may still fit into the last block of its file; a new bundle needs new ones.
        wait_until(lambda: "No space left" in direct("status", "--json").out, pause=0.1)
        wait_until(lambda: any((path.parent.with_name("claims") / "0").exists() for path in disk.rglob("journals/0")))
        ballast.unlink()
        assert direct.wait(pending).code == 5
        for lab, first, second in zip(both, running, waiting, strict=True):
            assert (lab.wait(first).code, lab.wait(second).code) == (6, 7)
            assert set(lab.ran()) == {first, second, *([pending] if lab is direct else [])}
            assert len(lab.ran()) == len(set(lab.ran()))


def test_slurm_forgets_jobs_that_go_on(tmp_path: Path) -> None:
    """Their nodes are asked: what answers is left alone, and its end counts; what is silent is lost and runs again."""
    with running_slurm(nodes=1) as slurm, two_queues(tmp_path, slurm) as both:
        jobs = [lab.submit("-G", "1", "--vram", "4G", f"{RAN} {until('gate')}; exit 8") for lab in both]
        for lab, job in zip(both, jobs, strict=True):
            lab.wait_word("running", job)
        slurm.stop_node("n1", signal.SIGKILL)  # else it would kill what its controller does not know
        slurm.stop_controller()
        slurm.start_controller("-c")
        answers = [next((lab.shared).rglob(name)) for lab, name in zip(both, ("journals/0", "events"), strict=True)]
        for answer, word in zip(answers, ("\nA ", '"alive"'), strict=True):
            wait_until(lambda answer=answer, word=word: word in answer.read_text())  # type: ignore[misc]
        for lab, job in zip(both, jobs, strict=True):
            (lab.cwd / "gate").touch()
            assert lab.wait(job).code == 8
            assert (lab.ran(), lab.job(job).losses) == ([job], 0)


def test_slurms_own_time_limit(limited: dict[ClusterQueue, int]) -> None:
    """A job that Slurm ends is over; one whose pilot it ends runs again in the next, and has lost nothing."""
    (direct, job), (pilots, inside) = limited.items()
    direct.wait(job)
    assert (direct.ended(job).result, direct.ended(job).note) == ("timeout", "Slurm's time limit was over")
    assert pilots.wait(inside).code == 0
    assert (pilots.job(inside).losses, pilots.job(inside).tries) == (0, 2)
    assert (direct.ran(), pilots.ran()) == ([job], [inside, inside])
