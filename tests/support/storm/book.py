"""What a storm itself knows of the jobs it submitted and of what it asked for, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from support.storm.jobs import Work

HOLD, RELEASE, CANCEL, EDIT, AGAIN = "hold", "release", "cancel", "edit", "again"


@dataclass
class Wish:
    """Something that was asked for."""

    kind: str
    job: int
    asked: float
    edition: str = ""
    answered: float = inf
    """When the request was first seen to be gone."""


@dataclass(frozen=True)
class Entry:
    """A job that was submitted."""

    work: Work
    at: float
    """When, by the storm's own clock, it was about to be."""
    array: int = 0
    held: bool = False


@dataclass
class JobBook:
    """All jobs by their ids, and all wishes in the order in which they were made."""

    entries: dict[int, Entry] = field(default_factory=dict)
    wishes: dict[int, Wish] = field(default_factory=dict)
    """By the number of the request."""

    def of(self, job: int, kind: str) -> list[Wish]:
        """What was asked for a job."""
        return [wish for wish in self.wishes.values() if wish.job == job and wish.kind == kind]

    def unanswered(self) -> Iterator[tuple[int, Wish]]:
        """Requests that are not yet seen to be gone."""
        return ((number, wish) for number, wish in self.wishes.items() if wish.answered == inf)

    def is_targeted(self, job: int) -> bool:
        """Whether other jobs come after it, so that its end must stay what it was."""
        names = {job, self.entries[job].array}
        return any(after.target in names for entry in self.entries.values() for after in entry.work.after)
