"""Schedulers inside jobs, at any depth: they divide the GPUs and the memory of the job they run in."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from support.background import Background
from support.cli import PROGRAM, Stoker, until
from support.nvml import GIB, FakeGpu, FakeMachine, compiled
from support.nvml.queue import NvmlQueue, holds
from support.wait import line_from, wait_until

GOT = 'echo "got $CUDA_VISIBLE_DEVICES" >> out'


def test_a_run_inside_a_job(stoker: Stoker) -> None:
    """The outer job has GPU 2 of four; the job of the inner run gets that GPU, which it may call 0."""
    inner = f"stoker run --devices 0 -- sh -c {shlex.quote(GOT)}"
    result = stoker("run", "--sim", "4x24G", "--devices", "2", "--", "sh", "-c", inner)
    assert result.code == 0, result.err
    assert set(stoker.lines("out")) == {"got 2"}


def test_the_list_of_a_script(stoker: Stoker) -> None:
    """A script pipes into simple_gpu_scheduler, and is itself a line of a list for simple_gpu_scheduler."""
    stoker.write("in.sh", f"echo {shlex.quote(GOT)} | simple_gpu_scheduler --gpus $CUDA_VISIBLE_DEVICES")
    result = stoker.typed("echo 'sh in.sh' | simple_gpu_scheduler --gpus 0")
    assert (result.code, stoker.lines("out")) == (0, ["got 0"])


def test_three_deep(stoker: Stoker) -> None:
    """A job in a job in a job has the GPU of the outermost; one without GPUs in between makes no difference."""
    deepest = shlex.join(["stoker", "run", "--", "sh", "-c", GOT])
    deeper = f"echo {shlex.quote(deepest)} | simple_gpu_scheduler --gpus 0"
    result = stoker("run", "--devices", "7", "--", "stoker", "run", "-G", "0", "--", "sh", "-c", deeper)
    assert (result.code, stoker.lines("out")) == (0, ["got 7"])


def test_other_gpus(stoker: Stoker) -> None:
    """A job with GPUs cannot give others to its children; one without may ask the machine for any."""
    refused = stoker("run", "--devices", "4", "--", "stoker", "run", "--devices", "5", "--", "sh", "-c", GOT)
    assert refused.code == 5
    assert "GPU 5 is not available inside job 1, which has GPU 4" in refused.err
    assert stoker("run", "-G", "0", "--", "stoker", "run", "--devices", "5", "--", "sh", "-c", GOT).code == 0
    assert stoker.lines("out") == ["got 5"]


def test_memory_is_divided(stoker: Stoker) -> None:
    """Two jobs of 5 GB fit into a job of 10 GB, and a third has to wait although the GPU has room for it."""
    job = 'echo "+1 $STOKER_VRAM" >> ups; until [ -e go ]; do sleep 0.02; done; echo -1 >> ups'
    stoker.write("jobs.txt", *[job] * 3)
    outer = stoker.start("run", "--sim", "1x24G", "-m", "10G", "--", "stoker", "run", "-m", "5G", "jobs.txt")
    stoker.wait_lines("ups", 2)
    stoker.write("go")
    result = stoker.finish(outer)
    assert result.code == 0, result.err
    steps = [line.split() for line in stoker.lines("ups")]
    assert max(accumulate(int(step[0]) for step in steps)) == 2
    assert {step[1] for step in steps if len(step) > 1} == {str(5 * GIB)}


def test_siblings_take_turns(stoker: Stoker) -> None:
    """Two schedulers inside one job never use its GPU at the same time."""
    job = "mkdir busy || echo clash >> out; sleep 0.05; rmdir busy; echo ran >> out"
    stoker.write("jobs.txt", *[job] * 4)
    both = "simple_gpu_scheduler --gpus 0 < jobs.txt & stoker run jobs.txt; wait $!"
    result = stoker("run", "--devices", "0", "--", "sh", "-c", both)
    assert result.code == 0, result.err
    assert Counter(stoker.lines("out")) == {"ran": 8}


def test_a_stale_variable(stoker: Stoker) -> None:
    """A shell outside of the job that has the job's variables uses the machine, while the job runs and afterwards."""
    job = stoker.start("run", "--devices", "0", "--", "sh", "-c", f'echo "$STOKER_ALLOCATION" > told; {until("go")}')
    wait_until(lambda: stoker.lines("told"))
    stale, *_ = stoker.lines("told")
    assert stoker("run", "--devices", "1", "--", "sh", "-c", GOT, STOKER_ALLOCATION=stale).code == 0
    stoker.write("go")
    assert stoker.finish(job).code == 0
    assert stoker("run", "--devices", "1", "--", "sh", "-c", GOT, STOKER_ALLOCATION=stale).code == 0
    assert stoker.lines("out") == ["got 1", "got 1"]


