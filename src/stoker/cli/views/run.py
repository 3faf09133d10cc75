"""Render the live display of `stoker run`."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from msgspec import Struct

from stoker.cli.views.text import (
    EMPTY,
    Amounts,
    Line,
    Span,
    amount_text,
    cells,
    clip,
    clipped,
    line_cells,
    memory_bar,
    padded,
)
from stoker.core.device import Device, Reading
from stoker.core.job import (
    Active,
    Assigned,
    Ended,
    Exited,
    Job,
    JobEvent,
    Lost,
    Running,
    Waiting,
    resources_of,
    result_of,
    state_word,
)
from stoker.core.learning import Live
from stoker.core.planner.reasons import sentence
from stoker.core.spec import Resources, amount_on
from stoker.core.text import outcome, printable, shortened, title
from stoker.core.units import count_text, duration_text, size_text
from stoker.engine.foreground import Foreground
from stoker.engine.loop import Engine
from stoker.queue.view_builder import consequence_text
from stoker.store.logs import last_line

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
    """What the log or the worker had to say last."""


class Kind(NamedTuple):
    """Jobs that can be expected to take about as long as each other."""

    resources: Resources
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
        self._fresh: deque[tuple[JobEvent, float | None]] = deque(maxlen=KEPT_NOTICES)
        """Ends whose logs have not been looked at: in a storm of failures most never will be."""
        self._notices: deque[Notice] = deque(maxlen=KEPT_NOTICES)
        self._successes: deque[int] = deque(maxlen=KEPT_SUCCESSES)
        self._lead: tuple[str, ...] | None = None

    def note(self, job_event: JobEvent) -> None:
        """Take in what happened."""
        job = job_event.job
        match job_event.event:
            case Assigned() if not job.name:
                words = tuple(title(job, LONGEST_NAME).split(" "))
                self._lead = words if self._lead is None else common_lead(self._lead, words)
            case Exited(at=at) | Lost(at=at):
                self._freed.update((device.id, at) for device in job_event.devices)
                self._note_end(job_event, at)
            case _ if isinstance(job.state, Ended):
                self._fresh.append((job_event, None))

    def _note_end(self, job_event: JobEvent, at: float) -> None:
        job, state = job_event.job, job_event.job.state
        started = job_event.started
        ran = None if started is None else at - started
        done = isinstance(state, Ended) and state.result == "done"
        self.worked_seconds += ran or 0.0
        if done and ran is not None:
            self._note_pace(job, ran)
        if done:
            self._successes.append(job.id)
        if not done or (isinstance(state, Ended) and state.note):
            self._fresh.append((job_event, ran))

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

    def _notice(self, job_event: JobEvent, ran: float | None) -> Notice:
        job, event = job_event.job, job_event.event
        if isinstance(event, Exited) and event.cause and event.shared and isinstance(job.state, Waiting):
            return Notice("again", job.id, self.short_name(job), f"oom{_after(ran)}", consequence_text(job, event))
        mark, what, note = _details(job_event)
        log = job_event.log if isinstance(event, Exited) and os.path.isfile(job_event.log) else ""
        said = printable(note) or (last_line(log) if log else "")
        again = "runs again" + (": " if said else "") if mark == "again" else ""
        return Notice(
            mark, job.id, self.short_name(job), f"{what}{_after(ran)}", again + shortened(said, LONGEST_SAYING)
        )


def _details(job_event: JobEvent) -> tuple[Mark, str, str]:
    """What kind of end it was, how it came, and what the worker or engine noted."""
    state, event = job_event.job.state, job_event.event
    if isinstance(state, Ended):
        return ("note" if state.result == "done" else "failed"), outcome(state), state.note
    assert isinstance(state, Waiting)
    if isinstance(event, Exited):
        return "again", outcome(Ended(result_of(event), event.at, event.code, event.signal)), event.note
    return "again", "lost", "its worker was killed"


def _after(ran: float | None) -> str:
    return "" if ran is None else f" after {duration_text(ran)}"


def kind_of(job: Job) -> Kind:
    """The same needs and the same program: `python -m train`, whatever comes after it."""
    words = job.command.words if not job.command.shell else job.command.words[0].split()
    argument = next((place for place, word in enumerate(words) if place and not word.startswith("-")), 0)
    return Kind(job.spec.resources, tuple(words[: argument + 1]))


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


SETTLING_SECONDS = 2.0
"""After the end of a job its process may still be in a snapshot, and is no stranger."""

NOBODYS = 512 * 2**20
"""Bytes that a driver keeps for itself, or that a process has beside what it is listed with."""

NOTHING_WAITS = ("no job waits", "no job waits, more may come")


class Occupant(Struct, frozen=True):
    """A job on a device."""

    id: int
    name: str
    seconds: float | None = None
    """How long it has been running; None where it is not."""
    word: str = ""
    """What it does where it is not simply running: `starting`, `stopping`."""
    gpus: int = 1
    expected: float | None = None
    """How long such jobs take in all, where that is known."""


class Row(Struct, frozen=True):
    """A device, or the processor for jobs that need no device."""

    label: str
    occupants: tuple[Occupant, ...] = ()
    used: int | None = None
    memory: int | None = None
    idle: str = ""
    """Why nothing of ours runs on it, in words."""
    reserved: int = 0
    """Set aside for our jobs, whether they use it or not."""
    others: int = 0
    """In use by anybody else."""


class Counts(Struct, frozen=True):
    """How many jobs are where."""

    total: int
    ok: int = 0
    failed: int = 0
    running: int = 0
    waiting: int = 0
    open_ended: bool = False
    """Whether more jobs may come."""

    @property
    def ended(self) -> int:
        """Jobs that are over."""
        return self.ok + self.failed


class Scene(Struct, frozen=True):
    """Everything there is to draw."""

    heading: tuple[str, ...]
    """From the most to the least important part."""
    rows: tuple[Row, ...]
    counts: Counts
    elapsed: float
    simulated: bool = False
    left: float | None = None
    """Seconds until all is over, where that can be guessed."""
    waits: str = ""
    """The next job and why it waits, in words."""
    notices: tuple[Notice, ...] = ()
    successes: tuple[int, ...] = ()
    """Oldest first."""


def scene_of(run: Foreground, recent: Recent, now: float, *, expected: int | None, logs: str) -> Scene:
    """The run as it is now; `expected` is the number of its jobs where that is known."""
    engine = run.engine
    held = sorted(engine.held, key=lambda job: job.id)
    counts = counts_of(run, len(held), expected)
    waits = _waits(engine, counts)
    rows = _rows(engine, held, recent, waits, now)
    return Scene(
        heading=_heading(run, counts, logs),
        rows=rows,
        counts=counts,
        elapsed=now - run.started,
        simulated=any(device.kind == "simulated" for device in engine.snapshot.devices),
        left=None if counts.open_ended else _left(run, held, recent, counts.waiting, now),
        waits="" if waits in NOTHING_WAITS or any(row.idle.endswith(waits) for row in rows) else waits,
        notices=recent.notices(),
        successes=recent.successes(),
    )


def counts_of(run: Foreground, running: int, expected: int | None) -> Counts:
    """A list is fed in parts, so what has not been submitted yet counts as waiting."""
    tally = run.tally
    known = tally.given if expected is None else max(tally.given, expected - tally.skipped - tally.unusable)
    failed = tally.ended - tally.results["done"]
    waiting = max(0, known - tally.ended - running)
    return Counts(known, tally.results["done"], failed, running, waiting, open_ended=expected is None)


def _heading(run: Foreground, counts: Counts, logs: str) -> tuple[str, ...]:
    devices = run.engine.snapshot.devices
    jobs = f"{count_text(counts.total, 'job')} so far" if counts.open_ended else count_text(counts.total, "job")
    parts = [printable(run.setup.label), jobs]
    parts += [count_text(len(devices), "GPU")] if devices else []
    parts += [f"log dir {printable(_near(logs))}"] if logs else []
    return tuple(parts)


def _near(path: str) -> str:
    """The path as one would type it here."""
    here, home = os.getcwd(), os.path.expanduser("~")
    if path.startswith(here + "/"):
        return "." + path.removeprefix(here)
    return "~" + path.removeprefix(home) if path.startswith(home + "/") else path


# -- devices -------------------------------------------------------------------------------------


class _Moment(NamedTuple):
    """What all rows are about."""

    engine: Engine
    recent: Recent
    uses: Mapping[int, Live]
    waits: str
    now: float


def _rows(engine: Engine, held: list[Job], recent: Recent, waits: str, now: float) -> tuple[Row, ...]:
    on: dict[str, list[Job]] = {}
    for job in held:
        assert isinstance(job.state, Active)
        for device_id in job.state.devices or ("",):
            on.setdefault(device_id, []).append(job)
    moment = _Moment(engine, recent, engine.uses, waits, now)
    rows = [_row(device, on.get(device.id, []), moment) for device in engine.snapshot.devices]
    return (*rows, Row("CPU", _occupants(on[""], moment))) if "" in on else tuple(rows)


def _row(device: Device, jobs: Sequence[Job], moment: _Moment) -> Row:
    reading, taken = moment.engine.snapshot.reading(device.id), moment.engine.snapshot.at
    settled = taken > moment.recent.freed(device.id) + SETTLING_SECONDS
    return Row(
        label=_label(device),
        occupants=_occupants(jobs, moment),
        used=reading.used,
        memory=device.memory,
        idle="" if jobs else _why_idle(reading, moment.waits, settled=settled),
        reserved=_reserved(device, jobs),
        others=_used_by_others(reading.used or 0, jobs, moment.uses) if settled else 0,
    )


def _occupants(jobs: Sequence[Job], moment: _Moment) -> tuple[Occupant, ...]:
    return tuple(_occupant(job, moment.recent, moment.now) for job in jobs)


def _reserved(device: Device, jobs: Sequence[Job]) -> int:
    whole = device.memory or 0
    amounts = [amount_on(resources_of(job), device) for job in jobs]
    return min(whole, sum(whole if amount is None else amount for amount in amounts))


def _used_by_others(used: int, jobs: Sequence[Job], uses: Mapping[int, Live]) -> int:
    """What none of our jobs holds; a little that no process has is ours too, and so is all until they are measured."""
    held = [uses[job.id].memory for job in jobs if job.id in uses]
    if len(held) < len(jobs):
        return 0
    rest = max(0, used - sum(held))
    return 0 if jobs and rest < NOBODYS else rest


def _label(device: Device) -> str:
    return f"GPU{device.label}" if device.label.isdecimal() else printable(device.label)


def _why_idle(reading: Reading, waits: str, *, settled: bool) -> str:
    if reading.problem:
        return f"not usable: {printable(reading.problem)}"
    owners = sorted({process.owner for process in reading.processes if process.owner})
    if reading.processes and settled:
        return f"not ours: {size_text(reading.used)} in use by {printable(', '.join(owners)) or 'somebody'}"
    return f"idle: {waits}"


def _occupant(job: Job, recent: Recent, now: float) -> Occupant:
    assert isinstance(job.state, Active)
    running = isinstance(job.state, Running)
    return Occupant(
        id=job.id,
        name=recent.short_name(job),
        seconds=max(0.0, now - job.state.since) if running else None,
        word="" if running else state_word(job),
        gpus=len(job.state.devices),
        expected=recent.expected_seconds(job) if running else None,
    )


# -- what is still to come -----------------------------------------------------------------------


def _waits(engine: Engine, counts: Counts) -> str:
    """Which job is next and why it waits, or why there is none."""
    if engine.draining:
        return "starting nothing more"
    job = engine.next_waiting
    if job is None:
        return NOTHING_WAITS[counts.open_ended]
    reason = engine.reason(job)
    return f"next (#{job.id}) {sentence(reason)}" if reason is not None else f"#{job.id} is about to start"


def _left(run: Foreground, held: list[Job], recent: Recent, waiting: int, now: float) -> float | None:
    ran = [now - job.state.since if isinstance(job.state, Running) else 0.0 for job in held]
    at_once = (recent.worked_seconds + sum(ran)) / max(1.0, now - run.started)
    return expected_left(recent.mean_seconds, ran, 0 if run.engine.draining else waiting, at_once)


GAP = "  "

SPARE_ROWS = 2
"""Rows of the terminal left alone, so that a sentence above the display can be seen."""

SPARE_COLUMNS = 4
"""Columns of the last line left alone, for the ^C that a terminal echoes there."""

MOST_NOTICES = 10

LONGEST_BAR = 40

SHORTEST_BAR = 8

LEAST_SAID = 16
"""Columns of a failure's own words that go before the hint how to see more of them."""


