"""Progress and speed of a job, from the progress lines of its log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from stoker.core.logs.text import last_match, pattern, without_colours

_TAIL = 65_536
"""Characters at the end of a log that are searched."""
_LINES = 200
"""Most lines that are searched."""
_WIDTH = 2000
"""Most characters of a line that are searched."""


class ProgressCount(Struct, frozen=True):
    """The numbers of a progress line; None if it has none."""

    done: int | None = None
    total: int | None = None
    per_second: float | None = None
    unit: str = ""
    """The unit that is counted per second, such as it, step or samples; empty if unknown."""


def read_pace(text: str) -> ProgressCount | None:
    """The last line with a rate; if none has one, the last with a count."""
    counted = None
    for line in _lines_from_the_end(text):
        pace = _pace(line)
        if pace is not None and pace.per_second is not None:
            return pace
        counted = counted or pace
    return counted


_NUMBER = r"(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,12})(?:\.\d{1,9})?"
_COUNT = rf"({_NUMBER}[kKMG]?)"
_STEP = r"(?i:\b(?:global[_ ]step|step|iter|iteration|batch|update|sample|example|image|episode|generation)s?)"
_OF = r"\s?(?:/|of)\s{0,12}"

_COUNTS = (
    rf"[|━╸╺─]\s{{1,4}}{_COUNT}/{_COUNT}(?![\w/.])",  # tqdm, rich
    rf"(?<![\w./,]){_COUNT}/(?:{_COUNT}|Unknown)\s{{1,4}}(?:\[|━|╸|╺|─|- )",  # tqdm, Keras
    rf"{_STEP}\W{{1,12}}{_COUNT}{_OF}{_COUNT}(?![\w/.])",
    rf"[\[(]\s{{0,12}}{_COUNT}{_OF}{_COUNT}\s{{0,4}}[\]()]",
    rf"(?i:\bepochs?)\W{{1,12}}{_COUNT}{_OF}{_COUNT}(?![\w/.])",
    rf"(?<![\w./]){_COUNT}(?:it|[a-z]{{1,20}}) \[\d",  # tqdm without a total
    rf"{_STEP}[\s:=#]{{1,12}}(\d{{1,12}})(?![\w./])",
)
"""Forms of progress counts, the finest first."""

_VALUE = rf"(?P<value>{_NUMBER})"
_UNIT = r"(?P<unit>(?![A-Za-z]?(?i:flop))[A-Za-z][A-Za-z_]{0,20})"
_THINGS = r"(?P<unit>(?i:it|iter|iteration|batch|batche|sample|example|token|image|img|frame|sequence)s?)"
_PER_SECOND = r"(?:/|_per_| per )s(?:ec(?:ond)?)?['\"]?\s{0,4}[:=]\s{0,4}['\"]?"
_SCALE = r"(?P<scale>[kMG](?=it/|sample|token|example|step))?"
_RATES = (
    rf"(?<![\w.])(?<!\d,){_VALUE}\s?{_SCALE}{_UNIT}/s(?:ec(?:ond)?)?(?![\w/])",
    rf"(?<![\w.])(?<!\d,){_VALUE}\s?(?P<time>s|secs?|seconds?|ms|us|µs|min)/{_UNIT}(?![\w/])",
    rf"(?P<unit>steps?){_PER_SECOND}{_VALUE}",
    rf"{_THINGS}{_PER_SECOND}{_VALUE}",
    rf"time per (?P<unit>iteration|step) \((?P<time>ms|s)\)\s{{0,4}}[:=]\s{{0,4}}{_VALUE}",
)
"""Forms of rates: 4.5it/s, 1.2s/it, steps_per_second: 0.4, samples/s=812, time per step (ms): 9."""
_ETA = r"ETA:\s?(?:(\d{1,4}):)?(?:(\d{1,2}):)?(\d{1,6})s?\b"
_BYTES = r"(?:[KMGTkmgt]i?)?(?:[Bb](?:it|yte)?s?)/s(?:ec)?(?!\w)"
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
_TIMES = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0}


def _lines_from_the_end(text: str) -> Iterator[str]:
    """Lines that may show progress. A line that is cut at its beginning is skipped: it may have half a number."""
    lines = without_colours(text[-_TAIL:]).replace("\r", "\n").split("\n")
    whole = lines if len(text) <= _TAIL else lines[1:]
    for line in reversed(whole[-_LINES:]):
        if "/" in line or "tep" in line or "ter" in line:
            yield line[:_WIDTH]


def _pace(line: str) -> ProgressCount | None:
    if pattern(_BYTES).search(line):  # a download
        return None
    done, total = _counts(line)
    rate, unit = _rate(line)
    if rate is None and done is not None and total is not None:
        rate, unit = _rate_by_eta(line, total - done), "step"
    return (
        ProgressCount(done, total, rate, unit if rate is not None else "")
        if done is not None or rate is not None
        else None
    )


def _counts(line: str) -> tuple[int | None, int | None]:
    for form in _COUNTS:
        for match in pattern(form).finditer(line):
            done, *rest = (_number(group) for group in match.groups() if group)
            total = rest[0] if rest else None
            if total is None or done <= total:
                return done, total
    return None, None


def _number(text: str) -> int:
    scale, plain = _SCALES.get(text[-1]), text.replace(",", "")
    return round(float(plain[:-1]) * scale) if scale else round(float(plain))


def _rate(line: str) -> tuple[float | None, str]:
    for form in _RATES:
        if match := pattern(form).search(line):
            named = match.groupdict()
            return _per_second(float(named["value"].replace(",", "")), named), named["unit"].lower()
    return None, ""


def _per_second(value: float, named: Mapping[str, str | None]) -> float | None:
    if time := named.get("time"):
        return 1 / (value * _TIMES.get(time, 1.0)) if value else None
    return value * _SCALES.get(named.get("scale") or "", 1.0)


def _rate_by_eta(line: str, left: int) -> float | None:
    """The rate from the ETA: Keras prints the time per step only at the end of an epoch."""
    match = pattern(_ETA).search(line)
    if not match:
        return None
    parts = [int(part) for part in match.groups() if part]
    seconds = sum(part * 60**place for place, part in enumerate(reversed(parts)))
    return left / seconds if seconds else None


# -- how much of the whole job is done -----------------------------------------------------------


class Progress(NamedTuple):
    """How much of a job is done."""

    fraction: float
    left: float | None = None
    """Seconds left, if the log or the reports tell; else they follow from the time so far."""


class _Shown(NamedTuple):
    """A count that a log line shows."""

    family: tuple[str, int]
    """Its description without numbers, and its total: the same for all lines of a bar."""
    done: int
    total: int
    place: int
    """Where its line ends in the text."""
    elapsed: float | None = None
    left: float | None = None
    is_inner: bool = False
    """Whether the line shows that this is the loop inside an epoch."""

    @property
    def fraction(self) -> float:
        return self.done / self.total


class _Epoch(NamedTuple):
    completed: int
    total: int
    place: int
    is_current: bool
    """Whether the line names the epoch that runs, not those that are complete; a loop inside it shows which."""


NEARLY = 0.99
"""The most that is shown of a running job: its log may not show all that it has to do."""
LATE = 0.5
"""A bar that has run for less than this part of the job's time is a loop inside the job, or a part of it."""
_TQDM = (
    r"^(?P<what>(?:\d{1,6}\|\d{1,12}\|)?[^|\n]{0,200}?)\b\d{1,3}%\|[^|\n]{0,400}\|\s{0,8}"  # torchtune: epoch|step|
    rf"(?P<done>{_COUNT[1:-1]})/(?P<total>{_COUNT[1:-1]})\s{{0,4}}\[(?P<elapsed>[\d:]{{4,12}})<(?P<left>[\d:]{{4,12}})?"
)
_TQDM_RICH = (
    rf"^(?P<what>[^━╸╺─\n]{{0,200}}?)\s\d{{1,3}}%\s[━╸╺─\s]{{1,400}}(?P<done>{_COUNT[1:-1]})/(?P<total>{_COUNT[1:-1]})"
    r"\s{1,4}\[\s?(?P<elapsed>[\d:]{4,12})\s?<\s?(?P<left>[\d:]{4,12})?"
)
_KERAS = rf"^\s{{0,12}}{_COUNT}/{_COUNT}\s{{1,4}}(?:\[[=>.]|[━╸╺─])"
_RICH = rf"[━╸╺─]\s{{1,4}}{_COUNT}/{_COUNT}(?![\w/.])"
_EPOCH = r"(?i:\bepochs?)\b['\"]?[ \t:=#\[(]{0,4}(\d{1,7})\s?(?:/|of)\s?(\d{1,7})(?![\w.])"
_EPOCH_BAR = r"(?im)^[ \t]{0,8}epochs?\b[ \t:]{0,4}\d{1,3}%\|[^|\n]{0,400}\|\s{0,8}(\d{1,7})/(\d{1,7})\b"
_EPOCH_COLUMN = r"(?m)^[ \t]{0,12}(\d{1,7})/(\d{1,7})[ \t]{1,12}\d{1,4}(?:\.\d{1,3})?G\b"
"""YOLO: the epoch, then the memory of the GPU."""
_INSIDE_EPOCH = r"(?i:\bepochs?)\b|\b(?:Train: \d{1,7}|Test:)\s{1,4}\["
_INSIDE_MARKS = ("poch", "POCH", "Train: ", "Test: ")
"""A line of a loop inside an epoch; timm's does not name it."""
_FOLD = r"(?i:\bfold)\b[ \t:=#\[(]{0,4}(\d{1,4})\b(?:\s?(?:/|of)\s?(\d{1,4})(?![\w.]))?"
_PERCENT = r"(?i:\bprogress)\W{1,6}(\d{1,3}(?:\.\d{1,3})?)\s?%"
_WHOLE_ETA = (
    r"(?:\]\s{1,4}(?:base_)?lr: [^\n]{1,120}?\beta: "  # mmcv, mmengine
    r"|\beta: (?=[\w:, ]{7,24}?\s{1,4}iter: \d))"  # detectron2
    r"(?:(?P<days>\d{1,3}) days?, )?(?P<clock>\d{1,3}:\d\d:\d\d)"
)
"""The time left of the whole job. The `eta` of torchvision's references is that of an epoch."""


