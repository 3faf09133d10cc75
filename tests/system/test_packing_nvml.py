"""Several jobs on one NVIDIA GPU: the real nvidia-ml-py on the stand-in driver, with all that drivers do not tell."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.cli import Stoker, until
from support.nvml import GIB, FakeGpu, FakeMachine, FakeSlice, compiled
from support.nvml.queue import STILL, NvmlQueue, holds
from support.wait import ending, wait_until

A100 = "NVIDIA A100-SXM4-40GB"
ACCOUNTED = FakeMachine((FakeGpu("GPU-a", accounting=64),))
ONE = FakeMachine((FakeGpu("GPU-a"),))
SEEN = until("seen")
"""Until the engine has seen what the test waits for."""

Machine = Callable[[FakeMachine], NvmlQueue]


@pytest.fixture
def machine(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Makes the queue of a machine, which ends with the test."""
    with contextlib.ExitStack() as closing:

        def made(state: FakeMachine) -> NvmlQueue:
            queue = NvmlQueue(tmp_path, compiled(tmp_path_factory.getbasetemp()), state)
            return closing.enter_context(contextlib.closing(queue))

        yield made


def status(queue: Stoker, *ids: int) -> dict[str, Any]:
    """What `status` says."""
    return dict(json.loads(queue("status", *map(str, ids), "--json").out))


def why(queue: Stoker, job_id: int) -> str:
    """Why a job waits."""
    return str(status(queue, job_id)["jobs"][0]["why"])


def end_when_seen(queue: NvmlQueue, job_id: int, size: int) -> None:
    """Let a job go on at SEEN, and wait for its end, as soon as the engine says that it holds so much."""
    wait_until(lambda: status(queue, job_id)["jobs"][0]["used_bytes"] == size, pause=0.1)
    queue.open_gate("seen")
    queue.wait_over(job_id)


class TestPeaks:
    """What the driver tells of the memory of a job."""

    @pytest.mark.parametrize(("state", "peak"), [(ACCOUNTED, 9), (ONE, 2)])
    def test_a_spike_between_two_looks(self, machine: Machine, state: FakeMachine, peak: int) -> None:
        """Is in the driver's account; where it keeps none, only what was seen counts."""
        queue = machine(state)
        job = queue.hand_in(holds(9 * GIB, then=2 * GIB), SEEN)
        end_when_seen(queue, job, 2 * GIB)
        wait_until(lambda: queue.peak(job))
        assert queue.peak(job) == peak * GIB
        wait_until(lambda: queue.learnt(job).models)
        assert queue.learnt(job).models[A100].peaks == (peak * GIB,)

    def test_the_last_moment(self, machine: Machine) -> None:
        """The account has the last word, also for a job that no reading shows, in an idle engine."""
        queue = machine(ACCOUNTED)
        unseen, seen = queue.hand_in(holds(5 * GIB)), queue.hand_in(holds(GIB), SEEN, holds(5 * GIB))
        end_when_seen(queue, seen, GIB)
        queue.wait_over(unseen)
        wait_until(lambda: queue.learnt(unseen).models and queue.learnt(seen).models)
        assert (queue.peak(unseen), queue.peak(seen)) == (5 * GIB, 5 * GIB)
        assert queue.learnt(seen).models[A100].peaks == (5 * GIB,)

    def test_children_in_other_sessions(self, machine: Machine) -> None:
        """Two workers of a launcher on one GPU count together, also when their parents are gone."""
        queue = machine(ACCOUNTED)
        one, other = (f"setsid sh -c '{holds(size * GIB)}; {SEEN}'" for size in (3, 4))
        job = queue.hand_in(f"{one} & (sh -c {shlex.quote(other)} &); {SEEN}; wait")
        end_when_seen(queue, job, 7 * GIB)
        wait_until(lambda: queue.peak(job))
        assert queue.peak(job) == 7 * GIB


def in_use(size: int, gpu: int = 0) -> str:
    """Shell text: so much of a GPU is in use, though the driver does not say by whom."""
    return f'echo "memory {gpu} {40 * GIB} {GIB // 2} {size}" >> "$FAKE_NVML_STATE"'


