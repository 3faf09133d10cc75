"""A queue with a past, and browsers that look at it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.web.api import ServedQueue
from support.past import PastQueue
from support.web import TOKEN, Browser


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PastQueue]:
    (tmp_path / "host-simulated").mkdir()
    made = PastQueue(tmp_path / "host-simulated", time.time())
    made.write_status()
    yield made
    made.close()


@pytest.fixture
def stranger(queue: PastQueue) -> Browser:
    """A browser that has not opened the link."""
    return Browser(ServedQueue(queue.paths, "tester"))


@pytest.fixture
def client(stranger: Browser) -> Browser:
    """A program that knows the token."""
    stranger.headers["Authorization"] = f"Bearer {TOKEN}"
    return stranger
