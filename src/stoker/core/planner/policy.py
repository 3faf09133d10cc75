"""How the plan weighs things: everything about it that a user may set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

MIB = 2**20


class Policy(Struct, frozen=True):
    """How the plan weighs things; everything a user may set."""

    max_running: int | None = None
    max_use: int | None = None
    """GPUs that this user uses at most at once, in all engines together."""
    min_free: int = 0
    """GPUs that are left free for others, of those that are free."""
    limits: Mapping[str, int] = {}
    """How many jobs may run at once, by the name of a cap."""
    paused: str = ""
    """Why nothing shall start, in words; empty when it may."""
    closed: Mapping[str, str] = {}
    """Ids of devices that the user does not want used, each with a word on that."""
    order: Literal["age", "shortest"] = "age"
    """Who goes first within a priority: the oldest, or whose submission and expected GPU-seconds make the least sum."""
    passing: Literal["freely", "reserved", "never"] = "reserved"
    """Who may pass a job that cannot start: everybody, those that do not delay it, or nobody."""
    patience: float = 60.0
    """Seconds a blocked job lets others pass when nobody can tell how long they run."""
    lenience: float = 86400.0
    """Seconds, for each GPU it needs, that a blocked job lets others pass that will probably not delay it."""
    unknown: float = 1800.0
    """Seconds that a job is taken to run for where neither a limit nor experience tells."""
    ahead: float = 0.25
    """Seconds; where attempts take less than this on average, the next ones are handed over ahead."""
    newest_first: bool = False
    """Take the device freed last first, and among equals the last listed: simple_gpu_scheduler's order."""
    reserve: int = 512 * MIB
    """Bytes of each device that packing leaves alone; a job that is alone on its device may have them."""
    margin: int = 15
    """Percent by which more is set aside than the largest peak that was learnt."""
    busy: int = 120
    """Percent: jobs are not put together on a device that they would keep busier than this, as far as it is known."""
    tolerance: int = 300 * MIB
    """Bytes that an idle device may show as used."""
    quarantine: float = 60.0
    """Seconds for which memory without a process, after a job of ours, is expected to come back by itself."""
    strangers: Literal["avoid", "count"] = "avoid"
    """Keep off a device with unannounced processes, or count their memory as gone."""
    mps_exclusive: bool = False
    """Whether a GPU is in exclusive compute mode while it has an MPS daemon."""
