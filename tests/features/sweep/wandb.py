"""Files of wandb, written by hand after their form: records of protocol buffers in blocks."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

from stoker.features.sweep.model.wandb_log import BLOCK, HEADER


def varint(value: int) -> bytes:
    """A number as protocol buffers write it."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, body: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(body)) + body


def item(name: str, value: Any) -> bytes:
    """A logged value; a name with dots is nested."""
    keys = b"".join(field(2, part.encode()) for part in name.split("."))
    return field(1, keys + field(16, json.dumps(value).encode()))


def record(kind: int, *items: bytes, number: int = 7) -> bytes:
    """A record of history (2) or summary (3), with a number and a field of eight bytes that no reader needs."""
    return varint(1 << 3) + varint(number) + varint(9 << 3 | 1) + bytes(8) + field(kind, b"".join(items))


def run_file(records: Iterable[bytes]) -> bytes:
    """The bytes of a file with these records, in blocks."""
    data = bytearray(HEADER)
    for content in records:
        body, first = content, True
        while first or body:
            left = BLOCK - len(data) % BLOCK
            if left < 7:
                data += bytes(left)
                continue
            part, body = body[: left - 7], body[left - 7 :]
            kind = {(True, True): 1, (True, False): 2, (False, False): 3, (False, True): 4}[first, not body]
            data += struct.pack("<IHB", 0, len(part), kind) + part
            first = False
    return bytes(data)