def read_progress(text: str, ran: float) -> Progress | None:
    """The progress of a job that has run for so many seconds; None if its log does not show that of the whole job.

    Epochs count more than the loops inside them, which begin again with each. A loop that has begun again, or began
    late, does not tell how much of the job is done.
    """
    plain = without_colours(text[-_TAIL:]).replace("\r", "\n")
    shown = list(_shown_counts(plain))
    epoch = _last_epoch(plain)
    if epoch is not None:
        progress: Progress | None = _by_epochs(epoch, [count for count in shown if count.place >= epoch.place])
    else:
        progress = _by_loop(shown, ran)
    left = _whole_eta(plain)
    if left is not None:
        return Progress(min(progress.fraction if progress else ran / (ran + left or 1.0), NEARLY), left)
    return _in_folds(plain, progress)


def _whole_eta(text: str) -> float | None:
    match = last_match(_WHOLE_ETA, text, ("eta: ",))
    seconds = _clock_seconds(match["clock"]) if match else None
    return seconds + 86_400 * int(match["days"] or 0) if match and seconds is not None else None


def _in_folds(text: str, inside: Progress | None) -> Progress | None:
    """In a cross-validation all other progress is that of a fold."""
    fold = last_match(_FOLD, text, ("fold", "Fold", "FOLD"))
    if fold is None:
        return inside
    current, total = int(fold[1]), int(fold[2] or 0)
    if not 0 < total >= current:
        return None
    from_zero = any(match[1] == "0" for match in pattern(_FOLD).finditer(text))
    complete = current - (not from_zero) + (inside.fraction if inside else 0.0)
    return Progress(max(0.0, min(complete / total, NEARLY)))


