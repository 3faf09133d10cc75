"""Progress and speed of a job, from the progress lines of its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from stoker.core.logs.text import pattern, without_colours

_TAIL = 65_536
"""Characters at the end of a log that are searched."""
_LINES = 200
"""Most lines that are searched."""
_WIDTH = 2000
"""Most characters of a line that are searched."""


class Pace(Struct, frozen=True):
    """The numbers of a progress line; None where it has none."""

    done: int | None = None
    total: int | None = None
    per_second: float | None = None
    unit: str = ""
    """What is counted per second, such as it, step or samples; empty where unknown."""


def read_pace(text: str) -> Pace | None:
    """The last line with a rate; where none has one, the last with a count."""
    counted = None
    for line in _lines_from_the_end(text):
        pace = _pace(line)
        if pace is not None and pace.per_second is not None:
            return pace
        counted = counted or pace
    return counted


_NUMBER = r"\d{1,12}(?:\.\d{1,9})?"
_COUNT = rf"({_NUMBER}[kKMG]?)"
_STEP = r"(?i:\b(?:global[_ ]step|step|iter|iteration|batch|update|sample|example|image)s?)"
_OF = r"\s?(?:/|of)\s{0,12}"

_COUNTS = (
    rf"[|━╸╺─]\s{{1,4}}{_COUNT}/{_COUNT}(?![\w/.])",  # tqdm, rich
    rf"(?<![\w./]){_COUNT}/(?:{_COUNT}|Unknown)\s{{1,4}}(?:\[|━|╸|╺|─|- )",  # tqdm, Keras
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
    rf"(?<![\w.]){_VALUE}\s?{_SCALE}{_UNIT}/s(?:ec(?:ond)?)?(?![\w/])",
    rf"(?<![\w.]){_VALUE}\s?(?P<time>s|secs?|seconds?|ms|us|µs|min)/{_UNIT}(?![\w/])",
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


def _pace(line: str) -> Pace | None:
    if pattern(_BYTES).search(line):  # a download
        return None
    done, total = _counts(line)
    rate, unit = _rate(line)
    if rate is None and done is not None and total is not None:
        rate, unit = _rate_by_eta(line, total - done), "step"
    return Pace(done, total, rate, unit if rate is not None else "") if done is not None or rate is not None else None


def _counts(line: str) -> tuple[int | None, int | None]:
    for form in _COUNTS:
        for found in pattern(form).finditer(line):
            done, *rest = (_number(group) for group in found.groups() if group)
            total = rest[0] if rest else None
            if total is None or done <= total:
                return done, total
    return None, None


def _number(text: str) -> int:
    scale = _SCALES.get(text[-1])
    return round(float(text[:-1]) * scale) if scale else round(float(text))


def _rate(line: str) -> tuple[float | None, str]:
    for form in _RATES:
        if found := pattern(form).search(line):
            named = found.groupdict()
            return _per_second(float(named["value"]), named), named["unit"].lower()
    return None, ""


def _per_second(value: float, named: Mapping[str, str | None]) -> float | None:
    if time := named.get("time"):
        return 1 / (value * _TIMES.get(time, 1.0)) if value else None
    return value * _SCALES.get(named.get("scale") or "", 1.0)


def _rate_by_eta(line: str, left: int) -> float | None:
    """The rate from the ETA: Keras prints the time per step only at the end of an epoch."""
    found = pattern(_ETA).search(line)
    if not found:
        return None
    parts = [int(part) for part in found.groups() if part]
    seconds = sum(part * 60**place for place, part in enumerate(reversed(parts)))
    return left / seconds if seconds else None