def test_ctrl_c(stoker: Stoker) -> None:
    """The second Ctrl-C at the outer run stops all that is inside, and the GPU is free again."""
    job = f"trap 'echo termed >> ends; exit 5' TERM; echo up >> ups; {until('go')}"
    outer = stoker.start("run", "--devices", "0", "--", "stoker", "run", "--", "sh", "-c", job)
    stoker.wait_lines("ups", 1)
    outer.send_signal(signal.SIGINT)
    assert b"press again" in line_from(outer.stderr)  # two signals at once would count as one
    outer.send_signal(signal.SIGINT)
    stoker.wait_lines("ends", 1)
    assert stoker.finish(outer).code != 0
    assert stoker.lines("ends") == ["termed"]
    assert stoker("run", "--devices", "0", "--", "sh", "-c", GOT).code == 0
    assert not list(stoker.home.glob("state/*/workers/*"))


@pytest.fixture
def nvml(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvmlQueue]:
    """The queue of a machine with two NVIDIA GPUs of 40 GB."""
    machine = FakeMachine((FakeGpu("GPU-a"), FakeGpu("GPU-b")))
    with contextlib.closing(NvmlQueue(tmp_path, compiled(tmp_path_factory.getbasetemp()), machine)) as queue:
        yield queue


def status(queue: NvmlQueue) -> dict[str, Any]:
    """What `stoker status` says."""
    return dict(json.loads(queue("status", "--json").out))


def held_by(queue: NvmlQueue, job_id: int) -> int | None:
    """Bytes that a job holds, as the engine of the queue measures it."""
    (job,) = [job for job in status(queue)["jobs"] if job["id"] == job_id]
    held: int | None = job["held_bytes"]
    return held


def test_inside_the_queue_on_nvidia_gpus(nvml: NvmlQueue) -> None:
    """The memory of a co-tenant and of the parent itself is not in the way, and that of children is the parent's."""
    beside = nvml.hand_in(holds(9 * GIB, 1), until("go"), vram="10G", options=("--on", "1"))
    nvml.wait_word("running", beside)
    inner = f"{GOT}; {holds(3 * GIB, 1)}; {until('go')}"
    outer = nvml.hand_in(
        holds(2 * GIB, 1),
        f"stoker run --devices 1 -m 4G -- sh -c {shlex.quote(inner)}",
        vram="8G",
        options=("--on", "1"),
    )
    wait_until(lambda: nvml.lines("out"))
    wait_until(lambda: held_by(nvml, outer) == 5 * GIB)
    (gpu,) = [gpu for gpu in status(nvml)["devices"] if gpu["label"] == "1"]
    assert gpu["memory_bytes"] > 30 * GIB
    assert gpu["reserved_bytes"] == 18 * GIB
    nvml.write("go")
    nvml.wait_over(beside, outer)
    assert nvml.ended(outer).result == "done"
    assert nvml.lines("out") == ["got GPU-b"]


def test_killed_together(stoker: Stoker) -> None:
    """A job whose worker and inner scheduler were killed runs again only when its inner job has ended."""
    alone = "exec 8>>only; flock -n 8 || touch twice; "
    stoker.write("inner.sh", alone + "echo $$ > inner.new; mv inner.new inner; exec sleep 1000")
    run = shlex.join([PROGRAM, "run", "--", "sh", "inner.sh"])
    outer = f"[ -e inner ] && {{ {alone} touch again; exit 0; }}; echo $$ $PPID > engine; exec {run}"
    process = stoker.start("run", "--devices", "0", "--", "sh", "-c", outer)
    wait_until((stoker.cwd / "inner").exists)
    engine, worker = map(int, (stoker.cwd / "engine").read_text().split())
    for pid in (engine, worker):
        os.kill(pid, signal.SIGKILL)
    assert stoker.finish(process).code == 0
    assert (stoker.cwd / "again").exists()
    assert not (stoker.cwd / "twice").exists()


def test_a_lost_job_ends_its_inner_runs(background: Background) -> None:
    """The next attempt starts them anew; what they left is cancelled, and is never the last job of the user."""
    inner = shlex.join([PROGRAM, "run", "list.txt"])
    background.write("list.txt", *[f"echo inner >> ran; {until('gate')}"] * 3)
    outer = f"[ -e again ] && exit 7; touch again; echo $PPID > worker; exec {inner}"
    assert background("submit", "--parsable", "--on", "0", "--", "sh", "-c", outer).out == "1\n"
    wait_until(lambda: background.lines("ran"))
    os.kill(int((background.cwd / "worker").read_text()), signal.SIGKILL)
    assert background("wait", "last").code == 7, "the job that was submitted, and none of its own"
    background.wait_over(2, 3, 4)
    assert {background.ended(job).result for job in (2, 3, 4)} == {"cancelled"}
    assert background.lines("ran") == ["inner"]
    assert "interrupted" not in background("status").out
