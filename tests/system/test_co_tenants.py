"""Attempts of several engines on one GPU."""

from __future__ import annotations

from pathlib import Path

from stoker.core.job import Exited, Running
from stoker.core.spec import Resources
from stoker.devices.simulated import SimulatedDevices
from support.build import GIB
from support.engines import Workshop
from support.training_job import TRAIN


def workshop(directory: Path, name: str) -> Workshop:
    """One of several engines that see the same GPU and the same ledger."""
    home = directory / name
    home.mkdir()
    devices = SimulatedDevices("1x24G", str(directory / "sim"))
    return Workshop(home, devices=devices, name=name, ledger=directory / "ledger")


def is_over(shop: Workshop) -> bool:
    """Whether the worker has written down an end, which the engine may not have read."""
    return any(b"\nE " in journal.read_bytes() for journal in shop.directory.glob("workers/*/journal"))


def test_a_neighbour_that_came_a_moment_ago_counts(tmp_path: Path) -> None:
    """Who runs out of memory beside an attempt of another engine is not to blame, though nobody had looked since."""
    with workshop(tmp_path, "ours") as ours, workshop(tmp_path, "other") as other:
        line = f"while [ ! -e go ]; do sleep 0.02; done; {TRAIN} --memory 12G --seconds 1 --oom-text jax"
        (job,) = ours.submit(line, resources=Resources(memory=12 * GIB))
        ours.work_until(lambda: isinstance(ours.job(job).state, Running))
        (greedy,) = other.submit(f"{TRAIN} --memory 14G --seconds 600", resources=Resources(memory=4 * GIB))
        other.work_until(lambda: any(live.memory for live in other.engine.uses.values()))
        (ours.directory / "go").touch()
        other.work_until(lambda: is_over(ours))
        ours.work_until(lambda: ours.job(job).tries == 1)
        (exited,) = [event for event in ours.store.events(job) if isinstance(event, Exited)]
        assert (exited.cause, exited.shared) == ("oom", True)
        assert isinstance(other.job(greedy).state, Running)
