from __future__ import annotations

from collections.abc import Iterator

import pytest

from stoker.ledger import Ledger, prepare_ledger
from support.users import reachable_directory


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    """A ledger that all users can reach."""
    with reachable_directory() as directory:
        yield Ledger(prepare_ledger(directory / "ledger"))
