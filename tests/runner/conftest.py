from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.local import Yard, yard


@pytest.fixture
def works(tmp_path: Path) -> Iterator[Yard]:
    with yard(tmp_path) as made:
        yield made