class Detail(NamedTuple):
    """How much is told of each job on a device."""

    name: int
    time: bool
    progress: int | None = None
    """Columns of the bar that shows how far it is; with none of them the time left is still told."""


DETAILS = (
    Detail(40, time=True, progress=8),
    Detail(20, time=True, progress=8),
    Detail(20, time=True, progress=0),
    Detail(24, time=True),
    Detail(12, time=True),
    Detail(12, time=False),
    Detail(6, time=False),
    Detail(0, time=False),
)
"""From much to little: names tell more than times."""


def frame(scene: Scene, width: int, height: int) -> list[Line]:
    """All lines, none wider and all together not taller than the terminal."""
    room = max(1, height - SPARE_ROWS - 2)
    rows = row_lines(scene.rows, width, max(1, room - min(2, len(scene.notices))))
    room -= len(rows)
    news = news_lines(scene, width, room)
    room -= len(news)
    above = [EMPTY] if room >= 2 else []
    below = [EMPTY] if room >= 2 and news else []
    lines = [heading_line(scene, width), *above, *rows, *below, *news, bar_line(scene, width)]
    return [clipped(line, width) for line in lines]


# -- heading and bar -----------------------------------------------------------------------------


def heading_line(scene: Scene, width: int) -> Line:
    """What runs; parts that do not fit are left out, the least important first."""
    badge = [Span(" SIM ", "simulated"), Span(" ")] if scene.simulated else []
    room = width - line_cells(badge)
    text = scene.heading[0]
    for part in scene.heading[1:]:
        if cells(text) + cells(part) + 3 <= room:
            text = f"{text} · {part}"
    return (*badge, Span(text, "heading"))


