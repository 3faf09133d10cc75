"""Build the timeline: what ran on each GPU, stacked by memory, and what is expected to run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from math import inf
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from stoker.app.jobs.local_time import to_datetime, to_datetime_or_none
from stoker.app.views.facts import QueueFacts, read_facts
from stoker.app.views.model import BookedTime, Counts
from stoker.app.views.samples import Curves, Steps, curves_from, curves_of, steps_of
from stoker.app.views.status import booked_times, expected_empty
from stoker.core.amounts import resources_of_attempts
from stoker.core.chart import colours_of
from stoker.core.device import Device
from stoker.core.job import Active, Ended, Job, id_text, is_end_of_giving_way, resources_of, result_of, single
from stoker.core.outcomes import JobStateName
from stoker.core.spec import Resources, amount_on
from stoker.core.text import title_text
from stoker.store import queries
from stoker.store.filters import groups_in_order
from stoker.store.past_jobs import Period, Ran, attempts_between, attempts_of_jobs
from stoker.store.paths import Paths, host_name

SCHEMA = "stoker.timeline/1"
MOST_JOBS = 2000
"""Ended jobs that a timeline shows; older ones are left out."""
MARGIN = 0.02
"""Part of a trimmed timeline before its first bar."""
LEAST_HEIGHT = 0.02
"""Part of a lane that a bar has at least, so that it can be seen."""
NEAR_SECONDS = 12 * 3600.0
"""Bookings that begin within this time lengthen a timeline, by at most twice as much."""


class Bar(Struct, frozen=True):
    """An attempt on one GPU."""

    job: int
    label: str
    """As users type it: `3`, `12.3`."""
    title: str
    """The job's name or command."""
    group: str
    attempt: int
    state: JobStateName
    """How the attempt ended; `running`, or `queued` if it is expected."""
    start: datetime
    end: datetime | None
    """Null while it runs, and if the end of an expected one is unknown."""
    expected_end: datetime | None
    """Of one that runs, where known."""
    reserved_bytes: int | None
    """Null is all of the GPU."""
    used_bytes: int | None
    """The most that it held on one of its GPUs, if measured."""
    bottom: float
    """Where it begins, as a part of the GPU's memory: bars that share a GPU are stacked."""
    height: float
    """Its height, as a part of the GPU's memory."""


class Lane(Struct, frozen=True):
    """One GPU."""

    id: str
    label: str
    model: str
    memory_bytes: int | None
    bars: list[Bar]
    """By start."""
    forecast: list[Bar]
    """Jobs that wait, where they are expected to run."""
    samples: Curves
    bookings: list[BookedTime] = []


class Timeline(Struct, frozen=True):
    """GPUs over time: `stoker history --timeline --json`."""

    schema: str
    at: datetime
    """Now."""
    host: str
    simulated: bool
    engine_running: bool
    since: datetime
    until: datetime
    expected_empty: datetime | None
    samples_start: datetime
    """When the first step of the samples begins."""
    samples_step_seconds: int
    lanes: list[Lane]
    left_out: int
    """Jobs that ended too long ago to be shown."""
    without_gpu: int
    """Attempts of the period that had no GPU, and therefore have no lane."""
    colours: dict[str, int]
    """Numbers of the colours of groups; of titles, if no bar has a group."""


class Stacked(NamedTuple):
    """A part of a lane that is to be stacked."""

    start: float
    end: float
    height: float


def read_timeline(
    paths: Paths,
    period: Period,
    until: float | None = None,
    *,
    limit: int = MOST_JOBS,
    trim: bool = False,
) -> Timeline:
    """The timeline from the start of a period; without `until`, to the end of what is expected."""
    with read_facts(paths) as facts:
        return timeline_of(facts, period, until, limit=limit, only=period.only, trim=trim)


