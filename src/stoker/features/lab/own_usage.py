"""Sum up the usage of this user's queue by day, from its history and the samples of GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from stoker.app.jobs.local_time import midnight
from stoker.app.views.usage import busy_seconds, days_between
from stoker.core.device import node_gpu
from stoker.core.errors import StokerError
from stoker.core.idleness import IDLE_PERCENT
from stoker.core.units import DAY
from stoker.features.lab.formats import (
    KEPT_DAYS,
    MOST_KWH,
    USAGE,
    GpuDay,
    GroupDay,
    UsageFile,
    decode_usage,
    encode_usage,
)
from stoker.ledger import Ledger
from stoker.ledger.files import new_name, printable
from stoker.store.past_jobs import GpuSpan, Period, gpu_spans
from stoker.store.reader import Reader
from stoker.store.samples import held_minutes

INTERVAL = 60.0
"""Seconds between two looks, or more if a look takes long."""
REST = 200.0
"""Times the duration of a look."""
MOST_SPANS = 10_000
"""Attempts of ended jobs that one look adds up, the newest: the engine waits for this."""
LONGEST_NAME = 60
"""Characters of a group's name."""


class UsageFileWriter:
    """The usage file of one queue, which stays in the ledger when the engine ends."""

    def __init__(self, ledger: Ledger, state: Path, store: Reader) -> None:
        self._ledger = ledger
        self._store = store
        self._queue = sha256(bytes(state)).hexdigest()[:16]
        self._known: UsageFile | None = None
        self._name = ""
        self._due = 0.0

    def publish(self, now: float, names: Mapping[str, str], *, groups: bool, last: bool = False) -> None:
        """Look again if it is time, or the last time; `names` are those of GPUs in the ledger, by their ids."""
        if now < self._due and not last:
            return
        began = time.thread_time()
        with suppress(StokerError):  # a ledger that cannot be used is reported where a claim fails
            self._publish(now, names, groups=groups)
        self._due = now + max(INTERVAL, REST * (time.thread_time() - began))

    def _publish(self, now: float, names: Mapping[str, str], *, groups: bool) -> None:
        before = self._known or self._found()
        since = midnight(min(now, max(before.at, now - KEPT_DAYS * DAY)))
        new = used_days(self._store, since, now, names, groups=groups)
        merged = _merged(before.between(ordinal(now) - KEPT_DAYS, ordinal(since)), new, groups=groups)
        usage = replace(merged, queue=self._queue, at=now)
        name, self._name = self._name or new_name(USAGE), ""  # a name that another user has taken is not tried again
        self._ledger.leave(name, encode_usage(usage))
        self._name, self._known = name, usage

    def withdraw(self) -> None:
        """Tell nothing, not even of earlier days."""
        if self._due >= 0:
            self._found()
            if self._name:
                self._ledger.withdraw(self._name)
            self._name, self._known, self._due = "", None, -1.0

    def _found(self) -> UsageFile:
        """The newest file of this queue, whose name is used again; an engine that ran beside this one left others."""
        posts = self._ledger.posts(USAGE, decode_usage, lasting=True).contents
        mine = {
            name: usage
            for name, (uid, usage) in posts.items()
            if uid == os.geteuid() and (usage.queue == self._queue or usage.at < time.time() - KEPT_DAYS * DAY)
        }
        newest = max(mine, key=lambda name: (mine[name].queue == self._queue, mine[name].at), default="")
        for name in mine.keys() - {newest}:
            self._ledger.withdraw(name)
        self._name = newest
        return mine.get(newest, UsageFile())


def _merged(old: UsageFile, new: UsageFile, *, groups: bool) -> UsageFile:
    """Both; without `groups`, no name that an earlier engine told stays."""
    lines = old.groups
    if not groups:
        days = {line.day: [other for other in lines if other.day == line.day] for line in lines}
        lines = tuple(
            GroupDay(day, "", sum(line.gpu_hours for line in of_day), sum(line.waiting_hours for line in of_day))
            for day, of_day in days.items()
        )
    return replace(new, gpus=(*old.gpus, *new.gpus), groups=(*lines, *new.groups))


def ordinal(at: float) -> int:
    """The number of a local day, as files have it."""
    return date.fromtimestamp(at).toordinal()


def used_days(store: Reader, since: float, now: float, names: Mapping[str, str], *, groups: bool) -> UsageFile:
    """The days from that of `since` until now. Time of several jobs on one GPU counts once.

    Without `groups`, no name of a group is told.
    """
    by_gpu: dict[tuple[int, str], list[GpuSpan]] = {}
    by_group: dict[tuple[int, str], list[GpuSpan]] = {}
    spans = gpu_spans(store, Period(since, on_finish_jobs=True), now, MOST_SPANS)
    for day, span in _parts(spans, since, now):
        by_gpu.setdefault((day, names.get(span.device, span.device)), []).append(span)
        by_group.setdefault((day, printable(span.group)[:LONGEST_NAME] if groups else ""), []).append(span)
    idle, energy = _measured(store, since, now, names)
    gpu_days = [
        GpuDay(*key, hours := _hours(busy_seconds(spans)), _at_most(hours, idle.get(key)), energy.get(key))
        for key, spans in sorted(by_gpu.items())
    ]
    group_days = [
        GroupDay(*key, _hours(busy_seconds(spans)), _hours(sum(span.waited for span in spans)))
        for key, spans in sorted(by_group.items())
    ]
    return UsageFile(gpus=tuple(gpu_days), groups=tuple(group_days))


def _parts(spans: Sequence[GpuSpan], since: float, now: float) -> Iterator[tuple[int, GpuSpan]]:
    """The spans on GPUs of this machine by day; the time that a job waited counts on the day of its start."""
    elsewhere = {device for device in {span.device for span in spans} if node_gpu(device) is not None}
    for day, seconds in days_between(since, now):
        number, end = ordinal(day), day + seconds
        for span in spans:
            if span.started < end and span.ended > day and span.device not in elsewhere:
                if span.started >= day and span.ended <= end:
                    yield number, span
                else:
                    waited = span.waited if span.started >= day else 0.0
                    started, ended = max(span.started, day), min(span.ended, end)
                    yield number, span._replace(started=started, ended=ended, waited=waited)


def _measured(
    store: Reader, since: float, now: float, names: Mapping[str, str]
) -> tuple[dict[tuple[int, str], float], dict[tuple[int, str], float]]:
    """Idle hours and kilowatt-hours, by day and GPU, as far as they were measured."""
    idle: dict[tuple[int, str], float] = {}
    energy: dict[tuple[int, str], float] = {}
    for day, _ in days_between(since, now):
        for held in held_minutes(store, day, midnight(day + 1.5 * DAY), IDLE_PERCENT):
            key = ordinal(day), names.get(held.device, held.device)
            idle[key] = _hours(60 * held.idle)
            if held.watt_minutes is not None:
                energy[key] = min(MOST_KWH, round(held.watt_minutes / 60_000, 4))
    return idle, energy


def _at_most(hours: float, idle: float | None) -> float | None:
    """A minute counts as idle for a job that had the GPU in a part of it."""
    return None if idle is None else min(hours, idle)


def _hours(seconds: float) -> float:
    return round(seconds / 3600, 4)