def bar_line(scene: Scene, width: int) -> Line:
    """`━━━━━━───  6/24  5 ok 1 failed 6 running 12 waiting  [01:24<03:40]`."""
    room = width - SPARE_COLUMNS
    clock = f"[{duration_text(scene.elapsed)}<{left_text(scene.left)}]"
    told = next((line for line in _counts_lines(scene.counts, clock) if line_cells(line) <= room), None)
    if told is None:
        return (Span(f" {scene.counts.ended}/{scene.counts.total}"),)
    space = min(LONGEST_BAR, room - line_cells(told) - 1)
    bar = _bar(scene.counts, space) if space >= SHORTEST_BAR else EMPTY
    return (Span(" "), *bar, *told)


def _counts_lines(counts: Counts, clock: str) -> Iterator[Line]:
    """The counts in words, then ever shorter."""
    share = f" {counts.ended}/{counts.total}{'+' if counts.open_ended else ''}  "
    failed = [Span(f"{counts.failed} failed ", "bad")] if counts.failed else []
    rest = f"{counts.running} running {counts.waiting} waiting  "
    yield Span(share), Span(f"{counts.ok} ok ", "good"), *failed, Span(rest), Span(clock, "faint")
    yield Span(share), Span(f"{counts.ok} ok ", "good"), *failed, Span(f" {clock}", "faint")
    yield Span(share), *failed