class TestSilence:
    """Drivers that do not tell who holds how much."""

    def test_alone_and_in_company(self, machine: Machine) -> None:
        """All that is in use is a job's where it is alone; else nobody knows whose it is, and nothing is learnt."""
        queue = machine(ONE)
        exclusive = queue.hand_in(holds("na"), in_use(5 * GIB), SEEN, in_use(0))
        wait_until(lambda: status(queue)["devices"][0]["used_bytes"] >= 5 * GIB)
        queue.open_gate("seen")
        queue.wait_over(exclusive)
        wait_until(lambda: queue.peak(exclusive))
        assert queue.peak(exclusive) == 5 * GIB
        neighbour = queue.hand_in(STILL, vram="4G")
        queue.wait_word("running", neighbour)
        wait_until(lambda: status(queue)["devices"][0]["used_bytes"] < 5 * GIB)
        second = queue.hand_in("true", holds("na"), in_use(5 * GIB), until("seen2"), in_use(0), vram="6G")
        wait_until(lambda: status(queue)["devices"][0]["used_bytes"] >= 5 * GIB)
        queue.open_gate("seen2")
        queue.wait_over(second)
        wait_until(lambda: queue.use(second))
        assert queue.peak(second) == 0
        assert not any(runs.peaks for runs in queue.learnt(second).models.values())

    def test_slices(self, machine: Machine) -> None:
        """MIG slices tell of processes but not how busy they are; what is learnt is learnt for slices of that size."""
        slices = (FakeSlice("MIG-a", name="A100 MIG 1g.5gb"), FakeSlice("MIG-b", name="A100 MIG 1g.5gb"))
        queue = machine(FakeMachine((FakeGpu("GPU-a", mig=True, slices=slices),)))
        on_the_first = f'echo "process 0 $$ {2 * GIB} compute 0" >> "$FAKE_NVML_STATE"'
        job = queue.hand_in(on_the_first, SEEN, options=("--on", "0:0"))
        end_when_seen(queue, job, 2 * GIB)
        wait_until(lambda: queue.learnt(job).models)
        (runs,) = queue.learnt(job).models.values()
        assert (runs.peaks, runs.loads) == ((2 * GIB,), ())

    def test_named_devices(self, stoker: Stoker) -> None:
        """Those of which nobody knows anything run one job at a time, and both doors say so."""
        answer = stoker("submit", "--vram", "2G", "--hold", "true", STOKER_DEVICES="a,b")
        assert "the memory of these devices is unknown, so each runs one job at a time" in answer.err
        lines = ["test ! -e busy; echo $?; touch busy; sleep 0.2; rm busy"] * 3
        outcome = stoker("run", "--devices", "a", "--vram", "auto", str(stoker.write("list", *lines)))
        assert outcome.code == 0
        assert "the memory of these devices is unknown, so each runs one job at a time" in outcome.err
        assert stoker.logs() == ["0\n"] * 3


class TestDriverInTrouble:
    """A driver that stops answering in the middle of a run."""

    def test_it_hangs_and_recovers(self, machine: Machine) -> None:
        """What runs goes on, nothing that shares is started, everybody is told why, and then it all goes on."""
        queue = machine(ONE)
        running = queue.hand_in(holds(4 * GIB), "while [ ! -e go ]; do sleep 0.05; done", vram="6G")
        queue.wait_word("running", running)
        queue.add("block nvmlDeviceGetCount_v2 600")
        wait_until(lambda: "the NVIDIA driver does not answer" in status(queue)["notes"])
        waiting = queue.hand_in("true", vram="6G")
        wait_until(lambda: "the NVIDIA driver does not answer" in why(queue, waiting))
        assert queue.word(running) == "running"
        queue.open_gate("go")
        queue.wait_over(running)
        assert queue.word(waiting) == "waiting"
        queue.remove("block")
        queue.wait_over(waiting)
        assert [queue.word(job) for job in (running, waiting)] == ["done", "done"]


