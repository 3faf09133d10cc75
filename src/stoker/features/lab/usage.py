"""Usage of all users as data: by user, GPU, group or day."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Literal, NamedTuple

from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.facts import QueueFacts
from stoker.app.views.gpus import known_devices
from stoker.app.views.summary import ledger_here
from stoker.features.lab.formats import USAGE, UsageFile, decode_usage
from stoker.features.lab.own_usage import ordinal
from stoker.ledger import Ledger
from stoker.ledger.files import owner_name, purpose
from stoker.store.paths import Paths, host_name

SCHEMA = "stoker.lab-usage/1"
WEEK_DAYS, MONTH_DAYS = 7, 30
By = Literal["user", "gpu", "group", "day"]


class UsageTotal(Struct, frozen=True):
    """The usage of one user, GPU, group or day. Fields that do not belong to the question are empty."""

    day: str
    """`2026-11-19`."""
    user: str
    you: bool
    gpu: str
    """Its label, or its name if it is not here any more."""
    group: str
    """Empty for jobs without a group, and if their user does not share names."""
    gpu_hours: float
    """Time of several jobs of one user on a GPU counts once."""
    waiting_hours: float | None
    """Hours from submit to start, of the jobs that started; null by GPU."""
    idle_gpu_hours: float | None
    """Hours in which jobs had a GPU and almost did not use it; null by group, or if not measured."""
    energy_kwh: float | None
    """Of GPUs while jobs had them; null by group, or if not measured."""


class LabUsage(Struct, frozen=True):
    """Usage of all users of this machine: `stoker usage --json`."""

    schema: str
    at: datetime
    host: str
    simulated: bool
    first_day: str
    last_day: str
    by: By
    totals: list[UsageTotal]
    """Those with the most GPU-hours first, days in their order."""
    notes: list[str]
    """Warnings about files that were ignored."""


class _Fact(NamedTuple):
    """One figure of a file."""

    day: int
    user: str
    gpu: str = ""
    group: str = ""
    gpu_hours: float = 0.0
    waiting_hours: float | None = None
    idle_hours: float | None = None
    energy_kwh: float | None = None


_Key = Callable[[_Fact], tuple[str, str, str, str]]
"""Day, user, GPU and group that a figure counts for."""
_KEYS: Mapping[By, _Key] = {
    "user": lambda fact: ("", fact.user, "", ""),
    "gpu": lambda fact: ("", "", fact.gpu, ""),
    "group": lambda fact: ("", fact.user, "", fact.group),
    "day": lambda fact: (date.fromordinal(fact.day).isoformat(), fact.user, "", ""),
}


def read_usage(paths: Paths, days: int, by: By) -> LabUsage:
    """The totals of the last days, today included."""
    with known_devices(paths) as facts:
        files, warnings = usage_files(ledger_here(paths))
        last = ordinal(facts.now)
        return LabUsage(
            schema=SCHEMA,
            at=to_datetime(facts.now),
            host=host_name(),
            simulated=facts.simulated,
            first_day=date.fromordinal(last - days + 1).isoformat(),
            last_day=date.fromordinal(last).isoformat(),
            by=by,
            totals=usage_totals(facts, files, days, by),
            notes=list(warnings),
        )


def usage_files(ledger: Ledger) -> tuple[list[tuple[int, UsageFile]], Sequence[str]]:
    """The newest file of each queue with its user, and warnings about files that were ignored."""
    posts = ledger.posts(USAGE, decode_usage, lasting=True)
    newest: dict[tuple[int, str], UsageFile] = {}
    for uid, usage in sorted(posts.contents.values(), key=lambda told: told[1].at):
        newest[uid, usage.queue] = usage
    return [(uid, usage) for (uid, _), usage in newest.items()], posts.warnings


def usage_totals(facts: QueueFacts, files: Iterable[tuple[int, UsageFile]], days: int, by: By) -> list[UsageTotal]:
    """The sums of the last days. Days in the future or long ago are not there, whatever a file says."""
    last = ordinal(facts.now)
    labels = {name: device.label for device in facts.devices.values() for name in device.claims}
    sums: dict[tuple[str, str, str, str], list[_Fact]] = {}
    for uid, usage in files:
        for fact in _facts(owner_name(uid), usage.between(last - days + 1, last + 1), labels, by):
            sums.setdefault(_KEYS[by](fact), []).append(fact)
    totals = [_total(key, of_key, facts.user) for key, of_key in sums.items()]
    return sorted(totals, key=lambda total: (total.day, -total.gpu_hours, total.user, total.gpu, total.group))


def _facts(user: str, usage: UsageFile, labels: Mapping[str, str], by: By) -> Iterator[_Fact]:
    """The figures that answer a question; of a day that a file tells twice, the last counts."""
    if by != "group":
        for gpu_day in {(line.day, line.gpu): line for line in usage.gpus}.values():
            label = labels.get(gpu_day.gpu) or purpose(gpu_day.gpu)
            figures = gpu_day.gpu_hours, None, gpu_day.idle_hours, gpu_day.energy_kwh
            yield _Fact(gpu_day.day, user, label, "", *figures)
    if by != "gpu":
        for group_day in {(line.day, line.group): line for line in usage.groups}.values():
            hours = group_day.gpu_hours if by == "group" else 0.0
            yield _Fact(group_day.day, user, "", purpose(group_day.group), hours, group_day.waiting_hours)


def _total(key: tuple[str, str, str, str], facts: Sequence[_Fact], you: str) -> UsageTotal:
    day, user, gpu, group = key
    return UsageTotal(
        day=day,
        user=user,
        you=user == you,
        gpu=gpu,
        group=group,
        gpu_hours=round(sum(fact.gpu_hours for fact in facts), 4),
        waiting_hours=_sum(fact.waiting_hours for fact in facts),
        idle_gpu_hours=_sum(fact.idle_hours for fact in facts),
        energy_kwh=_sum(fact.energy_kwh for fact in facts),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(sum(numbers), 4) if numbers else None
