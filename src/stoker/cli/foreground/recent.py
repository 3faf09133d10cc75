"""What a live display remembers of a run: the latest ends, and how long jobs take."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from msgspec import Struct

from stoker.changes import Happening
from stoker.cli.screens.memory_words import consequence_text
from stoker.core.job import Assigned, Ended, Exited, Job, Lost, Waiting, result_of
from stoker.core.terms import Need
from stoker.core.units import duration_text
from stoker.words import last_line, outcome, printable, shortened, title

KEPT_NOTICES = 20
KEPT_SUCCESSES = 40
KEPT_KINDS = 1000
LONGEST_NAME = 60
LONGEST_SAYING = 200
ENOUGH = 2
"""Successes of one kind after which its duration counts as known..."""
STEADY = 1.5
"""... if the longest took no more than this times the shortest."""

Mark = Literal["failed", "again", "note"]


class Notice(Struct, frozen=True):
    """An end that is worth a line of its own."""

    mark: Mark
    id: int
    name: str
    what: str
    """How it ended: `exit 1 after 00:09`."""
    said: str = ""
    """What the log or the keeper had to say last."""


class Kind(NamedTuple):
    """Jobs that can be expected to take about as long as each other."""

    need: Need
    program: tuple[str, ...]


@dataclass
class Pace:
    """How long the jobs of one kind took."""

    count: int = 0
    total: float = 0.0
    shortest: float = 0.0
    longest: float = 0.0

    def observe(self, seconds: float) -> None:
        """One more has ended."""
        self.shortest = min(self.shortest, seconds) if self.count else seconds
        self.longest = max(self.longest, seconds)
        self.count += 1
        self.total += seconds

    @property
    def mean(self) -> float | None:
        """The mean, None before the first."""
        return self.total / self.count if self.count else None

    @property
    def steady(self) -> bool:
        """Whether the mean says something about the next one."""
        return self.count >= ENOUGH and self.longest <= STEADY * self.shortest


class Recent:
    """Bounded, however many jobs a run has."""

    def __init__(self) -> None:
        self.worked_seconds = 0.0
        """Running time of all attempts that have ended, together."""
        self._freed: dict[str, float] = {}
        self._all = Pace()
        self._paces: dict[Kind, Pace] = {}
        self._fresh: deque[tuple[Happening, float | None]] = deque(maxlen=KEPT_NOTICES)
        """Ends whose logs have not been looked at: in a storm of failures most never will be."""
        self._notices: deque[Notice] = deque(maxlen=KEPT_NOTICES)
        self._successes: deque[int] = deque(maxlen=KEPT_SUCCESSES)
        self._lead: tuple[str, ...] | None = None

    def note(self, happening: Happening) -> None:
        """Take in what happened."""
        job = happening.job
        match happening.event:
            case Assigned() if not job.name:
                words = tuple(title(job, LONGEST_NAME).split(" "))
                self._lead = words if self._lead is None else common_lead(self._lead, words)
            case Exited(at=at) | Lost(at=at):
                self._freed.update((device.id, at) for device in happening.devices)
                self._note_end(happening, at)
            case _ if isinstance(job.state, Ended):
                self._fresh.append((happening, None))

    def _note_end(self, happening: Happening, at: float) -> None:
        job, state = happening.job, happening.job.state
        started = happening.started
        ran = None if started is None else at - started
        done = isinstance(state, Ended) and state.result == "done"
        self.worked_seconds += ran or 0.0
        if done and ran is not None:
            self._note_pace(job, ran)
        if done:
            self._successes.append(job.id)
        if not done or (isinstance(state, Ended) and state.note):
            self._fresh.append((happening, ran))

    def _note_pace(self, job: Job, ran: float) -> None:
        self._all.observe(ran)
        kind = kind_of(job)
        if kind in self._paces or len(self._paces) < KEPT_KINDS:
            self._paces.setdefault(kind, Pace()).observe(ran)

    @property
    def mean_seconds(self) -> float | None:
        """How long a success took so far, None before the first: failures are often short and tell nothing."""
        return self._all.mean

    def expected_seconds(self, job: Job) -> float | None:
        """How long such a job takes, where earlier ones agree on it."""
        pace = self._paces.get(kind_of(job))
        return pace.mean if pace is not None and pace.steady else None

    def freed(self, device_id: str) -> float:
        """When our last job on the device ended."""
        return self._freed.get(device_id, 0.0)

    def notices(self) -> tuple[Notice, ...]:
        """Oldest first."""
        while self._fresh:
            self._notices.append(self._notice(*self._fresh.popleft()))
        return tuple(self._notices)

    def successes(self) -> tuple[int, ...]:
        """Oldest first."""
        return tuple(self._successes)

    def short_name(self, job: Job) -> str:
        """The name, or what sets the job's command apart from those of the others."""
        full = title(job, LONGEST_NAME)
        return full if job.name or not self._lead else without_lead(full, self._lead)

    def _notice(self, happening: Happening, ran: float | None) -> Notice:
        job, event = happening.job, happening.event
        if isinstance(event, Exited) and event.cause and event.company and isinstance(job.state, Waiting):
            return Notice("again", job.id, self.short_name(job), f"oom{_after(ran)}", consequence_text(job, event))
        mark, what, note = _story(happening)
        log = happening.log if isinstance(event, Exited) and os.path.isfile(happening.log) else ""
        said = printable(note) or (last_line(log) if log else "")
        again = "runs again" + (": " if said else "") if mark == "again" else ""
        return Notice(
            mark, job.id, self.short_name(job), f"{what}{_after(ran)}", again + shortened(said, LONGEST_SAYING)
        )


def _story(happening: Happening) -> tuple[Mark, str, str]:
    """What kind of end it was, how it came, and what the keeper or engine noted."""
    state, event = happening.job.state, happening.event
    if isinstance(state, Ended):
        return ("note" if state.result == "done" else "failed"), outcome(state), state.note
    assert isinstance(state, Waiting)
    if isinstance(event, Exited):
        return "again", outcome(Ended(result_of(event), event.at, event.code, event.signal)), event.note
    return "again", "lost", "its keeper was killed"


def _after(ran: float | None) -> str:
    return "" if ran is None else f" after {duration_text(ran)}"


def kind_of(job: Job) -> Kind:
    """The same needs and the same program: `python -m train`, whatever comes after it."""
    words = job.command.words if not job.command.shell else job.command.words[0].split()
    argument = next((place for place, word in enumerate(words) if place and not word.startswith("-")), 0)
    return Kind(job.terms.need, tuple(words[: argument + 1]))


def common_lead(lead: Sequence[str], words: Sequence[str]) -> tuple[str, ...]:
    """The words that both begin with."""
    differing = (place for place, pair in enumerate(zip(lead, words, strict=False)) if pair[0] != pair[1])
    return tuple(lead[: next(differing, min(len(lead), len(words)))])


def without_lead(text: str, lead: Sequence[str]) -> str:
    """The text without the words that all begin with; an option that differs only in its value keeps its name."""
    known = list(lead[:-1] if lead and lead[-1].startswith("-") else lead)
    words = text.split(" ")
    rest = words[len(known) :]
    return " ".join(rest) if rest and words[: len(known)] == known else text


def expected_left(mean: float | None, ran: Sequence[float], waiting: int, at_once: float) -> float | None:
    """Seconds until all is over if jobs go on as before, so many at once; None where nothing is known or runs."""
    if mean is None or not ran:
        return None
    running = [max(0.0, mean - seconds) for seconds in ran]
    return max(*running, (sum(running) + waiting * mean) / max(1.0, at_once))
