"""`stoker gpus` with an engine, without one, and on a machine without GPUs."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from stoker.app.views.gpus import Gpus
from stoker.core.lease import Claim
from stoker.core.spec import Resources
from stoker.ledger import Ledger, prepare_ledger
from stoker.store.queries import drained_key
from support.background import Background
from support.cli import Stoker, until
from support.nvml import GPU_IS_LOST, Bench, FakeGpu, FakeMachine, FakeProcess, compiled
from support.terminal import open_terminal
from support.wait import ending, wait_until

GIB = 2**30


def gpus(queue: Stoker, *words: str) -> Gpus:
    """What programs are told of the devices."""
    outcome = queue("gpus", "--json", *words)
    assert outcome.code == 0, outcome.err
    return msgspec.json.decode(outcome.out, type=Gpus)


@contextlib.contextmanager
def a_stranger(queue: Background, device: int, size: str) -> Iterator[int]:
    """A process on a simulated GPU that is no job."""
    told = {"STOKER_SIM_DIR": str(queue.paths.simulator), "CUDA_VISIBLE_DEVICES": str(device)}
    command = [sys.executable, "-m", "stoker.devices.demo_job", "--seconds", "600", "--memory", size]
    with ending(subprocess.Popen(command, env={**queue.environment, **told})) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_without_an_engine_the_devices_are_asked_themselves(background: Background) -> None:
    """A look does not start one; strangers and leases of others are seen all the same."""
    background.paths.simulator.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(prepare_ledger(Path(background.environment["STOKER_LEDGER"])))
    held = ledger.claim((Claim("sim:0"),), "a sweep", time.time())
    assert held is not None
    with a_stranger(background, 1, "5G") as pid:
        wait_until(lambda: gpus(background).devices[1].used_bytes == 5 * GIB)
        seen = gpus(background)
    ledger.release(held)
    assert background.engine_process is None
    assert not seen.engine_running
    first, second = seen.devices
    assert [(lease.what, lease.memory_bytes) for lease in first.leases] == [("a sweep", None)]
    assert first.others_bytes == 24 * GIB
    assert [one.pid for one in second.strangers] == [pid]
    assert "demo_job" in second.strangers[0].command


def test_with_an_engine(background: Background) -> None:
    """Jobs by their ids, and lines for programs."""
    (job_id,) = background.submit(until("go"), resources=Resources(allowed=("SIM-1",)))
    background.wait_word("running", job_id)
    wait_until(lambda: [device.jobs for device in gpus(background).devices] == [[], [str(job_id)]])
    header, *lines = background("gpus").out.splitlines()
    fields = [dict(zip(header.split("\t"), line.split("\t"), strict=True)) for line in lines]
    assert [(one["GPU"], one["MEMORY"], one["JOBS"]) for one in fields] == [
        ("0", str(24 * GIB), "-"),
        ("1", str(24 * GIB), str(job_id)),
    ]


class TestPick:
    """Free devices for commands outside the queue."""

    def test_free_ones(self, background: Background) -> None:
        """Their names, fit for CUDA_VISIBLE_DEVICES, and nothing else."""
        assert background("gpus", "--pick", "2").out == "0,1\n"
        assert gpus(background, "--pick", "2", "--vram", "10G").picked == ["0", "1"]

    def test_what_jobs_hold_is_not_free(self, background: Background) -> None:
        """But the rest of a device that they share is."""
        whole, part = background.submit(until("go"), resources=Resources(allowed=("SIM-0",))) + background.submit(
            until("go"), resources=Resources(memory=10 * GIB, allowed=("SIM-1",))
        )
        background.wait_word("running", whole, part)
        wait_until(lambda: [device.jobs for device in gpus(background).devices] == [[str(whole)], [str(part)]])
        assert background("gpus", "--pick", "1", "--vram", "10G").out == "1\n"
        outcome = background("gpus", "--pick", "1")
        assert (outcome.code, outcome.out) == (1, "")
        assert "needs 1 GPU; none free" in outcome.err

    def test_a_drained_device_is_not_picked(self, background: Background) -> None:
        """Its user does not want it used."""
        with background.open_store() as store:
            store.put_setting(drained_key("SIM-0"), {"note": "drained by you", "at": 1.0})
        assert background("gpus", "--pick", "1").out == "1\n"
        outcome = background("gpus", "--pick", "2")
        assert outcome.code == 1
        assert "GPU 0 is drained by you" in outcome.err

    def test_a_stranger_is_respected(self, background: Background) -> None:
        """Whoever computes on a device keeps it."""
        background.paths.simulator.mkdir(parents=True, exist_ok=True)
        with a_stranger(background, 0, "5G"):
            wait_until(lambda: gpus(background).devices[0].used_bytes == 5 * GIB)
            assert background("gpus", "--pick", "1").out == "1\n"
            assert background("gpus", "--pick", "2").code == 1

    @pytest.mark.parametrize("words", [("3",), ("1", "--vram", "25G"), ("1", "--gpu-type", "a100")])
    def test_what_can_never_be_had(self, background: Background, words: tuple[str, ...]) -> None:
        """Exit code 5, and what the machine has."""
        outcome = background("gpus", "--pick", *words)
        assert (outcome.code, outcome.out) == (5, "")
        assert outcome.err

    @pytest.mark.parametrize(
        "words", [("--vram", "10G"), ("--pick", "0"), ("--pick", "1", "--vram", "much"), ("--pick", "1", "--vram", "8")]
    )
    def test_bad_input(self, background: Background, words: tuple[str, ...]) -> None:
        """Exit code 2."""
        assert background("gpus", *words).code == 2


def test_what_the_driver_tells(stoker: Stoker, tmp_path: Path) -> None:
    """Real GPUs are asked without an engine; a desktop is shown but keeps nobody off, a lost GPU says so."""
    bench = Bench(compiled(tmp_path), tmp_path / "machine")
    with ending(subprocess.Popen(["sleep", "60"])) as stranger:
        drawing = FakeProcess(stranger.pid, GIB // 8, kind="graphics")
        computing = FakeProcess(stranger.pid, 20 * GIB)
        bench.write(
            FakeMachine(
                (
                    FakeGpu("GPU-a", processes=(drawing,)),
                    FakeGpu("GPU-b", processes=(computing,), utilisation=88, celsius=66),
                    FakeGpu("GPU-c", faults={"*": GPU_IS_LOST}),
                )
            )
        )
        stoker.environment |= {name: bench.environment[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_STATE")}
        seen = gpus(stoker)
        picked = stoker("gpus", "--pick", "1")
        too_many = stoker("gpus", "--pick", "2")
        stranger.kill()
    desktop, busy, lost = seen.devices
    assert [one.graphics for one in desktop.strangers] == [True]
    assert (busy.utilisation_percent, busy.temperature_celsius, busy.others_bytes) == (88, 66, busy.used_bytes)
    assert [(one.pid, one.memory_bytes) for one in busy.strangers] == [(stranger.pid, 20 * GIB)]
    assert lost.problem
    assert (picked.code, picked.out) == (0, "GPU-a\n")
    assert too_many.code == 1
    assert not seen.simulated


def test_a_machine_without_gpus(stoker: Stoker) -> None:
    """Nothing is listed, and why is told; nothing can be picked there."""
    seen = gpus(stoker)
    if seen.devices:
        pytest.skip("this machine has GPUs")
    assert seen.notes[0].startswith("no GPU found")
    outcome = stoker("gpus")
    assert outcome.code == 0
    assert "no GPU found" in outcome.err
    assert stoker("gpus", "--pick", "1").code == 5


def test_on_a_terminal(background: Background) -> None:
    """A bar for each device, and below them who is no job."""
    background.paths.simulator.mkdir(parents=True, exist_ok=True)
    names = ("STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM", "PATH")
    with a_stranger(background, 1, "12G") as pid:
        wait_until(lambda: gpus(background).devices[1].used_bytes == 12 * GIB)
        with open_terminal(background.home, **{name: background.environment[name] for name in names}) as terminal:
            terminal.start(["stoker", "gpus"], 100, 24)
            screen = terminal.wait_for("exit code 0")
    assert " SIM " in screen
    assert "2 × SIM 24G" in screen
    assert "▓" * 13 in screen
    assert f"12G foreign (pid {pid})" in screen
    assert "OTHER JOBS AND PROCESSES" in screen
