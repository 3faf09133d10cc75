"""Older tools inside jobs: they use the GPUs of the job they run in."""

from __future__ import annotations

import shlex
import sys

import pytest

from features.compat.gpu_tasks import script
from support.cli import Stoker

GOT = 'echo "got $CUDA_VISIBLE_DEVICES" >> out'
TASK = """\
import os
from gpu_task_scheduler.gpu_task import GPUTask
class Task(GPUTask):
    def main(self):
        with open(OUT, "a") as out:
            out.write(f"got {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
"""
GPU_TASKS = '"scheduler_config": {"gpu": ["0"]}, "global_config": {}, "test_config": [{"seed": [1]}]'
CSV = "Directory,Executable,Filename,Epochs,Priority\n{directory},sh,got.sh,1,1\n"

TOOLS = {
    "simple_gpu_scheduler": f"echo {shlex.quote(GOT)} | simple_gpu_scheduler --gpus $CUDA_VISIBLE_DEVICES",
    "schedule": f"schedule -fg 0 -- sh -c {shlex.quote(GOT)}",
    "schedule with a wish": f"schedule -pg 3 -- sh -c {shlex.quote(GOT)}",
    "GPUTaskScheduler": f"{shlex.quote(sys.executable)} script.py",
    "priority_scheduler": "priority_scheduler --csv tasks.csv --mps no",
}


@pytest.mark.parametrize("typed", TOOLS.values(), ids=TOOLS)
def test_tools_inside_a_job(stoker: Stoker, typed: str) -> None:
    """Each runs inside a job that has GPU 2 of four, and its own job gets that GPU, which it may call 0."""
    stoker.write("task.py", TASK.replace("OUT", repr(str(stoker.cwd / "out"))))
    stoker.write("script.py", script(GPU_TASKS))
    stoker.write("got.sh", GOT)
    stoker.write("tasks.csv", CSV.format(directory=stoker.cwd))
    result = stoker(
        "run", "--sim", "4x24G", "--devices", "2", "--", "sh", "-c", typed, XDG_CONFIG_HOME=str(stoker.home)
    )
    assert result.code == 0, result.err
    assert set(stoker.lines("out")) == {"got 2"}
