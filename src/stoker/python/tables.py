"""Tables for Python programs: the queue, its history and the GPUs as rows that pandas takes and notebooks show."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.app.jobs.local_time import LocalZone
from stoker.app.jobs.select import parse_filter
from stoker.app.views.columns import COLUMNS, HISTORY_NOTEBOOK, STATUS_NOTEBOOK
from stoker.app.views.facts import read_facts
from stoker.app.views.gpus import gpus_of, known_devices
from stoker.app.views.history import past_lines
from stoker.app.views.status import status_of
from stoker.core.text import printable
from stoker.core.units import duration_text, parse_since, size_text
from stoker.python.connection import find_link
from stoker.store.past_jobs import Period
from stoker.store.paths import host_name

if TYPE_CHECKING:
    from msgspec import Struct

MOST_SHOWN = 60
"""Rows of a table that a notebook shows."""
LONGEST_CELL = 60
EVERYTHING = 2**62


class Rows(list[dict[str, Any]]):
    """A list of dictionaries with equal keys, as `pandas.DataFrame(rows)` takes it; shown as a short table."""

    def __init__(self, rows: Iterable[Struct | dict[str, Any]], columns: Sequence[str]) -> None:
        super().__init__(msgspec.to_builtins(row, builtin_types=(datetime,)) for row in rows)
        self._columns = columns
        """The columns that are shown; each row has more keys."""

    def __repr__(self) -> str:
        lines = [self._columns, *self._cells()]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self._columns))]
        table = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([*(line.rstrip() for line in table), *self._rest()])

    def _repr_html_(self) -> str:
        return html_table(self._columns, self._cells(), "".join(self._rest()))

    def _cells(self) -> list[list[str]]:
        return [[_cell(name, row[name]) for name in self._columns] for row in self[:MOST_SHOWN]]

    def _rest(self) -> Iterator[str]:
        if len(self) > MOST_SHOWN:
            yield f"... {len(self) - MOST_SHOWN} more"


def status() -> Rows:
    """The open jobs: running ones, then waiting ones, each with the reason why it waits."""
    link = find_link()
    with read_facts(link.paths) as facts:
        jobs = status_of(facts, host_name(), None, each_task=True).jobs
    return Rows(jobs, [COLUMNS[name].field for name in STATUS_NOTEBOOK])


def history(since: str | None = None, states: Sequence[str] = (), limit: int | None = None) -> Rows:
    """The jobs that ended, newest last; `since` is 2h, 1d, yesterday or a date, `states` such as ["failed", "oom"]."""
    link, now = find_link(), time.time()
    period = Period(parse_since(since, now, LocalZone()) if since else 0.0, parse_filter(states=states))
    with past_lines(link.paths, period, EVERYTHING if limit is None else limit) as jobs:
        return Rows(jobs, [COLUMNS[name].field for name in HISTORY_NOTEBOOK])


def gpus() -> Rows:
    """The GPUs of this machine, their memory and the jobs on them."""
    link = find_link()
    with known_devices(link.paths) as facts:
        devices = gpus_of(facts).devices
    return Rows(devices, ("label", "model", "used_bytes", "memory_bytes", "utilisation_percent", "jobs"))


def html_table(columns: Sequence[str], lines: Iterable[Sequence[str]], below: str = "") -> str:
    """A table for a notebook. Cells are text of jobs, and never HTML."""
    from html import escape

    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    rest = f"<p>{escape(below)}</p>" if below else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def _cell(column: str, value: Any) -> str:
    if value is None:
        return ""
    if column.endswith("bytes"):
        return size_text(value)
    if column.endswith("seconds"):
        return duration_text(value)
    text = printable(", ".join(map(str, value)) if isinstance(value, list) else str(value))
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"
