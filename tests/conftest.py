"""For all tests: signals as at a terminal, and what takes long first, so that no worker is left alone with it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from hypothesis import settings

from support.bare import Notes
from support.optional import NOTES
from support.signals import reset_for_children

# A slow machine is no bug: what hangs ends by the limit of each test.
settings.register_profile("stoker", deadline=None)
settings.load_profile("stoker")

_FIRST = ("/system/test_storm", "/system/test_faults", "/system/", "/devices/", "/runner/")


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local time zone is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def pytest_configure(config: pytest.Config) -> None:
    """Undo what nohup, cron or a script did to signals; a worker of xdist does so for itself."""
    reset_for_children()
    if os.environ.get(NOTES):
        config.pluginmanager.register(Notes())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Storms, then whatever else has many processes; files stay together."""
    items.sort(key=_haste)


def _haste(item: pytest.Item) -> int:
    return next((place for place, part in enumerate(_FIRST) if part in str(item.path)), len(_FIRST))
