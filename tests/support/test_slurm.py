"""The Slurm of the tests is a real one, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.reaper import descendants, is_alive
from support.slurm import Slurm, require_slurm, running_slurm, slurm
from support.users import made_users
from support.wait import ending, line_from, wait_until

__all__ = ["slurm"]


def test_a_job_gets_gpus(slurm: Slurm) -> None:
    """Slurm hands out fake GPUs of every node."""
    said = slurm.run("srun", "-N3", "--gres=gpu:2", "sh", "-c", "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES")
    assert sorted(said.splitlines()) == [f"{node} 0,1" for node in slurm.nodes]


def test_an_ordinary_user_has_one() -> None:
    """Root can start the cluster of a user, whose jobs run as that user."""
    with made_users(1) as [user], running_slurm(user, nodes=1) as slurm:
        assert slurm.run("srun", "id", "-un") == user.name


def test_daemons_come_and_go() -> None:
    """Controller and nodes can be stopped, killed and started again; a killed node takes its jobs with it."""
    with running_slurm(nodes=2) as slurm:
        job = slurm.run(
            "sbatch", "--parsable", "--no-requeue", "-w", "n2", "-o", "out", "--wrap", "echo $$; sleep 1000"
        )
        out = slurm.directory / "out"
        wait_until(lambda: out.exists() and out.read_text().strip())
        slurm.stop_controller()
        assert slurm.attempt("scontrol", "ping").returncode != 0
        slurm.start_controller()
        slurm.stop_node("n1")
        slurm.start_node("n1")
        slurm.kill_node("n2")
        assert not is_alive(int(out.read_text()))
        assert "JobState=RUNNING" in slurm.run("scontrol", "show", "job", job)  # Slurm has not noticed yet


def test_nothing_outlives_a_killed_test() -> None:
    """Daemons and jobs end when the process that started them is killed."""
    require_slurm()
    program = (
        "import os, time\nfrom support.slurm import running_slurm\n"
        "with running_slurm(nodes=1) as slurm:\n"
        "    slurm.run('sbatch', '-o', 'out', '--wrap', 'touch began; sleep 1000')\n"
        "    while not (slurm.directory / 'began').exists(): time.sleep(0.01)\n"
        "    print(slurm.directory, flush=True)\n    time.sleep(1000)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with ending(
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    ) as process:
        directory = line_from(process.stdout).strip()
        started = descendants(process.pid)
        assert len(started) >= 5  # reaper, munged, slurmctld, slurmd, slurmstepd, the job
        process.kill()
    wait_until(lambda: not any(map(is_alive, started)))
    shutil.rmtree(directory)  # a killed process removes nothing
