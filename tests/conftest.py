"""The order of the tests: what takes long comes first, so that no worker is left alone with it in the end."""

from __future__ import annotations

import pytest

_FIRST = ("system/test_storm", "system/", "devices/", "runner/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Storms, then whatever else has many processes; files stay together."""
    items.sort(key=_haste)


def _haste(item: pytest.Item) -> int:
    return next((place for place, part in enumerate(_FIRST) if f"/tests/{part}" in str(item.path)), len(_FIRST))
