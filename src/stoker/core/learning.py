"""Learn durations, memory peaks and utilisation from earlier runs, and estimate the next one."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise, zip_longest
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker.core.spec import Command, JobSpec, Member, Resources

KEPT = 9
"""Newest runs that are kept."""
GRAIN_BYTES = 64 * 2**20
"""Bytes to which estimates are rounded up, so that small differences do not make different kinds."""
LEAST_BYTES = 512 * 2**20
"""Bytes that an estimate has at least: about what a process takes that begins to use a GPU."""
ZERO_RUNS = 2
"""Runs without any GPU memory after which the work is known to need none."""
CURVE = 64
"""Most points of a curve. A full curve drops every second point and doubles its spacing."""
MIB = 2**20
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+|[KMGTkmgt]?i?[bB]?)")
_FILE = re.compile(r".*\d.*\.[A-Za-z]\w{0,7}")
_SPECIAL = re.compile(r"""['"\\#]""")
"""Characters for which a shell splits a line in another way than at blanks."""

_DIGITS = re.compile(r"\d+")

_MATTERS = (
    "mem|ram|batch|bs$|size|hidden|dim|width|depth|layer|channel|seq|len|token|head|res|crop|img|image|context|ctx|emb|rank"
    "|frame|sample|n[gd]f$|filter|expert|unit|feature|vocab|window|patch|beam|scale|block|accum|precision|bits"
)
"""Names of options whose numbers affect the memory of a run; compiled on first use."""

_LABELS = (
    r"name|\brun|[-_]run\b|exp(?:eriment)?\b|\bid\b|[-_]id\b|tag|out|log|dir\b|save|title|comment|note|ckpt|checkpoint"
)
"""Names of options that only name a run or its output, unless they match `_SUBSTANCE`."""

_SUBSTANCE = "model|arch|net|data|config"
"""Names that change the work even if they look like labels."""
Kept = TypeVar("Kept")


class Runs(Struct, frozen=True):
    """The newest runs of one kind of work on one GPU model, the newest last."""

    peaks: tuple[int, ...] = ()
    """Most bytes of each on a GPU."""
    loads: tuple[int, ...] = ()
    """Percent of a GPU that each kept busy, if it ran exclusively."""
    paces: tuple[float, ...] = ()
    """Steps per second of each, if it ran exclusively and its log shows it."""


class Learnt(Struct, frozen=True):
    """The newest runs of one kind of work."""

    seconds: tuple[float, ...] = ()
    """Durations of the successful ones, the newest last."""
    models: Mapping[str, Runs] = {}
    """By GPU model."""
    saves: tuple[float, ...] = ()
    """Seconds from the request to give way to the end of the run, the newest last."""
    starts: tuple[float, ...] = ()
    """Seconds from the start of a run until its GPUs computed, the newest last."""


def observe_save(learnt: Learnt, seconds: float) -> Learnt:
    return replace(learnt, saves=_with(learnt.saves, seconds))


def observe_start(learnt: Learnt, seconds: float) -> Learnt:
    return replace(learnt, starts=_with(learnt.starts, seconds))


def observe(learnt: Learnt, seconds: float) -> Learnt:
    return replace(learnt, seconds=(*learnt.seconds, seconds)[-KEPT:])


def observe_use(
    learnt: Learnt, model: str, *, peak: int | None = None, load: int | None = None, pace: float | None = None
) -> Learnt:
    """Add the measurements of a run on a GPU model; None is unknown."""
    runs = learnt.models.get(model, Runs())
    runs = Runs(_with(runs.peaks, peak), _with(runs.loads, load), _with(runs.paces, pace))
    return replace(learnt, models={**learnt.models, model: runs})


def expected_seconds(learnt: Learnt) -> float | None:
    """Expected duration of the next run: the median of the last; None without runs."""
    from statistics import median  # slow to import, and only engines need it

    return median(learnt.seconds) if learnt.seconds else None


def remaining_seconds(learnt: Learnt, ran: float) -> float | None:
    """Expected rest of a run that has worked so long; None without runs.

    That of the earlier runs that took longer. One that outlives them all, needs as long again: run times spread widely.
    """
    if not learnt.seconds:
        return None
    longer = [seconds - ran for seconds in learnt.seconds if seconds > ran]
    return max(sum(longer) / len(longer), ran * len(longer) / len(learnt.seconds)) if longer else ran


def usual_pace(learnt: Learnt, model: str) -> float | None:
    """Median steps per second of such work, exclusively on a GPU model; None if unknown."""
    paces = sorted(learnt.models[model].paces) if model in learnt.models else []
    return paces[len(paces) // 2] if paces else None


def estimated(resources: Resources, learnt: Learnt, margin: int, floor: int = 0) -> Resources:
    """The resources with learnt memory (the largest of the last peaks plus a margin) and load."""
    loads = tuple((model, max(runs.loads)) for model, runs in sorted(learnt.models.items()) if runs.loads)
    if not resources.auto:
        return replace(resources, loads=loads, floor=floor)
    peaks = [(model, peak) for model, runs in sorted(learnt.models.items()) if (peak := _peak(runs)) is not None]
    predicted = tuple((model, max(LEAST_BYTES, rounded_up(peak * (100 + margin) // 100))) for model, peak in peaks)
    return replace(resources, predicted=predicted, loads=loads, floor=floor)


def _peak(runs: Runs) -> int | None:
    """The largest peak; None without runs, and if a single one took no memory: it may have ended early."""
    peak = max(runs.peaks, default=0)
    return peak if peak or len(runs.peaks) >= ZERO_RUNS else None


def rounded_up(size: int) -> int:
    return -(-size // GRAIN_BYTES) * GRAIN_BYTES


def kind_of(command: Command, spec: JobSpec, member: Member | None = None) -> str:
    """The signature of a job with GPUs: their memory and time are learnt. Empty for jobs without."""
    return signature_of(command, spec.cwd, member) if spec.resources.gpus else ""


def alike_key(command: Command, spec: JobSpec) -> str | None:
    """Equal for jobs of equal specs whose kinds are equal; None if that is not cheap to say."""
    if not spec.resources.gpus:
        return ""
    if not command.shell:
        return "\0".join(_masked_words(list(command.words)))
    line = command.words[0]
    return None if _SPECIAL.search(line) else "\0".join(_masked_words(line.split()))


def signature_of(command: Command, cwd: str, member: Member | None = None) -> str:
    """Hash of command and directory, without the numbers and labels that only distinguish runs.

    For a job with parameters, the names of its parameters say which numbers matter, wherever these are in the command.
    Numbers that matter are put into classes, since a range may give every job another one.
    """
    import hashlib

    params = _params_of(member) if member else {}
    words = _words(command.words[0]) if command.shell else list(command.words)
    varied = frozenset(value for value in params.values() if _is_number(value))
    text = "\0".join([cwd, *_masked_words(words, varied), *_classes(params)])
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def _classes(params: Mapping[str, object]) -> Iterator[str]:
    """The values that distinguish the memory of jobs: all texts that are no labels, and the sizes of numbers that
    matter."""
    for name, value in params.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            if _matters(name):
                yield f"{name}~{_size_class(value)}"
        elif not _is_label(name):
            yield f"{name}={value}"


def _size_class(number: float) -> int:
    """Four classes for each factor of 2: numbers of a class differ by less than the margin of estimates."""
    return round(4 * math.log2(abs(number))) if number else -(2**20)


def _params_of(member: Member) -> dict[str, object]:
    params: dict[str, object] = msgspec.json.decode(member.params)
    return params


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@lru_cache(maxsize=1024)
def _matters(option: str) -> bool:
    """Whether numbers of an option affect the memory of a run."""
    return bool(re.search(_MATTERS, option, re.IGNORECASE))


@lru_cache(maxsize=1024)
def _is_label(option: str) -> bool:
    return bool(re.search(_LABELS, option, re.IGNORECASE) and not re.search(_SUBSTANCE, option, re.IGNORECASE))


def _masked_words(words: list[str], varied: frozenset[object] = frozenset()) -> list[str]:
    return [*words[:1], *(_masked(word, before, varied) for before, word in pairwise(words))]


@lru_cache(maxsize=1024)
def _masked(word: str, before: str, varied: Collection[object] = ()) -> str:
    """A word with its number or label replaced by #, unless the number affects the size of the work.

    `varied` are the numbers among the parameters, which are considered by the names of their parameters.
    """
    name, equals, value = word.rpartition("=")
    option = name if equals else before if before.startswith("-") else ""
    if option and _is_label(option):
        return f"{name}{equals}#"
    if _NUMBER.fullmatch(value):
        if varied and _number(value) in varied:
            return f"{name}{equals}#"
        return word if _matters(option) else f"{name}{equals}#"
    if "/" in value or _FILE.fullmatch(value):
        return f"{name}{equals}{_DIGITS.sub('#', value)}"
    return word


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # a size, such as 8G
        return None


def _with(values: tuple[Kept, ...], value: Kept | None) -> tuple[Kept, ...]:
    return values if value is None else (*values, value)[-KEPT:]


def _words(line: str) -> list[str]:
    import shlex

    if not _SPECIAL.search(line):  # which is much faster
        return line.split()
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # quotes that only a shell can parse
        return line.split()


class MeasuredUse(Struct, frozen=True):
    """The measured GPU use of one attempt; memory is that of the GPU on which it held most."""

    peak: int = 0
    looks: int = 0
    """Number of measurements."""
    busy: int = 0
    """Measurements without co-tenants on its GPUs; once it has used GPU memory, only those at which it holds some."""
    load: int = 0
    """Sum of the utilisation at those, in percent."""
    curve: tuple[tuple[float, int], ...] = ()
    """Seconds since the start, and MiB."""
    spacing: float = 0.0
    """Seconds between two points."""
    began: float | None = None
    """Seconds from its start until its GPUs first computed for it; 0 if no engine looked at that time."""

    @property
    def utilisation(self) -> int | None:
        """Mean utilisation of its GPUs without co-tenants, in percent; None if unknown."""
        return round(self.load / self.busy) if self.busy else None


class Live(NamedTuple):
    """Current and peak memory of a running attempt, in bytes."""

    memory: int
    peak: int
    utilisation: int | None = None


def seen(
    use: MeasuredUse, seconds: float, memory: int, utilisation: int | None, *, is_gap: bool = False
) -> MeasuredUse:
    """Add a measurement; `utilisation` is None if its GPUs have co-tenants. `is_gap`: the one before is long ago."""
    busy, load = _loaded(use, memory, utilisation)
    began = use.began
    if began is None and memory and utilisation and (use.peak or is_gap):
        began = 0.0 if is_gap else round(seconds, 1)
    return replace(
        use,
        peak=max(use.peak, memory),
        looks=use.looks + 1,
        busy=busy,
        load=load,
        began=began,
        **_drawn(use, seconds, memory // MIB),
    )


def _loaded(use: MeasuredUse, memory: int, utilisation: int | None) -> tuple[int, int]:
    """Count and sum of the utilisation with one more measurement.

    The time before a program uses the GPU, and after its last process has left, says nothing about its load. At the
    first measurement with memory, the driver's figure is still a mean over such time.
    """
    if memory and not use.peak:
        return 0, 0
    if utilisation is None or (use.peak and not memory):
        return use.busy, use.load
    return use.busy + 1, use.load + utilisation


def reached(use: MeasuredUse, peak: int) -> MeasuredUse:
    """Add a peak from the driver's accounting."""
    return replace(use, peak=max(use.peak, peak))


def _drawn(use: MeasuredUse, seconds: float, memory: int) -> dict[str, tuple[tuple[float, int], ...] | float]:
    """Add a point to the curve; one too close to the last only raises the last."""
    if use.curve and seconds - use.curve[-1][0] < use.spacing:
        before, last = use.curve[:-1], use.curve[-1]
        return {"curve": (*before, (last[0], max(last[1], memory)))}
    curve = (*use.curve, (round(seconds, 1), memory))
    if len(curve) <= CURVE:
        return {"curve": curve}
    pairs = zip_longest(curve[::2], curve[1::2], fillvalue=(0.0, 0))
    thinned = tuple((point[0], max(point[1], other[1])) for point, other in pairs)
    return {"curve": thinned, "spacing": max(2 * use.spacing, 2 * seconds / CURVE)}
