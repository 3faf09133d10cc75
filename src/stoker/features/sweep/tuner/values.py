"""Read the values of a running trial: its log, its reports, files that it writes, those of TensorBoard and W&B."""

from __future__ import annotations

import contextlib
import csv
import glob
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from stoker.app.jobs.installation import how_to_add_extra
from stoker.core.errors import UsageError
from stoker.core.logs.text import without_colours
from stoker.features.sweep.model.objective import Curve, Objective, ValueSeries
from stoker.features.sweep.model.wandb_log import Logged, RunLog
from stoker.store.logs import Tail
from stoker.store.paths import UNREADABLE
from stoker.store.reports import ReportLine
from stoker.store.schema import AttemptRow

CLOCK_SECONDS = 2.0
"""How much older than the attempt a file may seem that it wrote: file systems have clocks of their own."""
MOST_SCALARS = 100_000
RUN_FILE = "run.json"
"""In the folder of a trial of W&B: which run is that of its last attempt."""
LONGEST_LINE = 64 * 1024
"""Bytes of a line that are read; the rest of it is dropped."""
STEP_NAMES = ("step", "global_step", "epoch", "iteration", "iter", "_step")
"""Names of the step in a file, the first that is there counts."""
Reading = tuple[float, float | None]
"""A value and its step; None is the next step."""


class ValueSource(Protocol):
    """Adds new values to a series."""

    @property
    def notice(self) -> str:
        """A note for the user about the text; empty if there is none."""

    def read(self, series: ValueSeries, *, last: bool) -> None:
        """Read what is new; `last` also takes a line that has no end yet."""

    def close(self) -> None: ...


