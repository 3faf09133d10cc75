"""Build the details of one job: attempts, events, reason."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker.app.jobs.config import load_config
from stoker.app.jobs.job_spec import given_options
from stoker.app.jobs.local_time import to_datetime, to_datetime_or_none
from stoker.app.jobs.option_values import early_signal_text, shown_target
from stoker.app.jobs.options import ShownNames, Value
from stoker.app.jobs.select import find, jobs_in_order
from stoker.app.views.facts import QueueFacts, device_labels, read_facts
from stoker.app.views.failure import failure_text, last_lines, newest_log
from stoker.app.views.job import JobLine, ended_line, job_line, shared_failure_text, situation
from stoker.app.views.model import FEW
from stoker.core.amounts import amount_now, resources_of_attempts
from stoker.core.device import Device
from stoker.core.errors import StokerError
from stoker.core.job import (
    Active,
    Assigned,
    Cancelled,
    Displaced,
    Ended,
    Event,
    Exited,
    Idled,
    InvalidTransition,
    Job,
    Lost,
    OnHold,
    Paused,
    Queued,
    Resumed,
    Returned,
    Skipped,
    Started,
    Stayed,
    Waiting,
    advance,
    event_word,
    id_text,
    is_end_of_giving_way,
    result_of,
    single,
)
from stoker.core.launch import INHERIT, notification_name
from stoker.core.learning import MIB, MeasuredUse, reached
from stoker.core.planner.order import QueuePosition, times_waited
from stoker.core.planner.reasons import UnknownDuration, rough_duration
from stoker.core.ranges import Ranges
from stoker.core.spec import JobSpec, Resources, dependency_text, suits
from stoker.core.text import PATTERNS, outcome, shown_value
from stoker.core.units import size_text
from stoker.features import FEATURES, load
from stoker.store import past_jobs, queries
from stoker.store.filters import NO_FILTER, Filter
from stoker.store.logs import last_line
from stoker.store.paths import Paths
from stoker.store.reader import Reader
from stoker.store.reports import Latest, read_latest
from stoker.store.schema import AttemptRow
from stoker.store.writer import Store


class AttemptLine(Struct, frozen=True):
    """One run of a job."""

    number: int
    devices: list[str]
    assigned: datetime
    started: datetime | None
    ended: datetime | None
    seconds: float | None
    exit_code: int | None
    signal: int | None
    why: str
    """How it ended: exited, timeout, hung, stopped, preempted, refused, returned, lost."""
    peak_memory_bytes: int | None
    """Host memory of its largest process."""
    note: str
    log: str | None
    errors: str | None
    reserved_bytes: int | None = None
    """Reserved on each GPU; null is all of it."""
    peak_vram_bytes: int | None = None
    """The most that it held on one of its GPUs, if measured."""
    utilisation_percent: int | None = None
    """How busy it kept its GPUs on average while it had them to itself."""
    vram_curve: list[tuple[float, int]] = []
    """Seconds since its start, and bytes on the GPU of which it held most."""


def attempt_lines(job: Job, events: Sequence[Event], facts: QueueFacts) -> list[AttemptLine]:
    """All attempts, oldest first."""
    store = facts.store
    uses = store.uses(job.id)
    live = facts.statuses.live(job.id) if isinstance(job.state, Active) else None
    if live is not None:  # the store is up to a minute old
        uses[job.attempts] = reached(uses.get(job.attempts, MeasuredUse()), live.peak)
    needs = dict(enumerate(resources_of_attempts(events, job.spec.resources), 1))
    rows = [replace(row, why=_why_ended(row, job.spec)) for row in store.attempts(job.id)]
    engine = store.owner(job.id)
    return [_line(row, needs.get(row.number), uses.get(row.number), facts, engine) for row in rows]


def _line(
    row: AttemptRow, resources: Resources | None, use: MeasuredUse | None, facts: QueueFacts, engine: str
) -> AttemptLine:
    seen = facts.last_seen(engine, row.started or 0.0)
    return AttemptLine(
        number=row.number,
        devices=device_labels(row.devices, facts.devices),
        assigned=to_datetime(row.assigned),
        started=to_datetime_or_none(row.started),
        ended=to_datetime_or_none(row.ended),
        seconds=_seconds(row, seen or facts.now),
        exit_code=None if row.signal else row.code,
        signal=row.signal or None,
        why=row.why or "",
        peak_memory_bytes=row.peak_memory or None,
        note=row.note or "",
        log=_path(row.log),
        errors=_path(row.errors),
        reserved_bytes=amount_now(resources, facts.devices_of(row.devices)) if row.devices else None,
        peak_vram_bytes=use.peak or None if use else None,
        utilisation_percent=use.utilisation if use else None,
        vram_curve=[(seconds, size * MIB) for seconds, size in use.curve] if use else [],
    )


def _why_ended(row: AttemptRow, spec: JobSpec) -> str | None:
    """As recorded; a job that failed while it saved has not been preempted, but has exited."""
    if row.why == "preempted" and not is_end_of_giving_way(spec, row.code, row.signal):
        return "exited"
    return row.why


def _seconds(row: AttemptRow, now: float) -> float | None:
    """How long it ran or runs; None if it never did, or if its end is unknown (lost, returned)."""
    if row.started is None or (row.ended is None and row.why is not None):
        return None
    return round(max(0.0, (row.ended or now) - row.started), 3)


def _path(path: str) -> str | None:
    return path if path and path != INHERIT else None


class EventLine(Struct, frozen=True):
    """Something that happened to a job."""

    at: datetime
    event: str
    detail: str


def event_lines(job: Job, events: Sequence[Event], facts: QueueFacts) -> list[EventLine]:
    """All events since its submission."""
    needs = iter(resources_of_attempts(events, job.spec.resources))
    return [
        EventLine(to_datetime(event.at), event_word(event), _detail(event, after, job, needs, facts))
        for event, after in zip(events, _replayed(job, events), strict=True)
    ]


def _replayed(job: Job, events: Sequence[Event]) -> Iterator[Job | None]:
    """The job after each event; None from the point where an edit makes its earlier spec unknown."""
    turns = [event for event in events if isinstance(event, Assigned | Paused | Resumed)]
    held = bool(turns) and isinstance(turns[0], Resumed)
    begun = OnHold(job.submitted) if held else Waiting(job.submitted)
    counts = dict.fromkeys(("attempts", "failures", "losses", "tries", "shared_failures", "floor", "preemptions"), 0)
    after: Job | None = replace(job, state=begun, kept_seconds=0.0, **counts)
    for event in events:
        try:
            after = None if after is None else advance(after, event)
        except InvalidTransition:
            after = None
        yield after


def _detail(event: Event, after: Job | None, job: Job, needs: Iterator[Resources | None], facts: QueueFacts) -> str:
    match event:
        case Assigned():
            return _place(event, next(needs), facts)
        case Started() if event.devices:
            return f"GPU {','.join(device_labels(event.devices, facts.devices))}"
        case Exited():
            return _end(event, after, job.spec)
        case Cancelled() | Paused() | Skipped():
            return event.note
        case Displaced():
            return _why_displaced(event, facts)
        case Idled():
            return event.note or "uses its GPUs again"
        case Stayed():
            return "it did not leave in time, so it goes on and is not asked again"
        case Returned():
            return event.shortage or "before it started"
        case Lost():
            return event.note or "its worker was killed, or the machine went down"
        case _:
            return ""


def _why_displaced(event: Displaced, facts: QueueFacts) -> str:
    gpus = f"its GPUs are for job {facts.store.shown_id(event.to)}" if event.to else ""
    return ", ".join(filter(None, (event.note, gpus)))


def _place(event: Assigned, resources: Resources | None, facts: QueueFacts) -> str:
    if not event.devices:
        return "no GPU" if resources is None or not resources.gpus else "handed over to the cluster"
    place = f"GPU {','.join(device_labels(event.devices, facts.devices))}"
    amount = amount_now(resources, facts.devices_of(event.devices))
    if amount is not None:
        return f"{place}, {size_text(amount)} reserved"
    return f"{place}, exclusive" if event.resources is not None or (resources is not None and resources.auto) else place


def _end(event: Exited, after: Job | None, spec: JobSpec) -> str:
    if after is not None and event.cause and event.shared and isinstance(after.state, Waiting):
        return shared_failure_text(after, event)
    if after is not None and isinstance(after.state, Ended):
        return outcome(after.state)
    if event.why == "preempted" and is_end_of_giving_way(spec, event.code, event.signal):
        return f"preempted ({f'signal {event.signal}' if event.signal else f'exit {event.code}'})"
    return outcome(Ended(result_of(event.why, event.code, event.signal), event.at, event.code, event.signal))


SCHEMA = "stoker.jobs/1"
LAST_LINES = 3


class MemberDetails(Struct, frozen=True):
    """The place of a job in a batch whose jobs have parameters."""

    kind: str
    """The kind of the batch, as `sweep`."""
    batch: int
    """Its id, as users type it."""
    number: int
    """Of the job in it, from 0."""
    params: dict[str, bool | int | float | str | None]


class CodeState(Struct, frozen=True):
    """The code that a job runs."""

    frozen: bool
    """Whether it is that of the submit; else that which is there when the job starts."""
    reason: str
    """Why it is not frozen."""
    changed: list[str] | None = None
    """Paths of files that are different now; null if they were not compared."""


class JobDetails(JobLine, frozen=True, kw_only=True):
    """A job with all that is known of it."""

    directory: str
    shell: str
    tags: dict[str, str]
    allowed: list[str]
    preferred: list[str]
    gpu_type: str
    after: list[str]
    begin: datetime | None
    grace_seconds: float
    retries: int
    retry_on: list[str]
    requeue: bool
    at_once: int | None
    commit: str
    exit_code: int | None
    signal: int | None
    note: str
    attempts: list[AttemptLine]
    events: list[EventLine]
    variables: dict[str, str]
    """Those given with --env; what looks like a secret is hidden."""
    environment: dict[str, str] | None = None
    """All others, if requested."""
    early_signal: str = ""
    """The signal before the time limit: `USR1@60`."""
    notify: tuple[str, ...] = ()
    """Targets of the notification, of which only the kind is shown."""
    notified: str = ""
    """Whether the notification was sent, or why not; empty before the batch has ended."""
    advice: str = ""
    """Advice for a job that ran out of GPU memory."""
    failure: str = ""
    """Why it failed: the note about its end, or the line of its log that tells most."""
    order: tuple[str, ...] = ()
    """Its place in the order, and why other jobs go first."""
    reported: Latest | None = None
    """The last values that its last run reported with `stoker.report()`."""
    member: MemberDetails | None = None
    """Its place in a sweep or another batch whose jobs have parameters; null for other jobs."""
    options: dict[str, Value]
    """Its options as a job file has them, without those that have the built-in value."""
    code: CodeState | None = None
    """The code that it runs, if a feature cares for that; null if there was none to freeze."""
    output: tuple[str, ...] = ()
    """The last lines of its log, if no more than a few jobs are shown."""
    preemptions: int = 0
    """How often it gave way to others."""


class SelectedJobs(Struct, frozen=True):
    """Some jobs: `stoker status ID... --json`."""

    schema: str
    at: datetime
    simulated: bool
    jobs: list[JobDetails]


def read_jobs(
    paths: Paths, words: Sequence[str], chosen: Filter = NO_FILTER, *, environment: bool = False
) -> SelectedJobs:
    """The jobs that the words and the filter select, in their order."""
    with read_facts(paths) as facts:
        return details_of_all(facts, paths, selected_ids(facts, words, chosen), environment=environment)


def selected_ids(facts: QueueFacts, words: Sequence[str], chosen: Filter = NO_FILTER) -> Ranges:
    assert isinstance(facts.store, Store)
    return find(facts.store, words, chosen=chosen)


def details_of_all(
    facts: QueueFacts, paths: Paths, ids: Sequence[int], *, environment: bool = False, compare: bool = False
) -> SelectedJobs:
    """These jobs in their order; the last lines of their logs if they are few.

    With `compare` the code of a few jobs is compared with the present one, which may take a while.
    """
    store, secrets = facts.store, _secrets()
    jobs = list(single(jobs_in_order(store, ids)))
    details = [details_of(job, facts, secrets, environment=environment) for job in jobs]
    details = [replace(line, reported=_reported(paths, job)) for line, job in zip(details, jobs, strict=True)]
    compared = compare and len(jobs) <= FEW
    details = [
        replace(line, code=_code(paths, job, compared=compared)) for line, job in zip(details, jobs, strict=True)
    ]
    if len(jobs) <= FEW:
        details = [replace(line, output=_output(store, job)) for line, job in zip(details, jobs, strict=True)]
    return SelectedJobs(SCHEMA, to_datetime(facts.now), paths.is_simulated, details)


def _output(store: Reader, job: Job) -> tuple[str, ...]:
    return tuple(last_lines(newest_log(store, job.id), LAST_LINES))


def _reported(paths: Paths, job: Job) -> Latest | None:
    """The values that its run reported; nothing for a job that waits to run again."""
    if isinstance(job.state, Queued):
        return None
    return read_latest(paths.on(job.spec.cluster).report(job.id), job.run)


def _code(paths: Paths, job: Job, *, compared: bool) -> CodeState | None:
    states = (load(feature.code)(paths, job, compared=compared) for feature in FEATURES.values() if feature.code)
    return next(filter(None, states), None) if job.spec.code else None


def _secrets() -> tuple[str, ...]:
    """Patterns of secret variables; the default ones if the configuration cannot be read."""
    try:
        return load_config(os.environ, None).engine.secrets
    except StokerError:
        return PATTERNS


def details_of(
    job: Job, facts: QueueFacts, secrets: Sequence[str] = PATTERNS, *, environment: bool = False
) -> JobDetails:
    """All that is known of a job."""
    spec, store = job.spec, facts.store
    happened = store.events(job.id)
    attempts = attempt_lines(job, happened, facts)
    ended = job.state if isinstance(job.state, Ended) else None
    return JobDetails(
        **msgspec.structs.asdict(_current_line(job, facts)),
        directory=spec.cwd,
        shell=job.command.shell,
        tags=dict(spec.tags),
        allowed=device_labels(spec.resources.allowed + spec.resources.required, facts.devices),
        preferred=device_labels(spec.resources.preferred, facts.devices),
        gpu_type=spec.resources.model,
        after=[dependency_text(dependency, store.shown_id) for dependency in spec.after],
        begin=to_datetime_or_none(spec.begin),
        grace_seconds=spec.grace,
        retries=spec.retries,
        retry_on=list(spec.retry_on),
        requeue=spec.requeue,
        at_once=spec.at_once,
        commit=spec.commit,
        exit_code=ended.code if ended else None,
        signal=(ended.signal or None) if ended else None,
        note=ended.note if ended else "",
        attempts=attempts,
        events=[EventLine(to_datetime(job.submitted), "submitted", ""), *event_lines(job, happened, facts)],
        variables=_shown(dict(spec.extra_env), secrets),
        environment=_environment(job, facts, secrets) if environment else None,
        early_signal="" if spec.signal is None else early_signal_text(spec.signal),
        notify=tuple(shown_target(target) for target in spec.notify),
        notified=_notified(job, facts) if spec.notify else "",
        advice=_advice(job, happened, facts),
        failure=failure_text(store, job),
        order=tuple(_order(job, facts)),
        member=_member(job),
        preemptions=job.preemptions,
        options=given_options(
            job, ShownNames(lambda device: device_labels((device,), facts.devices)[0], store.shown_id, secrets)
        ),
    )


def _member(job: Job) -> MemberDetails | None:
    if (member := job.member) is None:
        return None
    return MemberDetails(member.kind, member.batch, member.number, msgspec.json.decode(member.params))


def _order(job: Job, facts: QueueFacts) -> Iterator[str]:
    """The place of a waiting job among all that may start, and what decides on it."""
    engine = facts.store.owner(job.id)
    status = facts.statuses.of(engine)
    if situation(job, engine, facts)[0] != "queued" or status is None or not status.order:
        return
    standing, place = facts.positions.position(job, engine), facts.positions.place(job, engine)
    if standing is None or place is None:
        listed = sum(position.tasks for position in status.order)
        if listed < status.waiting:
            yield f"after the first {listed} of {status.waiting} waiting jobs"
        return
    yield place_text(place, status.waiting, standing, facts.now)
    if not standing.is_expected:
        yield facts.sentence(UnknownDuration(standing.seconds, standing.gpus))
    if first := facts.positions.overtaken_by(job, engine):
        yield facts.sentence(first)


def _current_line(job: Job, facts: QueueFacts) -> JobLine:
    store = facts.store
    if not isinstance(job.state, Ended):
        return job_line(job, store.owner(job.id), facts)
    (past,) = past_jobs.past_of(store, [job.id])
    return ended_line(past, store.owner(job.id), facts)


def _notified(job: Job, facts: QueueFacts) -> str:
    sender = queries.last_named(facts.store, notification_name(job.batch))
    if sender is None or not isinstance(sender.state, Ended):
        return "" if sender is None else "being sent"
    attempts = facts.store.attempts(sender.id)
    said = last_line(attempts[-1].log) if attempts else ""
    return "sent" if sender.state.result == "done" else f"not sent: {said or outcome(sender.state)}"


def _advice(job: Job, events: Sequence[Event], facts: QueueFacts) -> str:
    ends = [event for event in events if isinstance(event, Exited)]
    if not isinstance(job.state, Ended) or job.state.result != "oom" or not ends:
        return ""
    had = facts.devices_of(facts.store.attempts(job.id)[-1].devices)
    sim = " --sim" if facts.simulated else ""
    return oom_advice(job, ends[-1], had, facts.devices.values(), f"{sim} {id_text(job)}")


def _environment(job: Job, facts: QueueFacts, secrets: Sequence[str]) -> dict[str, str]:
    digest = job.spec.environment
    return _shown(facts.store.environment(digest), secrets) if digest else {}


def _shown(variables: Mapping[str, str], secrets: Sequence[str]) -> dict[str, str]:
    return {name: shown_value(name, value, secrets) for name, value in sorted(variables.items())}


# -- advice --------------------------------------------------------------------------------------

GIB = 2**30


def oom_advice(job: Job, event: Exited, had: Iterable[Device], devices: Iterable[Device], typed: str) -> str:
    """Advice for a job that failed with out of memory at last; `had` are the devices of its last attempt."""
    retry = f"stoker retry{typed}"
    if event.shared:
        return f"other processes on its GPU used the memory; retry on an exclusive GPU: {retry} --vram all"
    largest = max((device.memory or 0 for device in had), default=0)
    larger = [device.memory or 0 for device in devices if suits(device, job.spec.resources)]
    if largest and max(larger, default=0) > largest:
        return f"retry on a larger GPU: {retry} --vram {largest // GIB + 1}G"
    return "needs a larger GPU, a smaller batch, or more GPUs (-G)"


def place_text(place: int, waiting: int, standing: QueuePosition, now: float) -> str:
    """`place 4 of 31: waited 2h10 for about 40 min of work (3.2 times)`."""
    waited = rough_duration(max(0.0, now - standing.submitted))
    text = f"place {place} of {max(place, waiting)}: waited {waited}"
    if not standing.is_expected:
        return text
    gpus = f"on {standing.gpus} GPUs" if standing.gpus > 1 else "of work"
    batch = f", counted {standing.batch + 1} times: {standing.batch} of its batch running" if standing.batch else ""
    return (
        f"{text} for about {rough_duration(standing.seconds)} {gpus}{batch} ({times_waited(standing, now):.1f} times)"
    )
