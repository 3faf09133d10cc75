"""Prepare the decoding of structs, for programs that decode in several threads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec


def prepare_decoders() -> None:
    """Let msgspec learn all structs that are imported, in one thread.

    It learns a struct when it decodes the first one. Another thread that decodes the same struct meanwhile finds fields
    without types, and the process dies of a segmentation fault.
    """
    for kind in _structs(msgspec.Struct):
        with contextlib.suppress(NameError, TypeError):  # one that is only encoded may have names that are not imported
            msgspec.json.Decoder(kind)


def _structs(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _structs(kind)