class TextSource:
    """Values in the lines of a file that grows."""

    def __init__(self, path: str, reader: LineReader, since: float | None = None) -> None:
        """A file that was last written before `since` is left over from an earlier run."""
        self._tail = Tail(path)
        self._reader = reader
        self._since = since
        self._lines = LineSplitter()

    @property
    def notice(self) -> str:
        return self._reader.notice

    def read(self, series: ValueSeries, *, last: bool) -> None:
        if self._since is not None and not self._is_new():
            return
        with contextlib.suppress(OSError, ValueError):  # a path with a null byte is the latter
            for block in self._tail.read():
                self._add(series, self._lines.feed(block))
        if last:
            self._add(series, self._lines.finish())

    def close(self) -> None:
        self._tail.close()

    def _is_new(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            if os.stat(self._tail.path).st_mtime >= (self._since or 0.0) - CLOCK_SECONDS:
                self._since = None
                return True
        return False

    def _add(self, series: ValueSeries, lines: Sequence[str]) -> None:
        for line in lines:
            if (reading := self._reader.read(line)) is not None:
                series.add(*reading)


class ReportReader:
    """Values that a run gave to `stoker.report()`, of which each is a line of JSON."""

    def __init__(self, name: str, run: int) -> None:
        self.notice = ""
        self._name = name
        self._run = run
        self._decoder = msgspec.json.Decoder(ReportLine)

    def read(self, line: str) -> tuple[float, float | None] | None:
        with contextlib.suppress(*UNREADABLE):
            report = self._decoder.decode(line)
            if report.attempt == self._run:
                return reading_in(report.values, self._name)
        return None


class EventFiles:
    """Scalars in the event files of TensorBoard, below a directory."""

    def __init__(self, folder: str, tag: str, since: float) -> None:
        try:
            from tensorboard.backend.event_processing import plugin_event_multiplexer
        except ImportError:
            raise UsageError(
                "an objective in TensorBoard's files needs tensorboard, which this Python does not have",
                how_to_add_extra("tensorboard"),
            ) from None
        self.notice = ""
        self._folder = folder
        self._tag = tag
        self._since = since - CLOCK_SECONDS
        self._events = plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": MOST_SCALARS})

    def read(self, series: ValueSeries, *, last: bool) -> None:
        del last
        if not os.path.isdir(self._folder):
            return
        self._events.AddRunsFromDirectory(self._folder)
        self._events.Reload()
        runs = [run for run, tags in self._events.Runs().items() if self._tag in tags.get("tensors", ())]
        if len(runs) > 1:
            self.notice = f"{self._tag} is in {len(runs)} runs below {self._folder}; all of them are read"
        for run in runs:
            self._add(series, self._events.Tensors(run, self._tag))

    def close(self) -> None:
        pass

    def _add(self, series: ValueSeries, events: Sequence[Any]) -> None:
        from tensorboard.util import tensor_util

        for event in events:
            value = tensor_util.make_ndarray(event.tensor_proto)
            if event.wall_time >= self._since and value.size == 1:
                series.add(float(value.item()), float(event.step))


class WandbRuns:
    """Values that a trial gave to `wandb.log`, in the files of its runs."""

    def __init__(self, folder: str, name: str, run: int, since: float) -> None:
        """`folder` is that of the trial, in which the starter of each attempt says where its runs are."""
        self.notice = ""
        self._folder = Path(folder)
        self._name = name
        self._run = run
        self._since = since - CLOCK_SECONDS
        self._files: dict[Path, tuple[Tail, RunLog]] = {}
        self._summary: float | None = None

    def read(self, series: ValueSeries, *, last: bool) -> None:
        if last or not self._files:
            self._find()
        for path, (tail, log) in self._files.items():
            try:
                for block in tail.read():
                    self._add(series, log.feed(block))
            except (OSError, ValueError) as error:
                self.notice = f"{path} cannot be read: {error}"
        if last and not series.arrived and (value := self._last_summary()) is not None:
            series.add(value)

    def close(self) -> None:
        for tail, _ in self._files.values():
            tail.close()

    def _find(self) -> None:
        """Open the files of runs that began with this attempt."""
        for path in (file for run in self._runs() for file in run.glob("run-*.wandb")):
            with contextlib.suppress(OSError):
                if path not in self._files and path.stat().st_mtime >= self._since:
                    self._files[path] = Tail(str(path)), RunLog()

    def _runs(self) -> set[Path]:
        """New directories of runs in the folder, and that of the attempt's own run wherever the script put it."""
        with contextlib.suppress(OSError, *UNREADABLE):
            started = msgspec.json.decode((self._folder / RUN_FILE).read_bytes(), type=_Started)
            if started.attempt == self._run:
                runs = set(self._folder.glob("wandb/*run-*"))
                for folder in started.folders:
                    runs.update(Path(folder).glob(f"wandb/*run-*-{glob.escape(started.id)}"))
                return runs - {self._folder / name for name in started.earlier}
        return set()

    def _add(self, series: ValueSeries, records: Iterable[Logged]) -> None:
        for kind, values in records:
            if (value := values.get(self._name)) is None:
                continue
            if kind == "history":
                series.add(value)
            else:
                self._summary = value

    def _last_summary(self) -> float | None:
        """The value in the summary, for one that was never logged: of the file, or of wandb's older summary file."""
        for run in self._runs() if self._summary is None else ():
            with contextlib.suppress(OSError, *UNREADABLE):
                path = run / "files" / "wandb-summary.json"
                if path.stat().st_mtime >= self._since and (reading := reading_in(_table_in(path), self._name)):
                    return reading[0]
        return self._summary


class _Started(msgspec.Struct):
    """An attempt, as its starter describes it."""

    attempt: int
    id: str
    folders: list[str]
    earlier: list[str]
    """Runs of earlier attempts in the folder of the trial."""


def _table_in(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])


class TrialValues:
    """The values of one run of a trial, for all objectives."""

    def __init__(
        self,
        objectives: Sequence[Objective],
        attempt: AttemptRow,
        run: int,
        report: Path,
        resolve: Callable[[str], str],
    ) -> None:
        """Read what the attempt writes; its reports carry the number of the `run`.

        `resolve` makes the path of a file that the trial writes from the text of an objective.
        """
        self.attempt = attempt.number
        self._series = {objective.name: ValueSeries() for objective in objectives}
        self._sources = {objective.name: _sources(objective, attempt, run, report, resolve) for objective in objectives}

    def read(self, *, last: bool = False) -> None:
        """Read what was written since the last call."""
        for name, sources in self._sources.items():
            for source in sources:
                source.read(self._series[name], last=last)

    @property
    def curves(self) -> Mapping[str, Curve]:
        return {name: series.curve for name, series in self._series.items()}

    @property
    def count(self) -> int:
        """How many values were read."""
        return sum(series.arrived for series in self._series.values())

    @property
    def notice(self) -> str:
        return next((source.notice for sources in self._sources.values() for source in sources if source.notice), "")

    def close(self) -> None:
        for sources in self._sources.values():
            for source in sources:
                source.close()


