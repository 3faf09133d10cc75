"""What a trace does not tell of its jobs, drawn so that users repeat their work, as they do."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from random import Random

from msgspec import Struct

from stoker.core.replay.models import Model, Models
from stoker.core.replay.work import Row, Work

REPEATS = 0.8
"""How likely a job is another run of a program that its user has run before on so many GPUs."""
SPREAD = 1.0
"""How far the logarithms of durations lie apart within a kind: experience errs by about this factor of e."""
PEAK_SPREAD = 0.02
LOAD_SPREAD = 3.0
SWELL_MEAN = 0.003
SWELL_SPREAD = 0.137
"""Of each job: a pair of equal ones then takes from -15 to +17 % of its sum (5th and 95th percentile), as measured."""


class _Nature(Struct, frozen=True):
    """What all jobs of a kind have in common."""

    model: str
    peak: float
    load: float


def draw(rows: Sequence[Row], models: Models, largest: int, random: Random) -> list[Work]:
    """The jobs with all that is missing, numbered by arrival; none needs more memory than the largest GPU has."""
    return _Drawing(models, largest, random).works(rows)


class _Drawing:
    """The programs of every user that were met so far."""

    def __init__(self, models: Models, largest: int, random: Random) -> None:
        self._models = [model for model in models.table if model.memory <= largest] or list(models.table[:1])
        self._named = {model.name: model for model in models.table}
        self._largest = largest
        self._random = random
        self._programs: dict[tuple[str, int], list[tuple[float, str]]] = {}
        self._natures: dict[str, _Nature] = {}

    def works(self, rows: Sequence[Row]) -> list[Work]:
        return [self._work(number, row) for number, row in enumerate(rows, 1)]

    def _work(self, number: int, row: Row) -> Work:
        kind = row.kind or self._draw_kind(row)
        nature = self._natures.get(kind)
        if nature is None:
            nature = self._natures[kind] = self._draw_nature(row)
        gauss = self._random.gauss
        peak = row.memory if row.memory is not None else int(nature.peak * (1 + gauss(0.0, PEAK_SPREAD)))
        load = row.load if row.load is not None else nature.load + gauss(0.0, LOAD_SPREAD)
        return Work(
            id=number,
            arrival=row.arrival,
            seconds=row.seconds,
            gpus=row.gpus,
            kind=kind,
            model=nature.model,
            peak=min(peak, self._largest),
            load=round(min(100.0, max(1.0, load))),
            swell=max(0.5, 1 + gauss(SWELL_MEAN, SWELL_SPREAD)),
        )

    def _draw_kind(self, row: Row) -> str:
        """A program that the user has run before and that takes about as long, or a new one."""
        random = self._random
        known = self._programs.setdefault((row.user, row.gpus), [])
        length = log(max(1.0, row.seconds))
        if known and random.random() < REPEATS:
            about = length + random.gauss(0.0, SPREAD)
            return min(known, key=lambda program: abs(program[0] - about))[1]
        kind = f"{row.user}/{row.gpus}/{len(known) + 1}"
        known.append((length, kind))
        return kind

    def _draw_nature(self, row: Row) -> _Nature:
        drawn: Model = self._named.get(row.kind) or self._random.choice(self._models)
        return _Nature(drawn.name, drawn.memory, drawn.load)
