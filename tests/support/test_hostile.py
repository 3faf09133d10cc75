"""Mutations change valid bytes and reach numbers that formats forbid."""

from __future__ import annotations

import json

from hypothesis import find

from support.hostile import hostile, mutated

VALID = b'{"since": 1.5, "what": "work"}'


def test_numbers_are_replaced() -> None:
    """A mutation of JSON is often still JSON, with a number that was never written."""

    def far(contents: bytes) -> bool:
        try:
            found = json.loads(contents)
        except (ValueError, RecursionError):
            return False
        return isinstance(found, dict) and isinstance(found.get("since"), float) and found["since"] > 1e200

    assert json.loads(find(mutated(VALID), far, settings=hostile))["what"] == "work"


def test_bytes_of_any_length_come_out() -> None:
    """Mutations shorten and lengthen, also where there was nothing."""
    assert find(mutated(VALID), lambda found: len(found) > 4000, settings=hostile)
    assert find(mutated(VALID), lambda found: len(found) < 4, settings=hostile) != VALID
    assert find(mutated(b""), bool, settings=hostile)