def _bar(counts: Counts, space: int) -> Line:
    total = max(1, counts.total)
    good = counts.ok * space // total
    over = counts.ended * space // total
    return Span("━" * good, "good"), Span("━" * (over - good), "bad"), Span("─" * (space - over), "faint")


def left_text(seconds: float | None) -> str:
    """A guess with no more digits than it deserves."""
    if seconds is None:
        return "?"
    step = 5 if seconds < 120 else 30 if seconds < 1200 else 300
    return duration_text(-(-seconds // step) * step)


# -- devices -------------------------------------------------------------------------------------


def row_lines(rows: Sequence[Row], width: int, room: int) -> list[Line]:
    """A line for each device, or for as many as there is room for and one that tells of the others."""
    shown = rows if len(rows) <= room else rows[: max(0, room - 1)]
    label = max((cells(row.label) for row in rows), default=0)
    amount = max((len(_amount(row.memory, row.memory)) for row in rows), default=0)
    bar = 0 if not amount or width < 72 else 10 if width < 100 else 18
    lines = [_row_line(row, label, amount, bar, width) for row in shown]
    hidden = rows[len(shown) :]
    if hidden:
        busy = sum(bool(row.occupants) for row in hidden)
        lines.append((Span(f" … {count_text(len(hidden), 'more GPU')}: {busy} busy, {len(hidden) - busy} idle"),))
    return lines


def _row_line(row: Row, label: int, amount: int, bar: int, width: int) -> Line:
    start = [Span(" " + padded(row.label, label) + " ")]
    if bar:
        start += [*_memory_bar(row, bar), Span(" ")]
    if amount:
        start.append(Span(_amount(row.used, row.memory).rjust(amount) + GAP))
    room = width - line_cells(start)
    return *start, *(occupants_line(row.occupants, room) if row.occupants else (Span(row.idle, "faint"),))


def _memory_bar(row: Row, space: int) -> Line:
    known = row.memory if row.used is not None else None
    return memory_bar(Amounts(known, (row.used or 0) - row.others, row.reserved, row.others), space)


def _amount(used: int | None, memory: int | None) -> str:
    return "" if memory is None else amount_text(used, memory)


def occupants_line(occupants: Sequence[Occupant], room: int) -> Line:
    """The jobs on a device, each with as much detail as lets all be seen."""
    for detail in DETAILS:
        line = _joined([occupant_line(occupant, detail) for occupant in occupants])
        if line_cells(line) <= room:
            return line
    shown = [occupant_line(occupant, DETAILS[-1]) for occupant in occupants]
    while shown and line_cells(_joined(shown)) + len(f"{GAP}+{len(occupants)} more") > room:
        shown.pop()
    return *_joined(shown), Span(f"{GAP if shown else ''}+{len(occupants) - len(shown)} more")


def occupant_line(occupant: Occupant, detail: Detail) -> Line:
    """`#3 lr=1e-3 00:41 ▕▇▇▇▇▇▁▁▏~00:22`."""
    name = f" {clip(occupant.name, detail.name)}" if detail.name else ""
    wide = f" ×{occupant.gpus}" if occupant.gpus > 1 and detail.name else ""
    state = f" {occupant.word or duration_text(occupant.seconds or 0.0)}" if detail.time else ""
    progress = "" if detail.progress is None else progress_text(occupant, detail.progress)
    return Span(f"#{occupant.id}", "id"), Span(f"{name}{wide}"), Span(state + progress, "faint")


def progress_text(occupant: Occupant, columns: int) -> str:
    """How far a job is by what such jobs take; nothing once it has taken longer."""
    if occupant.expected is None or occupant.seconds is None or occupant.seconds >= occupant.expected:
        return ""
    full = int(columns * occupant.seconds / occupant.expected)
    bar = f"▕{'▇' * full}{'▁' * (columns - full)}▏" if columns else ""
    return f" {bar}~{duration_text(occupant.expected - occupant.seconds + 1)}"


def _joined(lines: Sequence[Line]) -> Line:
    parts = [part for line in lines for part in (Span(GAP), *line)]
    return tuple(parts[1:])


# -- news ----------------------------------------------------------------------------------------


def news_lines(scene: Scene, width: int, room: int) -> list[Line]:
    """The newest failures, the newest successes, and what comes next, as far as there is room."""
    successes = [successes_line(scene.successes, width)] if scene.successes and room > 1 else []
    waits = [(Span(" … ", "faint"), Span(scene.waits))] if scene.waits and room > 2 else []
    space = min(MOST_NOTICES, room - len(successes) - len(waits))
    notices = scene.notices[-space:] if space > 0 else ()
    columns = Columns.of(notices, width)
    lines = [notice_line(notice, columns, width, simulated=scene.simulated) for notice in notices]
    return [*lines, *successes, *waits]


class Columns(NamedTuple):
    """Widths that let notices stand below each other."""

    id: int
    name: int
    what: int

    @classmethod
    def of(cls, notices: Sequence[Notice], width: int) -> Columns:
        """As wide as the widest, but names no wider than a fourth of the screen."""
        name = max((cells(notice.name) for notice in notices), default=0)
        return cls(
            max((len(str(notice.id)) for notice in notices), default=0),
            min(name, width // 4),
            max((cells(notice.what) for notice in notices), default=0),
        )


def notice_line(notice: Notice, columns: Columns, width: int, *, simulated: bool) -> Line:
    """`✗ #5  lr=1.0  exit 1 after 00:09  RuntimeError: loss is nan  stoker logs 5`."""
    mark = {"failed": Span(" ✗ ", "bad"), "again": Span(" ↻ ", "odd"), "note": Span(" ! ", "odd")}[notice.mark]
    name = padded(clip(notice.name, columns.name), columns.name)
    start = (
        mark,
        Span(f"#{notice.id}".ljust(columns.id + 1), "id"),
        Span(f" {name}  {padded(notice.what, columns.what)}  "),
    )
    show = f"  stoker logs {'--sim ' if simulated else ''}{notice.id}" if notice.mark == "failed" else ""
    room = width - line_cells(start)
    show = show if room - len(show) >= LEAST_SAID else ""
    room = max(0, room - len(show))
    return *start, Span(padded(clip(notice.said, room), room)), Span(show, "faint")


def successes_line(ids: Sequence[int], width: int) -> Line:
    """`✓ #1 #2 #6`, the newest where not all fit."""
    text = ""
    for number in reversed(ids):
        longer = f" #{number}{text}"
        if len(longer) + 6 > width:
            text = f" …{text}"
            break
        text = longer
    return Span(" ✓", "good"), Span(text)
