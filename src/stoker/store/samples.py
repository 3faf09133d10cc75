"""Samples of GPUs: one per GPU and minute, kept for two weeks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from stoker.store.reader import Reader

MINUTE = 60
KEPT_MINUTES = 14 * 24 * 60
"""Older samples are deleted."""
_DELETED_AT_ONCE = 1000
"""Old rows that one write deletes at most: it is part of a transaction that jobs wait for."""
# Two engines of a user may see the same GPU: each counts only its own jobs as reserved.
_INSERT = (
    "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
    " utilisation = coalesce(excluded.utilisation, utilisation), used = coalesce(excluded.used, used),"
    " reserved = max(excluded.reserved, reserved), temperature = coalesce(excluded.temperature, temperature),"
    " power = coalesce(excluded.power, power)"
)
_DELETE = (
    "DELETE FROM samples WHERE (minute, device) IN"
    f" (SELECT minute, device FROM samples WHERE minute < ? ORDER BY minute LIMIT {_DELETED_AT_ONCE})"
)


class Sample(NamedTuple):
    """Measurements of one GPU in one minute; None is unknown."""

    minute: int
    """Minutes since the epoch."""
    device: str
    utilisation: int | None
    """Mean, in percent."""
    used: int | None
    """Most bytes in use, by all processes."""
    reserved: int
    """Most bytes reserved for jobs of this engine."""
    temperature: int | None
    """Highest, in degrees Celsius."""
    power: float | None
    """Mean, in watts."""


def write_samples(connection: sqlite3.Connection, samples: Iterable[Sample]) -> None:
    """Insert samples and delete old ones, within the transaction of the caller."""
    rows = list(samples)
    if rows:
        connection.executemany(_INSERT, rows)
        connection.execute(_DELETE, (max(row.minute for row in rows) - KEPT_MINUTES,))


class HeldMinutes(NamedTuple):
    """A period of a GPU, as far as jobs of this queue had it."""

    device: str
    idle: int
    """Minutes with almost no utilisation."""
    watt_minutes: float | None
    """Energy; of a GPU that others used too, the part of the memory in use that was reserved. None if not measured."""


def held_minutes(reader: Reader, since: float, until: float, idle: int) -> list[HeldMinutes]:
    """Sum up the samples of a period; `idle` is the utilisation up to which a GPU counts as idle."""
    rows = reader.rows(
        "SELECT device, coalesce(sum(utilisation <= ?), 0), sum(power * reserved / max(reserved, coalesce(used, 0)))"
        " FROM samples WHERE minute >= ? AND minute < ? AND reserved > 0 GROUP BY device",
        *(idle, since // MINUTE, until // MINUTE),
    )
    return [HeldMinutes(*row) for row in rows]


def samples_between(reader: Reader, since: float, until: float, step: int = 1) -> list[Sample]:
    """The samples of a period, oldest first; with a step, one for so many minutes, named by the first of them."""
    rows = reader.rows(
        "SELECT minute / ? * ?, device, CAST(round(avg(utilisation)) AS INTEGER), max(used), max(reserved),"
        " max(temperature), round(avg(power), 1) FROM samples WHERE minute >= ? AND minute <= ? GROUP BY 1, device"
        " ORDER BY 1, device",
        *(step, step, since // MINUTE, until // MINUTE),
    )
    return [Sample(*row) for row in rows]
