"""What earlier runs teach: durations, memory peaks, utilisation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise, zip_longest
from typing import NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from stoker.core.spec import Command, JobSpec, Resources

KEPT = 9
"""Runs that count, the newest ones."""

GRAIN = 64 * 2**20
"""Bytes to which predictions are rounded up, so that small differences do not make different needs."""

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+|[KMGTkmgt]?i?[bB]?)")

_FILE = re.compile(r".*\d.*\.[A-Za-z]\w{0,7}")

_DIGITS = re.compile(r"\d+")

_MATTERS = (
    "mem|ram|batch|bs$|size|hidden|dim|width|depth|layer|channel|seq|len|token|head|res|crop|img|image|context|ctx|emb|rank"
    "|frame|sample|n[gd]f$|filter|expert|unit|feature|vocab|window|patch|beam|scale|block|accum|precision|bits"
)
"""Names of options whose numbers decide how much memory a run takes; compiled only where somebody asks."""

_LABELS = (
    r"name|\brun|[-_]run\b|exp(?:eriment)?\b|\bid\b|[-_]id\b|tag|out|log|dir\b|save|title|comment|note|ckpt|checkpoint"
)
"""Names of options that only say what a run is called or where its results go..."""

_SUBSTANCE = "model|arch|net|data|config"
"""... unless it is one of these that is called so."""

Kept = TypeVar("Kept")


class Runs(Struct, frozen=True):
    """The newest runs of one kind of work on one model of GPU, the newest last."""

    peaks: tuple[int, ...] = ()
    """Bytes that each held at most on a GPU."""
    loads: tuple[int, ...] = ()
    """Percent of a GPU that each kept busy, where it was alone."""
    paces: tuple[float, ...] = ()
    """Steps a second of each, where it was alone and its log told."""


class Learnt(Struct, frozen=True):
    """The newest runs of one kind of work."""

    seconds: tuple[float, ...] = ()
    """How long each took that succeeded, the newest last."""
    models: Mapping[str, Runs] = {}
    """What depends on the model of the GPU."""


def observe(learnt: Learnt, seconds: float) -> Learnt:
    """What is known after one more run that succeeded."""
    return replace(learnt, seconds=(*learnt.seconds, seconds)[-KEPT:])


def observe_use(
    learnt: Learnt, model: str, *, peak: int | None = None, load: int | None = None, pace: float | None = None
) -> Learnt:
    """What is known after one more run was measured on a GPU of a model; None is what could not be told."""
    runs = learnt.models.get(model, Runs())
    runs = Runs(_with(runs.peaks, peak), _with(runs.loads, load), _with(runs.paces, pace))
    return replace(learnt, models={**learnt.models, model: runs})


def expected_seconds(learnt: Learnt) -> float | None:
    """How long the next run will take, by the middle one of the last; None where there was none."""
    from statistics import median  # only engines want to know; every door would pay for loading it

    return median(learnt.seconds) if learnt.seconds else None


def usual_pace(learnt: Learnt, model: str) -> float | None:
    """Steps a second of such work alone on a GPU of a model: the middle one of the last; None where nobody knows."""
    paces = sorted(learnt.models[model].paces) if model in learnt.models else []
    return paces[len(paces) // 2] if paces else None


def estimated(resources: Resources, learnt: Learnt, margin: int, floor: int = 0) -> Resources:
    """The need with what was learnt: the largest of the last peaks and a margin, and how busy it keeps a GPU."""
    loads = tuple((model, max(runs.loads)) for model, runs in sorted(learnt.models.items()) if runs.loads)
    if not resources.auto:
        return replace(resources, loads=loads, floor=floor)
    peaks = [(model, max(runs.peaks)) for model, runs in sorted(learnt.models.items()) if runs.peaks]
    predicted = tuple((model, rounded_up(peak * (100 + margin) // 100)) for model, peak in peaks)
    return replace(resources, predicted=predicted, loads=loads, floor=floor)


def rounded_up(size: int) -> int:
    """Bytes as predictions have them."""
    return -(-size // GRAIN) * GRAIN


def kind_of(command: Command, spec: JobSpec) -> str:
    """The signature of work that may share a GPU; empty for all other, of which nobody has to ask it."""
    return signature_of(command, spec.cwd) if spec.resources.shares else ""


def signature_of(command: Command, cwd: str) -> str:
    """The kind of work: the command and its place, but for those numbers in it that only tell its runs apart."""
    import hashlib

    words = _words(command.words[0]) if command.shell else list(command.words)
    masked = [*words[:1], *(_masked(word, before) for before, word in pairwise(words))]
    text = "\0".join([cwd, *masked])
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def _masked(word: str, before: str) -> str:
    """A word without the number or label that it is or gives to an option, unless that says how large the work is."""
    name, equals, value = word.rpartition("=")
    option = name if equals else before if before.startswith("-") else ""
    if option and re.search(_LABELS, option, re.IGNORECASE) and not re.search(_SUBSTANCE, option, re.IGNORECASE):
        return f"{name}{equals}#"
    if _NUMBER.fullmatch(value):
        return word if re.search(_MATTERS, option, re.IGNORECASE) else f"{name}{equals}#"
    if "/" in value or _FILE.fullmatch(value):
        return f"{name}{equals}{_DIGITS.sub('#', value)}"
    return word


def _with(values: tuple[Kept, ...], value: Kept | None) -> tuple[Kept, ...]:
    return values if value is None else (*values, value)[-KEPT:]


def _words(line: str) -> list[str]:
    import shlex

    try:
        return shlex.split(line, comments=True)
    except ValueError:  # quotes that only a shell understands
        return line.split()


CURVE = 64
"""Points that a curve has at most; then every second one goes, and the next ones are half as many."""

MIB = 2**20


class Use(Struct, frozen=True):
    """What was seen of one attempt; memory is that of the GPU on which it held most."""

    peak: int = 0
    looks: int = 0
    busy: int = 0
    """Looks at which nobody else was on its GPUs..."""
    load: int = 0
    """... and the sum of how busy these were at them, in percent."""
    curve: tuple[tuple[float, int], ...] = ()
    """Seconds since the start, and MiB."""
    spacing: float = 0.0
    """Seconds between two points."""

    @property
    def utilisation(self) -> int | None:
        """How busy it kept its GPUs on average, in percent, while nobody else was there; None where nobody knows."""
        return round(self.load / self.busy) if self.busy else None


class Live(NamedTuple):
    """What a running attempt holds now and held at most, as screens show it."""

    memory: int
    peak: int
    utilisation: int | None = None


def seen(use: Use, seconds: float, memory: int, utilisation: int | None) -> Use:
    """The use after one more look; the utilisation is that of its GPUs where it had them to itself."""
    told = utilisation is not None
    return replace(
        use,
        peak=max(use.peak, memory),
        looks=use.looks + 1,
        busy=use.busy + told,
        load=use.load + (utilisation or 0),
        **_drawn(use, seconds, memory // MIB),
    )


def reached(use: Use, peak: int) -> Use:
    """The use, where the driver tells a peak that no look has met."""
    return replace(use, peak=max(use.peak, peak))


def _drawn(use: Use, seconds: float, memory: int) -> dict[str, tuple[tuple[float, int], ...] | float]:
    """The curve with one more point, where that is far enough from the last; spikes in between raise the last."""
    if use.curve and seconds - use.curve[-1][0] < use.spacing:
        before, last = use.curve[:-1], use.curve[-1]
        return {"curve": (*before, (last[0], max(last[1], memory)))}
    curve = (*use.curve, (round(seconds, 1), memory))
    if len(curve) <= CURVE:
        return {"curve": curve}
    pairs = zip_longest(curve[::2], curve[1::2], fillvalue=(0.0, 0))
    thinned = tuple((one[0], max(one[1], other[1])) for one, other in pairs)
    return {"curve": thinned, "spacing": max(2 * use.spacing, 2 * seconds / CURVE)}
