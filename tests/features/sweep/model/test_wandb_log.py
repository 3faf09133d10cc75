"""The file of a run of wandb."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from math import isnan

import pytest

from features.sweep.wandb import field, item, record, run_file, varint
from stoker.features.sweep.model.wandb_log import BLOCK, HEADER, Logged, RunLog


def read(data: bytes, size: int = 1 << 20) -> list[Logged]:
    """Read a file that comes in pieces of this size."""
    log = RunLog()
    return [found for start in range(0, len(data), size) for found in log.feed(data[start : start + size])]


def losses(count: int) -> Iterator[bytes]:
    for step in range(count):
        yield record(2, item("val loss", 1 / (step + 1)), item("_step", step), item("image", "a picture" * 100))


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_values_over_many_blocks(size: int) -> None:
    """Records that cross blocks are whole, in whatever pieces the file is read."""
    data = run_file(losses(90 if size > 1 else 40))
    assert len(data) > BLOCK
    found = read(data, size)
    assert [logged.values["val loss"] for logged in found] == [1 / (step + 1) for step in range(len(found))]
    assert len(found) >= 40
    assert {"image"}.isdisjoint(found[0].values)


def test_nested_names_and_numbers_that_json_does_not_have() -> None:
    """Names are joined by dots; nan is a number, also as text; texts and booleans are none."""
    values = record(2, item("eval.loss", 2), item("nan", float("nan")), item("text", "NaN"), item("ok", True))
    (logged,) = read(run_file([values, record(5, item("config", 1))]))
    assert logged.kind == "history"
    assert logged.values["eval.loss"] == 2.0
    assert isnan(logged.values["nan"])
    assert isnan(logged.values["text"])
    assert set(logged.values) == {"eval.loss", "nan", "text"}


def test_tables_are_numbers_with_names() -> None:
    """Their names have dots, also where wandb wrote the table as one item; lists and texts are no numbers."""
    table = {"loss": 2, "deep": {"acc": float("nan")}, "text": "a", "list": [1]}
    (logged,) = read(run_file([record(2, item("eval", table), item("huge", 10**400), item("name", "a"))]))
    assert {name: str(value) for name, value in logged.values.items()} == {
        "eval.loss": "2.0",
        "eval.deep.acc": "nan",
        "huge": "inf",
    }


def test_integers_and_doubles() -> None:
    """Newer versions may write these instead of JSON."""
    integer = field(1, field(1, b"a") + varint(5 << 3) + varint((1 << 64) - 3))
    double = field(1, field(1, b"b") + varint(6 << 3 | 1) + struct.pack("<d", 0.25))
    assert read(run_file([record(3, integer, double)])) == [Logged("summary", {"a": -3.0, "b": 0.25})]


def test_an_end_that_is_not_there_yet() -> None:
    """A record counts when it is whole; zeros after the last one are no records."""
    data = run_file(losses(2))
    assert len(read(data[:-1])) == 1
    assert len(read(data + bytes(100))) == 2
    assert read(HEADER[:3]) == []


def test_another_file_is_refused() -> None:
    """Such as one of an unknown version, or with fields of an unknown kind."""
    with pytest.raises(ValueError, match="not a file of wandb"):
        read(b"SQLite format 3\0")
    for body in (b"\x0f", b"\x0a", b"\x80", b"\x09"):
        with pytest.raises(ValueError, match="it "):
            read(run_file([field(2, body)]))
