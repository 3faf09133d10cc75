"""Prepare the decoding of structs, for programs that decode in several threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

_prepared: set[type[msgspec.Struct]] = set()


def prepare_decoders() -> None:
    """Let msgspec learn all structs of Stoker that are imported. Call it in one thread at a time.

    It learns a struct when it decodes the first one. Another thread that decodes the same struct meanwhile finds fields
    without types, and the process dies of a segmentation fault.
    """
    for kind in set(_structs(msgspec.Struct)) - _prepared:
        _prepared.add(kind)
        with contextlib.suppress(NameError, TypeError):  # one that is only encoded may have names that are not imported
            msgspec.json.Decoder(kind)


def _structs(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("stoker"):
            yield kind
        yield from _structs(kind)
