"""Jobs on a cluster run the code of their submit: it travels to the shared directory, and pilots have a copy."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from features.slurm.cluster import NAME, ClusterQueue
from support.optional import require
from support.slurm import Slurm
from support.wait import PATIENCE_SECONDS, wait_until

PROGRAM = "import os, helper\nprint(helper.VALUE, os.getcwd(), helper.__file__)\n"


@pytest.fixture
def lab(tmp_path: Path, slurm: Slurm) -> Iterator[ClusterQueue]:
    """A queue whose jobs are Slurm's own, with a repository in its working directory."""
    with contextlib.closing(ClusterQueue(tmp_path, slurm)) as queue:
        make_project(queue)
        yield queue


@pytest.fixture
def pilots(tmp_path: Path, slurm: Slurm) -> Iterator[ClusterQueue]:
    """The same with pilots."""
    with contextlib.closing(
        ClusterQueue(tmp_path, slurm, sim="4x24G", pilots="always", pilots_max=1, pilot_idle="1s")
    ) as queue:
        make_project(queue)
        yield queue


def make_project(queue: ClusterQueue) -> None:
    require("git")
    (queue.cwd / "train.py").write_text(PROGRAM)
    (queue.cwd / "helper.py").write_text("VALUE = 'old'\n")
    subprocess.run(["git", "init", "-q", queue.cwd], check=True, timeout=PATIENCE_SECONDS)


def submitted(queue: ClusterQueue, *options: str) -> int:
    """Submit a job that does not start before it is released."""
    words = ("submit", "-M", NAME, "--hold", "--parsable", "-o", "%j.log", *options, "--", sys.executable, "train.py")
    done = queue(*words)
    assert done.code == 0, done.err
    return int(done.out)


def edit(queue: ClusterQueue) -> None:
    (queue.cwd / "helper.py").write_text("VALUE = 'new'\n")


def log(queue: ClusterQueue, job: int) -> list[str]:
    """The words that the job wrote."""
    path = queue.cwd / f"{job}.log"
    wait_until(path.exists)
    return path.read_text().split()


def test_jobs_of_slurm(lab: ClusterQueue) -> None:
    """They import from the shared directory, and stay in theirs; without freezing they have the present code."""
    frozen, present = submitted(lab), submitted(lab, "--no-freeze")
    edit(lab)
    lab("resume", str(frozen), str(present))
    lab.wait(frozen)
    lab.wait(present)
    value, cwd, file = log(lab, frozen)
    assert (value, cwd) == ("old", str(lab.cwd))
    assert file.startswith(f"{lab.shared}/")
    assert log(lab, present)[0] == "new"
    assert "VALUE = 'old'" in lab("diff", str(frozen)).out


def test_jobs_in_a_pilot(pilots: ClusterQueue) -> None:
    """They import from a copy on the node, which is gone with the pilot; what they ran with is recorded."""
    jobs = [submitted(pilots), submitted(pilots)]
    edit(pilots)
    pilots("resume", *map(str, jobs))
    for job in jobs:
        pilots.wait(job)
        value, cwd, file = log(pilots, job)
        assert (value, cwd) == ("old", str(pilots.cwd))
        assert not file.startswith(f"{pilots.shared}/")
    wait_until(lambda: software(pilots, jobs[0]) is not None)
    top = Path(file).parents[4]
    wait_until(lambda: not top.exists())


def software(queue: ClusterQueue, job: int) -> Any:
    (shown,) = json.loads(queue("status", str(job), "--env", "--json").out)["jobs"]
    return shown["software"]


@pytest.mark.parametrize("kind", ["lab", "pilots"])
def test_a_snapshot_that_was_removed(kind: str, request: pytest.FixtureRequest) -> None:
    """The job is held with the reason."""
    queue: ClusterQueue = request.getfixturevalue(kind)
    job = submitted(queue)
    subprocess.run(["chmod", "-R", "u+w", queue.shared], check=True, timeout=PATIENCE_SECONDS)
    for folder in queue.shared.glob("*/code"):
        shutil.rmtree(folder)
    queue("resume", str(job))
    queue.wait_word("held", job)
    wait_until(lambda: "its frozen code" in queue("status", str(job)).out)
