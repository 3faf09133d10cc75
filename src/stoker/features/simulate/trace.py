"""Reads traces of jobs (CSV, also that of `stoker history --csv`) and tables of measured models (Gavel's JSON)."""

from __future__ import annotations

import ast
import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stoker.core.errors import UsageError
from stoker.core.learning import signature_of
from stoker.core.spec import PLAIN_SHELL, Command
from stoker.core.units import parse_size
from stoker.features.simulate.policies import scaled_name
from stoker.features.simulate.workload import FAMILIES, MEASURED_PEAKS, Models, TraceJob, family_model

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "arrival": ("timestamp", "submit", "arrival", "submit_time"),
    "duration": ("duration",),
    "gpus": ("gpus", "num_gpus", "gpu_num"),
    "user": ("user", "cluster"),
    "memory": ("vram", "memory"),
    "load": ("load", "utilisation", "utilization"),
    "kind": ("name", "kind"),
}
"""Facts of a job, and the column names that they may have."""
HISTORY_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "arrival": ("submitted",),
    "duration": ("ran",),
    "gpus": ("gpus",),
    "memory": ("peak_vram",),
    "load": ("util",),
    "devices": ("devices",),
    "directory": ("directory",),
    "command": ("command",),
}
"""The same for a history, where `vram` is what was asked for, and the command tells the kind."""
HISTORY = "submitted"
"""The column that only a history has."""
NEEDED = ("arrival", "duration")
SAMPLE = Path(__file__).with_name("sample.csv")
"""A trace of a made-up month, written by docs/make_sample_trace.py."""
GAVEL_GPU = "v100"
_MODEL = re.compile(r"(\S+)(?: \(batch size (\d+)\))?")
Value = TypeVar("Value")


def read_trace(path: Path) -> list[TraceJob]:
    """All jobs of a file, in its order."""
    try:
        file = path.open(newline="", encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "give a CSV file with a trace of jobs") from error
    with file:
        return rows_of(file, str(path))


def rows_of(lines: Iterable[str], source: str) -> list[TraceJob]:
    """All jobs of the lines of a CSV file; `source` names it in an error."""
    table = csv.reader(lines)
    header = next(_lines(table, source), None)
    if header is None:
        raise UsageError(f"{source} is empty", "a trace starts with a line of column names")
    titles = [title.strip().lower() for title in header]
    is_history = HISTORY in titles
    columns = _columns(titles, HISTORY_COLUMNS if is_history else COLUMNS, source)
    return [
        _row(cells, columns, f"{source}:{table.line_num}", is_history=is_history)
        for cells in _lines(table, source)
        if cells
    ]


def _lines(table: Any, source: str) -> Iterator[list[str]]:
    try:
        yield from table
    except (csv.Error, OSError) as error:
        raise UsageError(f"{source}:{table.line_num}: {error}", "a trace is a CSV file") from error


def _columns(titles: Sequence[str], names: Mapping[str, tuple[str, ...]], source: str) -> dict[str, int]:
    columns = {
        name: next(titles.index(word) for word in words if word in titles)
        for name, words in names.items()
        if any(word in titles for word in words)
    }
    for name in NEEDED:
        if name not in columns:
            hint = f"one of {', '.join(names[name])}; found: {', '.join(filter(None, titles)) or 'none'}"
            raise UsageError(f"{source} has no column for the {name}", hint)
    return columns


def _row(cells: Sequence[str], columns: Mapping[str, int], place: str, *, is_history: bool) -> TraceJob:
    def cell(name: str, read: Callable[[str], Value], missing: Value, expected: str) -> Value:
        text = cells[columns[name]].strip() if name in columns and columns[name] < len(cells) else ""
        if not text and (name not in NEEDED or (name == "duration" and is_history)):  # a job that never ran
            return missing
        try:
            return read(text)
        except (ValueError, OverflowError, UsageError):
            message = f"{place}: {name} is {text!r}, not {expected}"
            raise UsageError(message, "fix or remove the line") from None

    return TraceJob(
        arrival=cell("arrival", _moment, 0.0, "a moment in seconds or as YYYY-MM-DD HH:MM:SS"),
        seconds=cell("duration", _number, 0.0, "a number of seconds"),
        gpus=cell("gpus", _gpus, 1, "a number of GPUs"),
        user=cell("user", str, "", ""),
        memory=cell("memory", _memory, None, "a size such as 6G"),
        load=cell("load", lambda text: round(_number(text.removesuffix("%"), 100)), None, "a load in percent"),
        kind=cell("kind", str, "", "") or _kind(cell("command", str, "", ""), cell("directory", str, "", "")),
        devices=cell("devices", lambda text: tuple(text.split(",")), (), ""),
    )


def _kind(command: str, directory: str) -> str:
    """The kind of work of a command, as the engine learns it; empty without a command."""
    return command and signature_of(Command((command,), PLAIN_SHELL), directory)


def _moment(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not isfinite(seconds):
        raise ValueError(text)
    return seconds


def _number(text: str, most: float = inf) -> float:
    number = float(text)
    if not 0 <= number <= most or number == inf:  # nor nan
        raise ValueError(text)
    return number


def _gpus(text: str) -> int:
    gpus = _number(text)
    if not gpus.is_integer():
        raise ValueError(text)
    return int(gpus)


def _memory(text: str) -> int:
    if (size := parse_size(text)) <= 0:
        raise ValueError(text)
    return size


def read_models(path: Path) -> Models:
    """Models and speeds of pairs from a file of Gavel's form: GPU, model and scale, co-tenant -> steps a second."""
    try:
        raw = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, dict[str, Any]]])
        solo = raw[GAVEL_GPU]
        # Model and number of GPUs of `('LM (batch size 5)', 2)`.
        names = {key: (str(name), int(scale)) for key in solo for name, scale in [ast.literal_eval(key)]}
        return Models((*_models(list(names.values())), *MEASURED_PEAKS), dict(_pairs(solo, names)))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "give a file such as gavel_throughputs.json"
        ) from error
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, SyntaxError) as error:
        hint = f"it should be a file such as gavel_throughputs.json, with a table for {GAVEL_GPU}"
        raise UsageError(f"{path} has no throughputs: {error}", hint) from error


def _models(names: Sequence[tuple[str, int]]) -> Iterator[Any]:
    batches: dict[str, list[int]] = defaultdict(list)
    for name, scale in names:
        if scale == 1 and (match := _MODEL.fullmatch(name)) and match[1] in FAMILIES:
            batches[match[1]].append(int(match[2] or 0))
    for family, sizes in batches.items():
        yield from (family_model(family, tuple(sorted(sizes)), size) for size in sorted(sizes))


def _pairs(
    solo: Mapping[str, Mapping[str, Any]], names: Mapping[str, tuple[str, int]]
) -> Iterator[tuple[tuple[str, str], float]]:
    """The speed of the first of each pair; nothing if it could not be run on the card that was measured."""
    for key, co_tenants in solo.items():
        exclusive = co_tenants["null"]
        for other, together in co_tenants.items():
            if other in names and together[0] > 0 and exclusive > 0:
                yield (scaled_name(*names[key]), scaled_name(*names[other])), min(1.0, together[0] / exclusive)