def _last_epoch(text: str) -> _Epoch | None:
    bars = list(pattern(_EPOCH_BAR).finditer(text)) if "poch" in text or "POCH" in text else []
    named = list(pattern(_EPOCH).finditer(text)) if "poch" in text or "POCH" in text else []
    columns = list(pattern(_EPOCH_COLUMN).finditer(text)) if "G " in text else []
    last = max([*bars[-1:], *named[-1:], *columns[-1:]], key=lambda match: match.end(), default=None)
    if last is None:
        return None
    done, total = int(last[1]), int(last[2])
    line_end = text.find("\n", last.end())
    rest = text[last.end() : line_end if line_end >= 0 else None][:_WIDTH]
    if not 0 < total <= 10**7 or done > total:
        return None
    if last in bars:
        return _Epoch(done, total, last.end(), is_current=False)
    if "━" in rest and last in named:  # Lightning counts from 0 to total
        return _Epoch(done, total + 1, last.end(), is_current=False)
    from_zero = any(int(match[1]) == 0 and match[2] == last[2] for match in named)
    return _Epoch(done + from_zero, total, last.end(), is_current=True)


def _by_epochs(epoch: _Epoch, inside: list[_Shown]) -> Progress:
    """With the part of the running epoch that the loop inside it shows."""
    completed = float(epoch.completed)
    if inside:
        completed += inside[-1].fraction - epoch.is_current
    return Progress(max(0.0, min(completed / epoch.total, NEARLY)))


