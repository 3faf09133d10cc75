from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.ledger import Ledger, prepare_ledger
from support.past import PastQueue


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(prepare_ledger(tmp_path / "ledger"))


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PastQueue]:
    with contextlib.closing(PastQueue(tmp_path)) as queue:
        yield queue
