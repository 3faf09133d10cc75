"""Progress bars that draw themselves anew with a carriage return, reduced to what a terminal would show at the end."""

from __future__ import annotations

LONGEST = 65_536
"""Bytes of one piece that are held back at most; longer ones are shown as they are."""


class Collapser:
    """Takes bytes in parts of any size, and gives back those that no later carriage return could take away."""

    def __init__(self) -> None:
        self._piece = b""
        self._returned = False
        """Whether a carriage return came after the piece, so that what follows replaces it."""

    def feed(self, data: bytes) -> bytes:
        """What is certain by now."""
        shown = bytearray()
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._take(line, shown)
            shown += self._piece + b"\n"
            self._piece, self._returned = b"", False
        self._take(rest, shown)
        return bytes(shown)

    def end(self) -> bytes:
        """What was held back: the last line, as it stands."""
        piece, self._piece = self._piece, b""
        return piece

    def _take(self, part: bytes, shown: bytearray) -> None:
        """A part of a line: all but its last piece that says something is gone."""
        first, *others = part.split(b"\r")
        self._add(first)
        for piece in others:
            self._returned = True
            self._add(piece)
        if len(self._piece) > LONGEST:
            shown += self._piece
            self._piece = b""

    def _add(self, piece: bytes) -> None:
        if not piece:
            return
        self._piece = piece if self._returned else self._piece + piece
        self._returned = False