def _by_loop(shown: list[_Shown], ran: float) -> Progress | None:
    """The last loop that has not begun again, and has run for most of the time."""
    last: dict[tuple[str, int], _Shown] = {}
    repeated = set()
    for bar in shown:
        if bar.family in last and bar.done < last[bar.family].done:
            repeated.add(bar.family)
        last[bar.family] = bar
    whole = [
        bar
        for bar in last.values()
        if bar.family not in repeated
        and not bar.is_inner
        and bar.done < bar.total
        and (bar.elapsed is None or bar.elapsed >= LATE * ran)
    ]
    last_bar = max(whole, key=lambda bar: bar.place, default=None)
    return None if last_bar is None else Progress(min(last_bar.fraction, NEARLY), last_bar.left)


def _shown_counts(text: str) -> Iterator[_Shown]:
    """Counts with a total in the last lines, from the first to the last."""
    end = 0
    lines = text.split("\n")
    skipped = max(0, len(lines) - _LINES)
    end = sum(len(line) + 1 for line in lines[:skipped])
    for line in lines[skipped:]:
        end += len(line) + 1
        if ("/" in line or "rogress" in line) and (count := _shown_count(line[:_WIDTH], end)):
            yield count


def _shown_count(line: str, place: int) -> _Shown | None:
    """Plain searches come before patterns: to compile one takes longer than to read a log."""
    if "/s" in line and pattern(_BYTES).search(line):  # a download
        return None
    is_inner = any(mark in line for mark in _INSIDE_MARKS) and pattern(_INSIDE_EPOCH).search(line) is not None
    if bar := _bar(line):
        done, total = _number(bar["done"]), _number(bar["total"])
        family = pattern(r"\d+").sub("", bar["what"]).strip()
        elapsed, left = _clock_seconds(bar["elapsed"]), _clock_seconds(bar["left"])
        if is_inner and pattern(_EPOCH_BAR).search(line):  # the loop over the epochs itself
            return None
    else:
        counted = _inner_or_steps(line)
        if counted is None:
            return None
        done, total, family, elapsed, left = *counted[:2], counted[2], None, None
        is_inner = is_inner or counted[2] == "keras"
    return _Shown((family, total), done, total, place, elapsed, left, is_inner) if total > 1 and done <= total else None


def _bar(line: str) -> re.Match[str] | None:
    """A bar with its times: of tqdm, or of tqdm drawn by rich."""
    if "%|" in line:
        return pattern(_TQDM).search(line)
    return pattern(_TQDM_RICH).search(line) if "━" in line and "<" in line else None


def _inner_or_steps(line: str) -> tuple[int, int, str] | None:
    is_bar = "━" in line or "╸" in line or "[=" in line or "[." in line or "[>" in line
    forms = [(_KERAS, "keras"), (_RICH, "keras")] if is_bar else []
    forms += [(_COUNTS[2], "steps")]
    forms += [(_COUNTS[3], "brackets")] if "[" in line or "(" in line else []
    if "rogress" in line and (percent := pattern(_PERCENT).search(line)):
        return round(10 * float(percent[1])), 1000, "percent"
    for form, family in forms:
        for match in pattern(form).finditer(line):
            before = line[max(0, match.start() - 12) : match.start() + 1].rstrip(" \t:[(").lower()
            if not before.endswith(("epoch", "epochs", "fold")):
                return _number(match[1]), _number(match[2]), family
    return None


def _clock_seconds(text: str | None) -> float | None:
    """`1:02:03` or `02:03` in seconds."""
    parts = (text or "").split(":")
    if not 2 <= len(parts) <= 3 or not all(part.isdecimal() for part in parts):
        return None
    return float(sum(int(part) * 60**place for place, part in enumerate(reversed(parts))))
