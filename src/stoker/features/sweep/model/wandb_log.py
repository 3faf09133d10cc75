"""Read what `wandb.log` wrote: the file `run-ID.wandb`, a log of LevelDB's form whose records are protocol buffers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

HEADER = b":W&B\xe1\xbe\x00"
BLOCK = 32768
_PREFIX = struct.Struct("<IHB")
"""Before each part of a record: checksum, length, and which part it is."""
_DOUBLE = struct.Struct("<d")
_FULL, _FIRST, _LAST = 1, 2, 4
_KINDS: Mapping[int, Literal["history", "summary"]] = {2: "history", 3: "summary"}
"""Fields of a record; in both of them, field 1 is an item."""
_KEY, _NESTED_KEY, _INTEGER, _NUMBER, _JSON = 1, 2, 5, 6, 16
"""Fields of an item."""


class Logged(NamedTuple):
    """The numbers of one call of `wandb.log`, or of a change of the summary."""

    kind: Literal["history", "summary"]
    values: dict[str, float]


class RunLog:
    """Takes the bytes of a file as they come, and gives what was logged."""

    def __init__(self) -> None:
        self._data = b""
        self._place = 0
        """Of the first byte of `_data` in the file."""
        self._record = b""

    def feed(self, data: bytes) -> Iterator[Logged]:
        """The records that are whole by now; ValueError for a file that is not of this form."""
        self._data += data
        if not self._place:
            if len(self._data) < len(HEADER):
                return
            if not self._data.startswith(HEADER):
                raise ValueError("it is not a file of wandb")
            self._drop(len(HEADER))
        while (record := self._next()) is not None:
            yield from _logged(record)

    def _next(self) -> bytes | None:
        """The next record; None if it is not there yet."""
        while True:
            left = BLOCK - self._place % BLOCK
            if left < _PREFIX.size:
                if len(self._data) < left:
                    return None
                self._drop(left)
                continue
            if len(self._data) < _PREFIX.size:
                return None
            _, length, part = _PREFIX.unpack_from(self._data)
            if part == 0 or len(self._data) < _PREFIX.size + length:
                return None
            body = self._data[_PREFIX.size : _PREFIX.size + length]
            self._drop(_PREFIX.size + length)
            self._record = body if part in (_FULL, _FIRST) else self._record + body
            if part in (_FULL, _LAST):
                return self._record

    def _drop(self, count: int) -> None:
        self._data = self._data[count:]
        self._place += count


def _logged(record: bytes) -> Iterator[Logged]:
    for number, value in _fields(record):
        if number in _KINDS and isinstance(value, bytes):
            items = [item for place, item in _fields(value) if place == 1 and isinstance(item, bytes)]
            numbers = dict(pair for item in items for pair in _numbers_of(item))
            if numbers:
                yield Logged(_KINDS[number], numbers)


def _numbers_of(item: bytes) -> Iterator[tuple[str, float]]:
    """The numbers of an item, by name."""
    names: list[str] = []
    content: object = None
    for place, value in _fields(item):
        if place in (_KEY, _NESTED_KEY) and isinstance(value, bytes):
            names.append(value.decode(errors="replace"))
        elif place == _JSON and isinstance(value, bytes):
            content = _decoded(value)
        elif place == _INTEGER and isinstance(value, int):
            content = value - (1 << 64) if value >> 63 else value
        elif place == _NUMBER:
            content = value
    return _numbers_in(".".join(names), content)


def _decoded(text: bytes) -> object:
    try:
        return json.loads(text, parse_int=float)  # msgspec does not know NaN and Infinity
    except (ValueError, RecursionError):
        return None


def _numbers_in(name: str, content: object) -> Iterator[tuple[str, float]]:
    """The numbers of a value; those of a table, which some versions of wandb write whole, have names with dots."""
    match content:
        case bool():
            return
        case int() | float() | "NaN" | "Infinity" | "-Infinity":
            yield name, float(content)
        case dict():
            for key, value in content.items():
                yield from _numbers_in(f"{name}.{key}", value)


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int | float]]:
    """Numbers and values of the fields of a message."""
    place = 0
    while place < len(data):
        tag, place = _varint(data, place)
        match tag & 7:
            case 0:
                value, place = _varint(data, place)
                yield tag >> 3, value
            case 1:
                if place + _DOUBLE.size > len(data):
                    raise ValueError("it ends within a number")
                yield tag >> 3, _DOUBLE.unpack_from(data, place)[0]
                place += _DOUBLE.size
            case 2:
                length, place = _varint(data, place)
                yield tag >> 3, data[place : place + length]
                place += length
            case 5:
                place += 4
            case _:
                raise ValueError("it has a field of an unknown kind")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(data):
            raise ValueError("it ends within a number")
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        shift += 7
        if byte < 0x80:
            return value, place
