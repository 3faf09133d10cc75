"""Passes of a shared page: each only reads, ends by itself, and can be revoked."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from stoker.core.errors import UsageError
from stoker.store.paths import UNREADABLE, Paths, replace_file

_PASS_BYTES = 10
LONGEST_SECONDS = 366 * 86400.0
MOST_PASSES = 100


class Pass(Struct, frozen=True):
    """A pass; the text that its holders know is not stored."""

    number: int
    digest: str
    made: float
    until: float
    """Unix time."""


def read_passes(paths: Paths, page: str, now: float) -> Sequence[Pass]:
    """The passes that are valid now; none if the file is damaged."""
    with contextlib.suppress(*UNREADABLE):
        stored = msgspec.json.decode(paths.page_passes(page).read_bytes(), type=list[Pass])
        return [admitted for admitted in stored if admitted.until > now]
    return []


def make_pass(paths: Paths, page: str, seconds: float, now: float) -> tuple[Pass, str]:
    """Make a pass, and its text: 16 letters and digits, in groups."""
    if seconds > LONGEST_SECONDS:
        raise UsageError("a link is valid for at most 366 days", "give less, for example 90d")
    passes = read_passes(paths, page, now)
    if len(passes) >= MOST_PASSES:
        hint = f"revoke one: stoker web --{page} --revoke {passes[0].number}"
        raise UsageError(f"{MOST_PASSES} links are valid", hint)
    letters = base64.b32encode(os.urandom(_PASS_BYTES)).decode().lower()
    last = max((admitted.number for admitted in passes), default=0)
    made = Pass(last + 1, _digest(letters), now, now + seconds)
    _write(paths, page, [*passes, made])
    return made, "-".join(letters[place : place + 4] for place in range(0, len(letters), 4))


def revoke_pass(paths: Paths, page: str, number: int, now: float) -> None:
    passes = read_passes(paths, page, now)
    kept = [admitted for admitted in passes if admitted.number != number]
    if len(kept) == len(passes):
        raise UsageError(f"no link {number} is valid", f"list them: stoker web --{page} --links")
    _write(paths, page, kept)


def pass_of(passes: Sequence[Pass], text: str) -> Pass | None:
    """The pass with this text, as people type it."""
    digest = _digest(text.replace("-", "").replace(" ", "").lower())
    return next((admitted for admitted in passes if hmac.compare_digest(admitted.digest, digest)), None)


def cookie_value(admitted: Pass) -> str:
    """The text that the browser keeps in place of the pass."""
    return hmac.new(admitted.digest.encode(), b"cookie", "sha256").hexdigest()


def _digest(letters: str) -> str:
    return hashlib.sha256(letters.encode()).hexdigest()


def _write(paths: Paths, page: str, passes: list[Pass]) -> None:
    replace_file(paths.page_passes(page), msgspec.json.encode(passes))
