from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fakes import EngineOnFakeRunner


@pytest.fixture
def world(tmp_path: Path) -> Iterator[EngineOnFakeRunner]:
    """An engine with two named devices."""
    made = EngineOnFakeRunner(tmp_path)
    yield made
    made.close()
