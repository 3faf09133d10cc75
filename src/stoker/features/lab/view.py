"""The whole machine as data: who has which GPUs until when, who waits, and what each user has used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime, to_datetime_or_none
from stoker.app.views.facts import QueueFacts
from stoker.app.views.gpus import known_devices
from stoker.app.views.model import DeviceLine
from stoker.app.views.status import device_lines
from stoker.app.views.summary import ledger_here
from stoker.core.lease import Lease
from stoker.features.lab.bookings import BookingLine, bookings_of
from stoker.features.lab.formats import BOARD, Board, BoardJob, decode_board
from stoker.features.lab.usage import WEEK_DAYS, UsageTotal, usage_files, usage_totals
from stoker.ledger import LedgerView
from stoker.ledger.files import owner_name
from stoker.store.paths import Paths, host_name

SCHEMA = "stoker.lab/1"


class LabJob(Struct, frozen=True):
    """A running job of any user that has GPUs, or a lease whose engine tells no more."""

    user: str
    you: bool
    gpus: list[str]
    """Labels of the GPUs as `stoker gpus` shows them."""
    memory_bytes: int | None
    """Reserved on each of them; null is the whole GPU."""
    since: datetime
    expected_end: datetime | None
    """Null if its engine does not expect an end before the latest."""
    latest_end: datetime | None
    """Null if it has no time limit."""
    utilisation_percent: int | None
    """Of its GPUs; null if its engine does not tell."""
    job: str
    """Its id in the queue of its user; empty if its engine does not tell."""
    pid: int
    """Its first process; that of its engine if `job` is empty."""
    title: str
    """Its name or command if its user shares them, else empty."""


class LabWaiting(Struct, frozen=True):
    """Waiting jobs of one user that want the same."""

    user: str
    you: bool
    jobs: int
    gpus: int | None
    """For each of them, 0 for jobs that need none; null if the engine does not tell."""
    memory_bytes: int | None
    """On each GPU; null is the whole GPU, or not known yet."""
    since: datetime | None
    """Since when the oldest of them is in the queue."""


class LabUser(Struct, frozen=True):
    """One user in total."""

    user: str
    you: bool
    running: int
    """Jobs with GPUs."""
    gpus: int
    """GPUs of which it has all or a part."""
    waiting: int


class LabMessage(Struct, frozen=True):
    """A sentence of root or a coordinator to all users."""

    user: str
    at: datetime
    text: str


class Lab(Struct, frozen=True):
    """All users of this machine: `stoker status --all-users --json`."""

    schema: str
    at: datetime
    host: str
    simulated: bool
    devices: list[DeviceLine]
    users: list[LabUser]
    """Those who have the most GPUs first."""
    jobs: list[LabJob]
    """By GPU and since when."""
    waiting: list[LabWaiting]
    """Those who wait longest first."""
    messages: list[LabMessage]
    """The newest first."""
    bookings: list[BookingLine]
    """Those that are not over, the next first."""
    usage: list[UsageTotal]
    """Of the last 7 days, by day and user."""
    notes: list[str]
    """Warnings about files that were ignored."""


def read_lab(paths: Paths, days: int = WEEK_DAYS) -> Lab:
    """Read the leases, boards and usage of all users; usage of the last days."""
    ledger = ledger_here(paths)
    with known_devices(paths) as facts:
        view, boards = ledger.live(), ledger.posts(BOARD, decode_board)
        files, warnings = usage_files(ledger)
        usage = usage_totals(facts, files, days, "day")
        return lab_of(facts, view, boards.contents.values(), usage, [*boards.warnings, *warnings])


def lab_of(
    facts: QueueFacts,
    view: LedgerView,
    boards: Iterable[tuple[int, Board]],
    usage: Sequence[UsageTotal] = (),
    warnings: Iterable[str] = (),
) -> Lab:
    by_user: dict[str, list[Board]] = {}
    for uid, board in boards:
        by_user.setdefault(owner_name(uid), []).append(board)
    jobs = _jobs(facts, view, by_user)
    waiting = _waiting(facts, view, by_user)
    return Lab(
        schema=SCHEMA,
        at=to_datetime(facts.now),
        host=host_name(),
        simulated=facts.simulated,
        devices=device_lines(facts),
        users=_users(facts, jobs, waiting),
        jobs=jobs,
        waiting=waiting,
        messages=[LabMessage(message.owner, to_datetime(message.at), message.text) for message in view.messages],
        bookings=bookings_of(view, facts).bookings,
        usage=list(usage),
        notes=list(dict.fromkeys([*view.warnings, *warnings])),
    )


# -- running jobs ----------------------------------------------------------------------------------


def _jobs(facts: QueueFacts, view: LedgerView, boards: Mapping[str, list[Board]]) -> list[LabJob]:
    """Leases are the truth about who has a GPU: a board can add to those of its own user, and claim none."""
    labels = {name: device.label for device in facts.devices.values() for name in device.claims}
    told = {
        (user, job.pid, job.job): job for user, of_user in boards.items() for board in of_user for job in board.jobs
    }
    jobs = [
        _job(facts, lease, told.get((lease.owner, lease.process, lease.job)), labels) for lease in view.leases.values()
    ]
    places = {label: place for place, label in enumerate(labels.values())}
    return sorted(jobs, key=lambda job: (min(places.get(gpu, len(places)) for gpu in [*job.gpus, ""]), job.since))


def _job(facts: QueueFacts, lease: Lease, told: BoardJob | None, labels: Mapping[str, str]) -> LabJob:
    sizes = [claim.memory for claim in lease.claims]
    return LabJob(
        user=lease.owner,
        you=lease.owner == facts.user,
        gpus=list(dict.fromkeys(labels.get(claim.name, claim.name) for claim in lease.claims)),
        memory_bytes=None if None in sizes else max(filter(None, sizes), default=None),
        since=to_datetime(min(told.since if told else lease.since, facts.now)),
        expected_end=to_datetime_or_none(lease.expected),
        latest_end=to_datetime_or_none(lease.until),
        utilisation_percent=told.utilisation if told else None,
        job=lease.job if lease.process else "",
        pid=lease.process or lease.pid,
        title=told.title if told else "",
    )


# -- waiting jobs and users ------------------------------------------------------------------------


def _waiting(facts: QueueFacts, view: LedgerView, boards: Mapping[str, list[Board]]) -> list[LabWaiting]:
    """By what the jobs want; of a user without a board, and of further kinds, only how many there are."""
    rest = {user: sum(board.more for board in of_user) for user, of_user in boards.items()}
    uncounted = {user: jobs for user, jobs in {**view.waiting, **rest}.items() if jobs}
    lines = [LabWaiting(user, user == facts.user, jobs, None, None, None) for user, jobs in uncounted.items()]
    lines += [
        LabWaiting(
            user,
            user == facts.user,
            kind.jobs,
            kind.gpus,
            kind.memory,
            to_datetime(min(kind.since, facts.now)),
        )
        for user, of_user in boards.items()
        for board in of_user
        for kind in board.waiting
    ]
    return sorted(lines, key=lambda line: (line.since is None, line.since or facts.now, line.user))


def _users(facts: QueueFacts, jobs: Sequence[LabJob], waiting: Sequence[LabWaiting]) -> list[LabUser]:
    users = {facts.user, *(job.user for job in jobs), *(line.user for line in waiting)}
    lines = [
        LabUser(
            user=user,
            you=user == facts.user,
            running=sum(job.user == user for job in jobs),
            gpus=len({gpu for job in jobs if job.user == user for gpu in job.gpus}),
            waiting=sum(line.jobs for line in waiting if line.user == user),
        )
        for user in users
    ]
    return sorted(lines, key=lambda line: (-line.gpus, -line.waiting, line.user))
