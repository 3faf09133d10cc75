"""What jobs of a trace might be training: models with their memory and load, and how fast pairs of them run."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

GIB = 2**30


class Model(Struct, frozen=True):
    """One kind of work, as it is with a GPU to itself."""

    name: str
    memory: int
    """Bytes at the peak."""
    load: int
    """Percent of the GPU that it keeps busy."""


class Models(Struct, frozen=True):
    """A table to draw from, every row as likely as any other."""

    table: tuple[Model, ...]
    pairs: Mapping[tuple[str, str], float] = {}
    """How fast the first runs beside the second on one GPU, as a share of its own speed, where that was measured."""


def model(name: str, gigabytes: float, load: int) -> Model:
    """A row of a table."""
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
"""For whoever has no measurements of pairs: how fast they run together follows from their loads."""


class Family(Struct, frozen=True):
    """Models of one name that differ by their batch size."""

    fixed: float
    """Gigabytes whatever the batch..."""
    each: float
    """... and for every example in it."""
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
    """A model of a known family, with one of the batch sizes that it was measured with; 0 where it has none."""
    family = FAMILIES[name]
    rank = batches.index(batch) / max(1, len(batches) - 1)
    low, high = family.loads
    label = f"{name} (batch size {batch})" if batch else name
    return model(label, family.fixed + family.each * batch, round(low + (high - low) * rank))
