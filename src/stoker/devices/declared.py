"""Devices that are only names given by the user: nothing is measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from stoker.core.device import Device, Snapshot
from stoker.core.errors import UsageError

NO_GPU = "none"
"""Id of the slot whose word is empty: its jobs see no GPU."""


class DeclaredDevices:
    """One device per listed slot word, in the listed order, for as long as the engine runs."""

    variables: Mapping[str, str] = {}

    def __init__(self, words: Sequence[str], known: Mapping[str, str] | None = None) -> None:
        """`known` maps an index, a UUID or a prefix of one to the UUID, where a driver knows it."""
        if not words:
            raise UsageError("no devices are named", "name at least one, for example 0 or 0,1")
        self._devices = tuple(_devices(words, known or {}))

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        return Snapshot(now, self._devices)

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


def _devices(words: Sequence[str], known: Mapping[str, str]) -> Iterator[Device]:
    claims = [_claims(word, known) for word in words]
    for word, device_id, own in zip(words, _unique_ids(words), claims, strict=True):
        listed = [sum(claim in other for other in claims) for claim in own]
        share = max(listed, default=1)
        yield Device(device_id, label=word, visible=word, claims=own, kind="declared", share=share)


def _claims(word: str, known: Mapping[str, str]) -> tuple[str, ...]:
    parts = [part.strip() for part in word.split(",")]
    names = [known.get(part, f"name:{part}") for part in parts if part]
    return tuple(dict.fromkeys(names))


def _unique_ids(words: Sequence[str]) -> list[str]:
    # A word such as "0#2" may be the user's own, so counted ids keep clear of all words.
    ids: list[str] = []
    for word in words:
        name, candidate, count = word or NO_GPU, word or NO_GPU, 1
        while candidate in ids or (count > 1 and candidate in words):
            count += 1
            candidate = f"{name}#{count}"
        ids.append(candidate)
    return ids