def _sources(
    objective: Objective, attempt: AttemptRow, run: int, report: Path, resolve: Callable[[str], str]
) -> list[ValueSource]:
    began = attempt.started or attempt.assigned
    match objective.source:
        case "report":
            return [TextSource(str(report), ReportReader(objective.name, run))]
        case "regex":
            return [TextSource(path, reader_for(objective)) for path in (attempt.log, attempt.errors) if path]
        case "tensorboard":
            return [EventFiles(resolve(objective.where), objective.name, began)]
        case "wandb":
            reported = TextSource(str(report), ReportReader(objective.name, run))
            return [reported, WandbRuns(resolve(objective.where), objective.name, run, began)]
        case _:
            return [TextSource(resolve(objective.where), reader_for(objective), began)]


# -- values in text ---------------------------------------------------------------------------------


class LineSplitter:
    """Cuts bytes into lines as they arrive. A carriage return ends a line, too: progress bars overwrite themselves."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[str]:
        """The lines that are complete now."""
        *whole, self._rest = re.split(rb"\r\n|\n|\r(?!\n|\Z)", self._rest + data)
        self._rest = self._rest[:LONGEST_LINE]
        return [_text(line) for line in whole]

    def finish(self) -> list[str]:
        """The line at the end of a file that has no newline."""
        rest, self._rest = self._rest, b""
        return [_text(rest)] if rest else []


def _text(line: bytes) -> str:
    return without_colours(line[:LONGEST_LINE].rstrip(b"\r").decode(errors="replace"))


class LineReader(Protocol):
    """Finds the value of an objective in lines."""

    notice: str
    """A note for the user about the text; empty if there is none."""

    def read(self, line: str) -> Reading | None:
        """The value in a line; None if it has none."""


def reader_for(objective: Objective) -> LineReader:
    """The reader of an objective whose source is text."""
    match objective.source:
        case "regex":
            return PatternReader(objective.where)
        case "csv":
            return CsvReader(objective.name)
        case _:
            return JsonReader(objective.name)


class PatternReader:
    """A regular expression: the group `value`, else the first but `step`, else the match; `step` is optional."""

    def __init__(self, pattern: str) -> None:
        self.notice = ""
        self._pattern = re.compile(pattern)
        names = self._pattern.groupindex
        others = [number for number in range(1, self._pattern.groups + 1) if number != names.get("step")]
        self._value: int | str = "value" if "value" in names else (others or [0])[0]
        self._has_step = "step" in names

    def read(self, line: str) -> Reading | None:
        matches = list(self._pattern.finditer(line))
        if not matches:
            return None
        if len(matches) > 1:
            self.notice = "the pattern matches several times on one line; the last match counts"
        last = matches[-1]
        value = number(last[self._value])
        if value is None:
            self.notice = f"the pattern found {str(last[self._value])[:40]!r}, which is not a number"
            return None
        return value, number(last["step"]) if self._has_step else None


class JsonReader:
    """One JSON object per line. `a.b` is the key `a.b`, or `b` inside `a`."""

    def __init__(self, name: str) -> None:
        self.notice = ""
        self._name = name

    def read(self, line: str) -> Reading | None:
        if not line.strip():
            return None
        try:
            row = msgspec.json.decode(_with_quoted_numbers(line))
        except (msgspec.DecodeError, RecursionError):
            self.notice = f"a line is not JSON: {line[:40]!r}"
            return None
        return reading_in(row, self._name) if isinstance(row, dict) else None


def _with_quoted_numbers(line: str) -> str:
    """Python's json writes NaN and Infinity, which are not JSON."""
    return re.sub(r'(?<=[:,\[\s])(-?Infinity|NaN)(?=\s*[,}\]])(?=(?:[^"]*"[^"]*")*[^"]*$)', r'"\1"', line)


class CsvReader:
    """Comma-separated values; the first line has the names of the columns, and such a line may come again."""

    def __init__(self, name: str) -> None:
        self.notice = ""
        self._name = name
        self._header: list[str] = []

    def read(self, line: str) -> Reading | None:
        cells = [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
        if self._name in cells:
            self._header = cells
            return None
        if not self._header:
            self.notice = f"its first line has no column {self._name}: {line[:60]!r}" if cells else self.notice
            return None
        return reading_in(dict(zip(self._header, cells, strict=False)), self._name)


def reading_in(row: Mapping[str, Any], name: str) -> Reading | None:
    """The value of a name in a row, with the step if the row has one."""
    value = number(_found(row, name))
    step = next((row[word] for word in STEP_NAMES if word in row and word != name), None)
    return None if value is None else (value, number(step))


def _found(row: Mapping[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    first, dot, rest = name.partition(".")
    inner = row.get(first) if dot else None
    return _found(inner, rest) if isinstance(inner, Mapping) else None


def number(value: Any) -> float | None:
    """A number, also nan and inf as words; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
