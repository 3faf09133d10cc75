"""Jobs of a trace, the models from which missing facts are drawn, and the course of the jobs in a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from random import Random

from msgspec import Struct
from msgspec.structs import replace


class TraceJob(Struct, frozen=True):
    """One job of a trace; None and empty if the trace does not say."""

    arrival: float
    """Seconds since any moment."""
    seconds: float
    """How long it runs alone on its GPUs."""
    gpus: int = 1
    user: str = ""
    memory: int | None = None
    """Bytes on each GPU at its peak."""
    load: int | None = None
    """Percent of each GPU that it keeps busy."""
    kind: str = ""
    """Jobs of one kind are runs of the same program."""
    devices: tuple[str, ...] = ()
    """The GPUs that it had."""
    session: bool = False
    """Whether a person waits for it, as with `stoker shell`."""


class Work(Struct, frozen=True):
    """One job with all facts, most of which no scheduler may use."""

    id: int
    arrival: float
    seconds: float
    gpus: int
    kind: str
    model: str
    """By which its speed beside others is looked up."""
    peak: int
    """Bytes on each GPU, alone."""
    load: int
    swell: float = 1.0
    """Its peak beside others as a share of that: allocators fragment, and algorithms depend on free memory."""
    session: bool = False


class Life(Struct):
    """The course of one job."""

    job: int
    arrival: float
    gpus: int
    seconds: float
    """How long it runs with its GPUs to itself."""
    start: float | None = None
    """When its first attempt started."""
    end: float | None = None
    shared_failures: int = 0
    """Attempts that ran out of memory."""
    preemptions: int = 0
    session: bool = False


class Stay(Struct, frozen=True):
    """The time that one attempt had one device."""

    device: str
    job: int
    start: float
    end: float


class ReplayOutcome(Struct, frozen=True):
    """The outcome of all jobs, and the use of the GPUs."""

    lives: Sequence[Life]
    stays: Sequence[Stay]
    gpus: int
    busy: float
    """GPU-seconds in which the GPU has a job."""
    shared: float
    """GPU-seconds in which the GPU has more than one job."""
    plans: int = 0
    """How often the planner ran."""


RIPE_SECONDS = 180.0
RIPE_SHARE = 0.1
YOUNG_SHARE = 0.3
"""A job takes its memory some time after its start; until then it has this part of it."""


def ripens_after(work: Work) -> float:
    """Seconds of its own progress after which a job has all its memory."""
    return min(RIPE_SECONDS, RIPE_SHARE * work.seconds)


def extract(rows: Sequence[TraceJob], first: int = 0, count: int | None = None) -> list[TraceJob]:
    """`count` jobs by their arrival, from number `first` on, with the first arrival as the beginning."""
    ordered = sorted(rows, key=lambda row: row.arrival)
    chosen = ordered[first:] if count is None else ordered[first : first + count]
    return [replace(row, arrival=row.arrival - chosen[0].arrival) for row in chosen]


def capped(rows: Sequence[TraceJob], seconds: float) -> list[TraceJob]:
    return [replace(row, seconds=min(row.seconds, seconds)) for row in rows]


def offered_load(rows: Sequence[TraceJob], gpus: int) -> float:
    """The work that arrives, as a share of what the GPUs can do in that time; infinity if all arrive at once."""
    span = max((row.arrival for row in rows), default=0.0)
    work = sum(row.seconds * row.gpus for row in rows)
    return work / (span * gpus) if span else float("inf")


def paced(rows: Sequence[TraceJob], gpus: int, share: float) -> list[TraceJob]:
    """The jobs, arriving faster or slower, so that the offered load is this share of the GPUs."""
    load = offered_load(rows, gpus)
    if load in (0.0, float("inf")):
        return list(rows)
    return [replace(row, arrival=row.arrival * load / share) for row in rows]


SESSION_SECONDS = 3600.0
DAY = 86400.0


def with_sessions(rows: Sequence[TraceJob], per_day: float, random: Random) -> list[TraceJob]:
    """The jobs, and sessions of a person on one GPU at random times until the last job arrives."""
    span = max((row.arrival for row in rows), default=0.0)
    arrivals = [random.uniform(0.0, span) for _ in range(round(per_day * span / DAY))]
    sessions = [TraceJob(arrival, SESSION_SECONDS, kind="session", session=True) for arrival in arrivals]
    return sorted([*rows, *sessions], key=lambda row: row.arrival)


GIB = 2**30


class Model(Struct, frozen=True):
    """One kind of work, alone on a GPU."""

    name: str
    memory: int
    """Bytes at the peak."""
    load: int
    """Percent of the GPU that it keeps busy."""


class Models(Struct, frozen=True):
    """A table to draw from, every row as likely as any other."""

    table: tuple[Model, ...]
    pairs: Mapping[tuple[str, str], float] = {}
    """How fast the first runs beside the second on one GPU, as a share of its own speed, if that was measured."""


def model(name: str, gigabytes: float, load: int) -> Model:
    return Model(name, int(gigabytes * 1e9), load)


MEASURED_PEAKS = (
    model("VGG16 (batch size 128)", 24.4, 95),
    model("BERT-base (batch size 32)", 20.8, 90),
    model("GPT2-large", 27.9, 97),
)
"""Large models, with the peaks that CARMA measured on cards of 40 GB; their loads are assumed."""

BUILT_IN = Models((
    model("ResNet-18 (batch size 32)", 1.5, 40),
    model("ResNet-18 (batch size 128)", 2.0, 60),
    model("ResNet-50 (batch size 32)", 5.0, 85),
    model("ResNet-50 (batch size 128)", 15.1, 97),
    model("Transformer (batch size 32)", 2.9, 55),
    model("Transformer (batch size 128)", 6.0, 80),
    model("LM (batch size 20)", 2.2, 60),
    model("Recommendation (batch size 1024)", 2.0, 30),
    model("A3C", 1.2, 15),
    model("CycleGAN", 8.6, 92),
    *MEASURED_PEAKS,
))  # fmt: skip
"""For replays without measured pairs: how fast these run together follows from their loads."""


class Family(Struct, frozen=True):
    """Models of one name that differ by their batch size."""

    fixed: float
    """Gigabytes that do not depend on the batch."""
    per_example: float
    """Gigabytes for each example of the batch."""
    loads: tuple[int, int]
    """Percent with the smallest batch and with the largest."""


FAMILIES = {
    "ResNet-18": Family(1.35, 0.005, (35, 75)),
    "ResNet-50": Family(1.6, 0.1055, (85, 98)),
    "Transformer": Family(1.9, 0.032, (45, 90)),
    "A3C": Family(1.2, 0.0, (15, 15)),
    "LM": Family(1.6, 0.032, (45, 75)),
    "Recommendation": Family(1.3, 0.0008, (20, 60)),
    "CycleGAN": Family(8.6, 0.0, (92, 92)),
}
"""The models of Gavel's measurements, which tell neither memory nor load: both are assumed from what such runs show."""


