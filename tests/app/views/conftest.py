from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.store.writer import Store
from support.past import PastQueue


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PastQueue]:
    with closing(PastQueue(tmp_path)) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "queue.db")) as opened:
        yield opened