def timeline_of(
    facts: QueueFacts,
    period: Period,
    until: float | None = None,
    *,
    limit: int = MOST_JOBS,
    only: Collection[int] | None = None,
    trim: bool = False,
) -> Timeline:
    """The timeline of a period, or of some jobs `only`; with `trim` it begins with the first of them."""
    now, store = facts.now, facts.store
    if only is None:
        attempts, left_out = attempts_between(store, period, now if until is None else until, limit)
    else:
        attempts, left_out = attempts_of_jobs(store, only), 0
    ahead = list(_expected(facts, only)) if until is None or until > now else []
    last = max([now, *(bar.end for bar in ahead if bar.end), *_expected_ends(attempts, facts)])
    if only is None:
        near = [booking.until for booking in facts.statuses.bookings if booking.since < now + NEAR_SECONDS]
        last = max([last, *(min(end, now + 2 * NEAR_SECONDS) for end in near)])
    end = last if until is None else until
    since = _trimmed(period.since, attempts, end) if trim else period.since
    steps = steps_of(since, min(now, end))
    lanes = list(_lanes(attempts, [bar for bar in ahead if bar.start <= end], facts, steps))
    return Timeline(
        schema=SCHEMA,
        at=to_datetime(now),
        host=host_name(),
        simulated=facts.simulated,
        engine_running=facts.statuses.lives,
        since=to_datetime(since),
        until=to_datetime(end),
        expected_empty=expected_empty(facts.statuses, _counts(facts)),
        samples_start=steps.start,
        samples_step_seconds=steps.seconds,
        lanes=lanes,
        left_out=left_out,
        without_gpu=sum(not ran.attempt.devices for ran in attempts),
        colours=_colours(facts, lanes),
    )


def colour_key(timeline: Timeline, bar: Bar) -> str:
    """Name what the colour of a bar stands for: its group, or its title if no bar has a group."""
    return bar.group if bar.group or bar.title not in timeline.colours else bar.title


def _colours(facts: QueueFacts, lanes: Sequence[Lane]) -> dict[str, int]:
    bars = sorted((bar for lane in lanes for bar in (*lane.bars, *lane.forecast)), key=lambda bar: (bar.start, bar.job))
    if any(bar.group for bar in bars):
        return colours_of(groups_in_order(facts.store))
    return colours_of(bar.title for bar in bars)


def _trimmed(since: float, attempts: Sequence[Ran], end: float) -> float:
    """Shortly before the first attempt, so that the timeline has no long empty start."""
    first = min((ran.started for ran in attempts if ran.attempt.devices), default=since)
    return max(since, first - (end - first) * MARGIN)


def _counts(facts: QueueFacts) -> Counts:
    loads = facts.loads.values()
    return Counts(len(facts.active), sum(load.waiting for load in loads), sum(load.held for load in loads))


# -- what is expected ----------------------------------------------------------------------------


class Expected(NamedTuple):
    """A waiting job, where and when it is expected to run."""

    job: Job
    devices: Sequence[str]
    start: float
    end: float | None
    reserved: int | None


def _expected(facts: QueueFacts, only: Collection[int] | None) -> Iterator[Expected]:
    for status in facts.statuses.current:
        if facts.last_seen(status.engine, 0.0) is not None:
            continue  # the forecast of an engine that does not answer is worth nothing
        wanted = [place for place in status.places if place in status.starts and (only is None or place in only)]
        for job in single(queries.jobs_of(facts.store, sorted(wanted))):
            if not isinstance(job.state, Active | Ended):
                start = max(facts.now, status.starts[job.id])
                reserved = facts.reserved(job, status.engine)
                yield Expected(job, status.places[job.id], start, status.ends.get(job.id), reserved)


def _expected_end(ran: Ran, facts: QueueFacts) -> float | None:
    if ran.ended is not None:
        return None
    ends = [status.ends[ran.job.id] for status in facts.statuses.current if ran.job.id in status.ends]
    return max(facts.now, ends[0]) if ends else None


def _expected_ends(attempts: Iterable[Ran], facts: QueueFacts) -> list[float]:
    return [end for ran in attempts if (end := _expected_end(ran, facts)) is not None]


# -- lanes ---------------------------------------------------------------------------------------


def _lanes(attempts: Sequence[Ran], ahead: Sequence[Expected], facts: QueueFacts, steps: Steps) -> Iterator[Lane]:
    """Those of the known devices first, then of devices that only attempts tell of."""
    resources = {(ran.job.id, ran.attempt.number): _resources(ran, facts) for ran in attempts}
    past: dict[str, list[tuple[Bar, Stacked]]] = {}
    for ran in attempts:
        for device_id in ran.attempt.devices:
            bar = _bar(ran, resources[ran.job.id, ran.attempt.number], facts.devices.get(device_id), facts)
            past.setdefault(device_id, []).append(bar)
    future: dict[str, list[tuple[Bar, Stacked]]] = {}
    for coming in ahead:
        for device_id in coming.devices:
            future.setdefault(device_id, []).append(_expected_bar(coming, facts.devices.get(device_id)))
    curves = curves_of(facts, steps)
    for device_id in dict.fromkeys([*facts.devices, *past, *future]):
        device = facts.devices.get(device_id)
        bars = past.get(device_id, [])
        stacked = stack([*bars, *future.get(device_id, [])])
        yield Lane(
            id=device_id,
            label=device.label if device else device_id,
            model=device.model if device else "",
            memory_bytes=device.memory if device else None,
            bookings=list(booked_times(device, facts)) if device else [],
            bars=stacked[: len(bars)],
            forecast=stacked[len(bars) :],
            samples=curves.get(device_id) or curves_from((), steps),
        )