def family_model(name: str, batches: tuple[int, ...], batch: int) -> Model:
    """A model of a known family, with one of the batch sizes that it was measured with; 0 if it has none."""
    family = FAMILIES[name]
    rank = batches.index(batch) / max(1, len(batches) - 1)
    low, high = family.loads
    label = f"{name} (batch size {batch})" if batch else name
    return model(label, family.fixed + family.per_example * batch, round(low + (high - low) * rank))


REPEATS = 0.8
"""How likely a job is another run of a program that its user has run before on as many GPUs."""
SPREAD = 1.0
"""Spread of the logarithms of durations within a kind: estimates err by about this factor of e."""
PEAK_SPREAD = 0.02
LOAD_SPREAD = 3.0
SWELL_MEAN = 0.003
SWELL_SPREAD = 0.137
"""Of each job: a pair of equal ones then takes from -15 to +17 % of its sum (5th and 95th percentile), as measured."""


def draw(
    rows: Sequence[TraceJob],
    models: Models,
    largest: int,
    random: Random,
    *,
    repeats: float = REPEATS,
    spread: float = SPREAD,
) -> list[Work]:
    """The jobs with all that is missing, numbered by arrival; none needs more memory than the largest GPU has.

    `repeats` is the share of jobs that are further runs of a program, `spread` how far apart these run times lie.
    """
    return _Drawing(models, largest, random, repeats, spread).works(rows)


class _Drawing:
    """Draws missing facts; remembers the programs of every user."""

    def __init__(self, models: Models, largest: int, random: Random, repeats: float, spread: float) -> None:
        self._models = [model for model in models.table if model.memory <= largest] or list(models.table[:1])
        self._named = {model.name: model for model in models.table}
        self._largest = largest
        self._random = random
        self._repeats = repeats
        self._spread = spread
        self._programs: dict[tuple[str, int], list[tuple[float, str]]] = {}
        self._natures: dict[str, Model] = {}

    def works(self, rows: Sequence[TraceJob]) -> list[Work]:
        return [self._work(number, row) for number, row in enumerate(rows, 1)]

    def _work(self, number: int, row: TraceJob) -> Work:
        kind = row.kind or self._draw_kind(row)
        nature = self._natures.get(kind)
        if nature is None:
            nature = self._natures[kind] = self._named.get(row.kind) or self._random.choice(self._models)
        gauss = self._random.gauss
        peak = row.memory if row.memory is not None else int(nature.memory * (1 + gauss(0.0, PEAK_SPREAD)))
        load = row.load if row.load is not None else nature.load + gauss(0.0, LOAD_SPREAD)
        return Work(
            id=number,
            arrival=row.arrival,
            seconds=row.seconds,
            gpus=row.gpus,
            kind=kind,
            model=nature.name,
            peak=min(peak, self._largest),
            load=round(min(100.0, max(1.0, load))),
            swell=max(0.5, 1 + gauss(SWELL_MEAN, SWELL_SPREAD)),
            session=row.session,
        )

    def _draw_kind(self, row: TraceJob) -> str:
        """A program that the user has run before and that takes about as long, or a new one."""
        random = self._random
        programs = self._programs.setdefault((row.user, row.gpus), [])
        length = log(max(1.0, row.seconds))
        if programs and random.random() < self._repeats:
            about = length + random.gauss(0.0, self._spread)
            return min(programs, key=lambda program: abs(program[0] - about))[1]
        kind = f"{row.user}/{row.gpus}/{len(programs) + 1}"
        programs.append((length, kind))
        return kind
