"""Policy of the plan: every setting that affects it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

MIB = 2**20


class Policy(Struct, frozen=True):
    """The settings of a plan."""

    max_running: int | None = None
    max_use: int | None = None
    """Most GPUs in use at once by this user, in all engines together."""
    min_free: int = 0
    """Free GPUs that are left to others."""
    limits: Mapping[str, int] = {}
    """How many jobs may run at once, by name of a cap."""
    paused: str = ""
    """Why no job may start; empty when jobs may."""
    closed: Mapping[str, str] = {}
    """Ids of drained devices, each with a note."""
    order: Literal["fair", "age", "shortest"] = "fair"
    """The order within a priority: by waiting time relative to the expected work, by age, or by the sum of submission
    time and expected GPU-seconds."""
    overdue: float = 28 * 86400.0
    """Seconds; in the fair order a job that has waited this long goes before all others."""
    passing: Literal["freely", "reserved", "never"] = "reserved"
    """Which jobs may pass a blocked one: all, those that do not delay it, or none."""
    patience: float = 60.0
    """Seconds a blocked job lets jobs of unknown duration pass."""
    lenience: float = 86400.0
    """Seconds, per GPU it needs, that a blocked job lets jobs pass that will probably not delay it."""
    unknown: float = 1800.0
    """Assumed seconds of a job without limit and history."""
    ahead: float = 0.25
    """Seconds; where attempts take less than this on average, the next ones are prefetched."""
    newest_first: bool = False
    """Use the device freed last first, and among equals the last listed: simple_gpu_scheduler's order."""
    reserve: int = 512 * MIB
    """Bytes of each device that sharing jobs leave free; an exclusive job may use them."""
    margin: int = 15
    """Percent that is reserved on top of the largest learnt peak."""
    busy: int = 150
    """Percent: jobs do not share a device if their known loads together exceed this."""
    tolerance: int = 300 * MIB
    """Bytes that an idle device may show as used."""
    quarantine: float = 60.0
    """Seconds in which the driver is expected to free memory after a job of ours."""
    strangers: Literal["avoid", "count"] = "avoid"
    """Avoid devices with foreign processes, or count their memory as used."""
    mps_exclusive: bool = False
    """Whether a GPU is in exclusive compute mode while it has an MPS daemon."""
