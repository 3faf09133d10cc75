"""The NVML stand-in as a fixture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.nvml import Bench, compiled, driver_of


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Bench:
    """The stand-in, before anything is written into its state."""
    return Bench(compiled(tmp_path_factory.getbasetemp()), tmp_path / "state")


@pytest.fixture
def driver(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The stand-in, loaded and initialised by nvidia-ml-py in this process."""
    with driver_of(bench, monkeypatch) as driver:
        yield driver
