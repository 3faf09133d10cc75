"""Who gets PyTorch's cap."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.core.spec import Command, JobSpec, Resources
from stoker.queue.preflight import Preflight, knows_cap
from support.torch import with_torch

SHARED = JobSpec(resources=Resources(memory=2**30), cap=True)
TRAIN = Command((sys.executable, "train.py"))


@pytest.mark.parametrize("version", ["2.10.0", "2.10.0+cu128", "2.10", "2.10.1", "2.11.0a0+git", "3.0", "2.10.0.post1"])
def test_knows(version: str) -> None:
    """Every PyTorch since 2.10.0 knows the cap."""
    assert knows_cap(version)


@pytest.mark.parametrize(
    "version", ["2.9.1", "2.9", "1.13", "2.10.0a0+nv25.11", "2.10.0.dev20251101", "2.10.0rc1", "x"]
)
def test_does_not_know(version: str) -> None:
    """None before does; what was built before the release may be of either kind."""
    assert not knows_cap(version)


def settled(environment: dict[str, str], command: Command, spec: JobSpec) -> tuple[bool, list[str]]:
    """Whether the cap stays, and what is said."""
    said: list[str] = []
    return Preflight(environment, said.append).settle_cap(command, spec).cap, said


def test_new_enough(tmp_path: Path) -> None:
    """The terms stay as they are, and nothing is said."""
    assert settled(with_torch(tmp_path, "2.10.0"), TRAIN, SHARED) == (True, [])


def test_too_old(tmp_path: Path) -> None:
    """The sentence tells which PyTorch of which Python it is."""
    sentence = f"--cap is left out: PyTorch 2.9.1 of {sys.executable} does not know it, but 2.10 does"
    assert settled(with_torch(tmp_path, "2.9.1"), TRAIN, SHARED) == (False, [sentence])


def test_no_torch() -> None:
    """Who has none needs no cap."""
    sentence = f"--cap is left out: there is no PyTorch for {sys.executable}"
    assert settled(dict(os.environ), TRAIN, SHARED) == (False, [sentence])


def test_the_jobs_own_variables_count(tmp_path: Path) -> None:
    """What --env says about where packages are is heard."""
    path = with_torch(tmp_path, "2.10.0")["PYTHONPATH"]
    assert settled(dict(os.environ), TRAIN, replace(SHARED, extra_env=(("PYTHONPATH", path),))) == (True, [])


def test_cannot_tell() -> None:
    """A command that could run anything gets none."""
    kept, (sentence,) = settled(dict(os.environ), Command(("source x && python y",), "/bin/sh"), SHARED)
    assert not kept
    assert "does not tell which Python it runs" in sentence


def test_a_whole_card() -> None:
    """There is nothing to cap."""
    kept, (sentence,) = settled(dict(os.environ), TRAIN, JobSpec(cap=True))
    assert not kept
    assert "without --vram" in sentence


def test_not_asked_for() -> None:
    """Who does not want one is not bothered."""
    spec = JobSpec(resources=Resources(memory=2**30))
    preflight = Preflight({}, pytest.fail)
    assert preflight.settle_cap(Command(("missing",)), spec) is spec


def test_each_is_asked_once(tmp_path: Path) -> None:
    """However many jobs have the same Python, and each reason is said once."""
    asked = tmp_path / "asked"
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho x >> {asked}\necho stoker-torch 2.4\n")
    python.chmod(0o755)
    said: list[str] = []
    preflight = Preflight(dict(os.environ), said.append)
    jobs = [replace(SHARED, extra_env=(("SEED", str(seed)),)) for seed in range(5)]
    assert not any(preflight.settle_cap(Command((str(python), str(spec))), spec).cap for spec in jobs)
    assert asked.read_text() == "x\n"
    assert len(said) == 1
    first, second = (preflight.settle_cap(Command((str(python),)), jobs[0]) for _ in range(2))
    assert first is second