def _resources(ran: Ran, facts: QueueFacts) -> Resources | None:
    """Resources reserved for an attempt; only events tell that of a job whose memory was learnt or raised."""
    job, asked = ran.job, ran.job.spec.resources
    if isinstance(job.state, Active) and ran.attempt.number == job.attempts:
        return resources_of(job)
    if not (asked.auto or job.floor or job.shared_failures):
        return asked
    attempts = resources_of_attempts(facts.store.events(job.id), asked)
    return attempts[ran.attempt.number - 1] if ran.attempt.number <= len(attempts) else asked


def _bar(ran: Ran, resources: Resources | None, device: Device | None, facts: QueueFacts) -> tuple[Bar, Stacked]:
    reserved = amount_on(resources, device) if resources and device else None
    live = facts.statuses.live(ran.job.id) if ran.ended is None else None
    expected = _expected_end(ran, facts)
    bar = _bar_of(
        ran.job,
        device,
        attempt=ran.attempt.number,
        state=result_of_attempt(ran),
        start=to_datetime(ran.started),
        end=to_datetime_or_none(ran.ended),
        expected_end=to_datetime_or_none(expected),
        reserved_bytes=reserved,
        used_bytes=max(live.peak if live else 0, ran.peak or 0) or None,
    )
    return bar, Stacked(ran.started, ran.ended or expected or inf, bar.height)


def _expected_bar(coming: Expected, device: Device | None) -> tuple[Bar, Stacked]:
    bar = _bar_of(
        coming.job,
        device,
        attempt=coming.job.attempts + 1,
        state="queued",
        start=to_datetime(coming.start),
        end=to_datetime_or_none(coming.end),
        expected_end=None,
        reserved_bytes=coming.reserved,
        used_bytes=None,
    )
    return bar, Stacked(coming.start, coming.end or inf, bar.height)


def _bar_of(job: Job, device: Device | None, *, reserved_bytes: int | None, **more: Any) -> Bar:
    return Bar(
        job=job.id,
        label=id_text(job),
        title=title_text(job),
        group=job.spec.group,
        reserved_bytes=reserved_bytes,
        bottom=0.0,
        height=_height(reserved_bytes, device),
        **more,
    )


def result_of_attempt(ran: Ran) -> JobStateName:
    """How an attempt ended, in the words of job states."""
    attempt, state = ran.attempt, ran.job.state
    if ran.ended is None:
        return "running"
    if isinstance(state, Ended) and attempt.number == ran.job.attempts:
        return state.result
    if attempt.ended is None:
        return "lost"
    if attempt.why == "preempted" and is_end_of_giving_way(ran.job.spec, attempt.code, attempt.signal):
        return "stopped"
    return result_of(attempt.why, attempt.code, attempt.signal)


def _height(reserved: int | None, device: Device | None) -> float:
    """A part of the lane; a device that is listed several times has as many equal parts."""
    if device is None:
        return 1.0
    if device.memory is None:
        return 1.0 / device.share
    return 1.0 if reserved is None else min(1.0, max(LEAST_HEIGHT, round(reserved / device.memory, 4)))


def stack(bars: Sequence[tuple[Bar, Stacked]]) -> list[Bar]:
    """Put each bar at the lowest place that is free for all of its time; the order stays.

    Where clocks overlap by a moment no place is free: such a bar goes to the top and covers others.
    """
    bottoms = [0.0] * len(bars)
    present: list[int] = []
    for index in sorted(range(len(bars)), key=lambda index: bars[index][1].start):
        span = bars[index][1]
        present = [other for other in present if bars[other][1].end > span.start]
        taken = sorted((bottoms[other], bottoms[other] + bars[other][1].height) for other in present)
        bottoms[index] = _lowest(taken, span.height)
        present.append(index)
    return [replace(bar, bottom=round(bottom, 4)) for (bar, _), bottom in zip(bars, bottoms, strict=True)]


def _lowest(taken: Iterable[tuple[float, float]], height: float) -> float:
    bottom = 0.0
    for begin, end in taken:
        if begin - bottom >= height - 1e-9:
            break
        bottom = max(bottom, end)
    return bottom if bottom + height <= 1.0 + 1e-9 else max(0.0, 1.0 - height)