class TestModels:
    """Machines with GPUs of several kinds, and jobs on several GPUs."""

    def test_kept_apart(self, machine: Machine) -> None:
        """What was learnt on one model says nothing about another: there, work is alone and measured again."""
        queue = machine(FakeMachine((FakeGpu("GPU-a"), FakeGpu("GPU-b", name="Tesla T4", total=16 * GIB))))
        size = f"$((STOKER_GPU_IDS ? {2 * GIB} : {6 * GIB}))"
        held = f'echo "process $STOKER_GPU_IDS $$ {size} compute -1 30" >> "$FAKE_NVML_STATE"'
        lines = (held, "while [ ! -e go$STOKER_GPU_IDS ]; do sleep 0.05; done")
        on_a100 = queue.hand_in(*lines, options=("--on", "0"))
        wait_until(lambda: status(queue, on_a100)["jobs"][0]["used_bytes"] == 6 * GIB)
        queue.open_gate("go0")
        queue.wait_over(on_a100)
        wait_until(lambda: A100 in queue.learnt(on_a100).models)
        on_t4 = queue.hand_in(*lines, options=("--on", "1"))
        queue.wait_word("running", on_t4)
        other = queue.hand_in("true", vram="1G", options=("--on", "1"))
        wait_until(lambda: why(queue, other) == "needs 1 GPU; none free")
        wait_until(lambda: status(queue, on_t4)["jobs"][0]["used_bytes"] == 2 * GIB)
        queue.open_gate("go1")
        queue.wait_over(on_t4, other)
        wait_until(lambda: len(queue.learnt(on_t4).models) == 2)
        assert {model: runs.peaks for model, runs in queue.learnt(on_t4).models.items()} == {
            A100: (6 * GIB,),
            "Tesla T4": (2 * GIB,),
        }

    def test_several_gpus(self, machine: Machine) -> None:
        """What a job declares is set aside on each of its GPUs, and its peak is that of the fullest."""
        queue = machine(FakeMachine((FakeGpu("GPU-a"), FakeGpu("GPU-b"))))
        gate = "while [ ! -e go ]; do sleep 0.05; done"
        wide = queue.hand_in(holds(3 * GIB, 0), holds(8 * GIB, 1), gate, vram="10G", options=("-G", "2"))
        queue.wait_word("running", wide)
        large = [queue.hand_in(STILL, vram="30G", options=("--on", str(gpu))) for gpu in (0, 1)]
        small = [queue.hand_in(STILL, vram="28G", options=("--on", str(gpu))) for gpu in (0, 1)]
        queue.wait_word("running", *small)
        wait_until(lambda: all("30.0G" in why(queue, job) for job in large))
        queue.open_gate("go")
        queue.wait_over(wide)
        wait_until(lambda: queue.peak(wide))
        assert queue.peak(wide) == 8 * GIB


class TestStrangers:
    """Who computes on a GPU without being a job."""

    def test_beside_one(self, machine: Machine) -> None:
        """With strangers counted, jobs go into what is left; a stranger's memory and load are not taken for theirs."""
        queue = machine(FakeMachine((FakeGpu("GPU-a", utilisation=70),)))
        queue.environment["STOKER_STRANGERS"] = "count"
        with a_process() as stranger:
            queue.add(f"process 0 {stranger} {20 * GIB} compute -1 70")
            job = queue.hand_in(holds(6 * GIB), SEEN, vram="8G")
            queue.wait_word("running", job)
            large = queue.hand_in("true", vram="24G")
            wait_until(lambda: "24.0G" in why(queue, large))
            end_when_seen(queue, job, 6 * GIB)
            wait_until(lambda: queue.learnt(job).models)
            (runs,) = queue.learnt(job).models.values()
            assert (runs.peaks, runs.loads) == ((6 * GIB,), ())
        queue.wait_over(large)


@contextlib.contextmanager
def a_process() -> Iterator[int]:
    """Somebody who is no job."""
    with ending(subprocess.Popen(["sleep", "600"])) as process:
        try:
            yield process.pid
        finally:
            process.kill()


class TestEngines:
    """Measures are not lost with the engine that made them."""

    def test_an_engine_that_leaves(self, machine: Machine) -> None:
        """It writes down what it saw, and the next one goes on from there."""
        queue = machine(ONE)
        gate = "while [ ! -e go ]; do sleep 0.05; done"
        job = queue.hand_in(holds(9 * GIB), SEEN, holds(2 * GIB), gate)
        wait_until(lambda: status(queue, job)["jobs"][0]["used_bytes"] == 9 * GIB)
        queue.open_gate("seen")
        wait_until(lambda: status(queue, job)["jobs"][0]["used_bytes"] == 2 * GIB)
        assert queue("engine", "stop").code == 0
        assert queue.peak(job) == 9 * GIB
        queue.start_engine()
        wait_until(lambda: status(queue, job)["jobs"][0]["used_bytes"] == 2 * GIB)
        queue.open_gate("go")
        queue.wait_over(job)
        wait_until(lambda: queue.learnt(job).models)
        assert queue.peak(job) == 9 * GIB
