"""Dependencies between jobs: how they are typed, and what they mean for the job that waits."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from stoker.core.errors import UsageError
from stoker.core.selection import parse_selection

Kind = Literal["ok", "any", "notok"]
Outcome = Literal["open", "ok", "notok"]
"""What a target came to. An array is ok when all its tasks are done, notok when all ended and one is not done."""

Name = Callable[[int], str]
"""From a job's number to the id that people type, which is another one for a task of an array."""

_KINDS: dict[str, Kind] = {
    "ok": "ok",
    "any": "any",
    "notok": "notok",
    "afterok": "ok",
    "afterany": "any",
    "afternotok": "notok",
}
_HINT = "write it as 12, any:12, notok:12, ok:12:13 or several of these with commas"


class Dependency(Struct, frozen=True):
    """A job waits until another one, or a whole array, has come to its end in a certain way."""

    target: int
    kind: Kind = "ok"
    array: bool = False
    """Whether the whole array is meant that starts with the target."""


class Ready(Struct, frozen=True):
    """Nothing is left to wait for."""


class Blocked(Struct, frozen=True):
    """Some targets have not ended yet."""

    dependencies: tuple[Dependency, ...]


class Doomed(Struct, frozen=True):
    """A target ended in the wrong way, so that the job can never start."""

    dependency: Dependency


Verdict = Ready | Blocked | Doomed


def judge(after: Sequence[Dependency], outcome: Callable[[Dependency], Outcome]) -> Verdict:
    """Whether a job with these dependencies may start; doomed as soon as one of them is, whatever the others do."""
    outcomes = [(dependency, outcome(dependency)) for dependency in after]
    for dependency, came_to in outcomes:
        if came_to not in ("open", dependency.kind) and dependency.kind != "any":
            return Doomed(dependency)
    still_open = tuple(dependency for dependency, came_to in outcomes if came_to == "open")
    return Blocked(still_open) if still_open else Ready()


def target_text(dependency: Dependency, name: Name = str) -> str:
    """The target in words: `job 12`, `job 12.3`, `array 12`."""
    return f"array {dependency.target}" if dependency.array else f"job {name(dependency.target)}"


def dependency_text(dependency: Dependency, name: Name = str) -> str:
    """The dependency as a screen shows it: `12 (ok)`, `array 12 (any)`."""
    target = target_text(dependency) if dependency.array else name(dependency.target)
    return f"{target} ({dependency.kind})"


def parse_after(text: str) -> tuple[tuple[Kind, str], ...]:
    """The kinds and the ids, as they were typed, of `12,any:13` or of Slurm's `afterok:1:2,afterany:3`."""
    if re.search(r"\?after", text):
        raise UsageError(f"{text!r} waits for one of several jobs", "a job waits for all; join them with commas")
    found: list[tuple[Kind, str]] = []
    before: Kind = "ok"
    for item in text.split(","):
        kind, words = _parse_item(item.strip(), text)
        if kind is None and before != "ok":
            raise _unclear(text, before, words[0])
        before = kind or "ok"
        found += [(before, word) for word in words]
    return tuple(dict.fromkeys(found))


def _parse_item(item: str, text: str) -> tuple[Kind | None, list[str]]:
    """The kind of `kind:id:id`, None where it has none, and the ids."""
    head, *rest = item.split(":")
    if not rest:
        return None, [_checked_word(head, text)]
    if head.lower() not in _KINDS:
        raise UsageError(f"in {text!r}, {head!r} is no kind of dependency", _HINT)
    return _KINDS[head.lower()], [_checked_word(word, text) for word in rest]


def _checked_word(word: str, text: str) -> str:
    """The word, if it can be an id or a name; a kind without an id is neither."""
    if not word or word.lower() in _KINDS:
        raise UsageError(f"in {text!r} an id is missing", _HINT)
    parse_selection([word])
    return word


def _unclear(text: str, kind: Kind, word: str) -> UsageError:
    """Some would read `any:12,13` as any:13 and some as ok:13, and a wrong guess starts a job too early."""
    return UsageError(
        f"{text!r} does not tell whether {kind} is meant for {word} too",
        f"write {kind}:{word} or ok:{word}",
    )


def doom_text(doomed: Doomed, name: Name = str) -> str:
    """Why a job can never start."""
    target = target_text(doomed.dependency, name)
    if doomed.dependency.kind == "ok":
        return f"{target} did not succeed"
    return f"{target} succeeded, and this job was to start only if it did not"
