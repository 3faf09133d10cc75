from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fakes import EngineAtFakeSite


@pytest.fixture
def world(tmp_path: Path) -> Iterator[EngineAtFakeSite]:
    """An engine whose site has no room, so that all jobs wait."""
    made = EngineAtFakeSite(tmp_path, room=0)
    yield made
    made.close()
