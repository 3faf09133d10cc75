"""Settings of the engine (every key, its values and its default) and the policy of the plan."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from stoker.core.errors import UsageError
from stoker.core.places import SYSTEM_FILE
from stoker.core.planner.queue import CPU_JOBS
from stoker.core.planner.reasons import OutOfResources, WeekUsed
from stoker.core.spec import Resources
from stoker.core.text import PATTERNS
from stoker.core.units import parse_duration, parse_size

MIB = 2**20


class LockedLimits(Struct, frozen=True, omit_defaults=True):
    """The limits of one user that the administrator set in `[locked]`; None is no limit."""

    gpus: int | None = None
    """GPUs at once, in all engines together."""
    gpu_hours: int | None = None
    """In a week, which begins on Monday."""
    longest: float | None = None
    """Seconds of a job."""
    waiting: int | None = None
    """Waiting jobs."""
    booked: int | None = None
    """GPU-hours booked ahead."""

    @staticmethod
    def named(key: str) -> str:
        """A limit as errors and reasons name it."""
        return f"the rule {key} of {SYSTEM_FILE}"


class PlanSettings(Struct, frozen=True):
    """Settings of the plan that users choose."""

    strangers: Literal["avoid", "count"] = "avoid"
    """Avoid devices with foreign processes, or count their memory as used."""
    reserve: int = 512 * MIB
    """Bytes of each device that sharing jobs leave free; an exclusive job may use them."""
    margin: int = 15
    """Percent that is reserved on top of the largest learnt peak."""
    busy: int = 170
    """Percent: jobs do not share a device if their known loads together exceed this."""
    tolerance: int = 300 * MIB
    """Bytes that an idle device may show as used."""
    order: Literal["fair", "age", "shortest"] = "fair"
    """The order within a priority: by waiting time relative to the expected work, by age, or by expected work."""
    patience: float = 60.0
    """Seconds a blocked job lets jobs of unknown duration pass."""
    quarantine: float = 60.0
    """Seconds in which the driver is expected to free memory after a job of ours."""
    min_free: int = 0
    """Free GPUs that are left to others."""
    max_use: int | None = None
    """Most GPUs in use at once by this user, in all engines together; None is all."""
    mps_exclusive: bool = False
    """Whether a GPU is in exclusive compute mode while it has an MPS daemon, if that is permitted."""


class Policy(PlanSettings, frozen=True):
    """All that a plan depends on besides jobs and devices."""

    locked: LockedLimits = LockedLimits()
    week_used: WeekUsed | None = None
    """Why no job with GPUs may start until next week."""
    max_running: int | None = None
    limits: Mapping[str, int] = {}
    """How many jobs may run at once, by name of a cap."""
    paused: str = ""
    """Why no job may start; empty when jobs may."""
    out_of_resources: OutOfResources | None = None
    """Why no job can be started; None if jobs can."""
    probe: bool = False
    """Whether one job may be started in spite of `out_of_resources`, to see whether the machine has recovered."""
    closed: Mapping[str, str] = {}
    """Ids of drained devices, each with a note."""
    passing: Literal["freely", "reserved", "never"] = "reserved"
    """Which jobs may pass a blocked one: all, those that do not delay it, or none."""
    lenience: float = 86400.0
    """Seconds, per GPU it needs, that a blocked job lets jobs pass that will probably not delay it."""
    overdue: float = 28 * 86400.0
    """Seconds; in the fair order a job that has waited this long goes before all others."""
    unknown: float = 1800.0
    """Assumed seconds of a job without limit and history."""
    ahead: float = 0.25
    """Seconds; if attempts take less than this on average, the next ones are prefetched."""
    short: float = 600.0
    """Seconds; jobs with a time limit up to this are the first to which running jobs give way."""
    newest_first: bool = False
    """Use the device freed last first, and among equals the last listed: simple_gpu_scheduler's order."""


class EngineSettings(PlanSettings, frozen=True):
    """The settings of a user's engine, for jobs of all projects."""

    devices: str = ""
    """The pool; empty is all devices of the machine."""
    idle_exit: float | None = 600.0
    """Seconds without work after which the engine exits; None is never."""
    keep: float | None = 90 * 86400.0
    """Seconds for which ended jobs stay in the history; None is for ever."""
    code_limit: int | None = 10 * 2**30
    """Bytes that snapshots of code may take, as far as no queued job needs them; None is no limit."""
    cpu_jobs: int | None = None
    """Jobs without GPU that run at once; None is one per core."""
    on_finish: str = ""
    """Command that runs whenever a job ends; empty is none."""
    secrets: tuple[str, ...] = PATTERNS
    """Name patterns of variables whose values are never shown."""
    locked: LockedLimits = LockedLimits()
    """The limits that the user cannot change."""
    groups: Mapping[str, int] = {}
    """How many jobs of a group may run at once."""
    share: Literal["nothing", "numbers", "names"] = "numbers"
    """How much other users of the machine may see of jobs and usage, besides the leases."""


class ClusterSettings(Struct, frozen=True):
    """One `[cluster.NAME]` table: where jobs of a cluster go, and how."""

    kind: Literal["slurm"] = "slurm"
    shared: str = "~/.stoker-shared"
    """Directory that this machine and all nodes see; absolute once the configuration is read."""
    partition: str = ""
    """Slurm's default if empty, as for account and qos."""
    account: str = ""
    qos: str = ""
    options: tuple[str, ...] = ()
    """More words for sbatch, for example --constraint=a100."""
    pilots: Literal["auto", "never", "always"] = "auto"
    """Whether jobs run inside pilots: jobs that share or are short, none, or all."""
    pilot_time: float = 4 * 3600.0
    """Seconds: the time limit of a pilot."""
    pilot_idle: float = 20.0
    """Seconds without work after which a pilot leaves."""
    pilots_max: int = 8
    """Most pilots at once, running or pending."""
    poll: float = 30.0
    """Seconds between two calls of squeue."""
    queued_max: int = 1000
    """Most jobs that wait in Slurm at once; the others wait in Stoker's queue."""
    python: str = ""
    """Interpreter with stoker on the nodes; empty is the one of this machine."""
    private: bool = False
    """Whether `stoker cluster make` made it: a Slurm of this user alone."""
    conf: str = ""
    """Path of slurm.conf; empty is where the installed Slurm looks."""
    prefix: str = ""
    """Directory into which Slurm's packages were unpacked; empty is an installed Slurm."""
    ssh: tuple[str, ...] = ("ssh",)
    """Command that reaches the servers of a private cluster."""


LOCAL = "local"
"""The name that means this machine; no cluster can have it."""


def beyond_rules(resources: Resources, limits: LockedLimits) -> str:
    """Why a job can never start by the rules of the administrator; empty if it can."""
    if limits.gpus is None or resources.gpus <= limits.gpus:
        return ""
    return f"needs {resources.gpus} GPUs; {limits.named('gpus')} allows {limits.gpus} per user"


def policy_of(settings: EngineSettings, cores: int) -> Policy:
    """The policy of the plan on a machine with this many cores."""
    groups = {f"group {name}": limit for name, limit in settings.groups.items()}
    chosen = {name: getattr(settings, name) for name in PlanSettings.__struct_fields__}
    return Policy(**chosen, locked=settings.locked, limits={**groups, CPU_JOBS.name: settings.cpu_jobs or cores})


class SettingKey(Struct, frozen=True):
    """How one setting is read."""

    built_in: object
    """The default, as a user would write it."""
    expected: str
    example: object
    read: Callable[[Any], Any]
    """Convert a value from a file or variable; raises ValueError, TypeError or UsageError."""


def read_setting(name: str, raw: object, place: str, keys: Mapping[str, SettingKey] | None = None) -> Any:
    """The value of a setting of the engine, or of another table of keys; `place` names its source in an error."""
    key = (keys or KEYS)[name]
    try:
        return key.read(raw)
    except (ValueError, TypeError, UsageError):
        hint = f"for example {setting_text(key.example)}"
        raise UsageError(f"{place} is {setting_text(raw)!r}, not {key.expected}", hint) from None


def setting_text(raw: object) -> str:
    """A value from a file as a user would write it in a variable."""
    if isinstance(raw, list | tuple):
        return ",".join(map(setting_text, raw))
    if isinstance(raw, Mapping):
        return ",".join(f"{name}={setting_text(value)}" for name, value in raw.items())
    return str(raw).lower() if isinstance(raw, bool) else str(raw)


def _text(raw: object) -> str:
    if not isinstance(raw, str) or "\0" in raw:
        raise TypeError(raw)
    return raw


def _one_of(*words: str) -> Callable[[object], str]:
    def read(raw: object) -> str:
        if raw not in words:
            raise ValueError(raw)
        return str(raw)

    return read


def _size(raw: object) -> int:
    return parse_size(str(raw) if _is_whole(raw) else _text(raw))


def _duration(raw: object) -> float:
    """Text with a unit: a bare number is minutes in some options and seconds in others."""
    text = _text(raw).strip()
    if text.isdecimal():
        raise ValueError(text)
    return parse_duration(text)


def _duration_or_nothing(raw: object) -> float:
    return 0.0 if raw in ("0", "0s") or (_is_whole(raw) and raw == 0) else _duration(raw)


def _unless(word: str, read: Callable[[object], Any]) -> Callable[[object], Any]:
    """Read None for a word that means no limit."""
    return lambda raw: None if raw == word else read(raw)


def _whole(least: int, most: int = 999_999_999, unit: str = "") -> Callable[[object], int]:
    def read(raw: object) -> int:
        text = (str(raw) if _is_whole(raw) else _text(raw)).strip().removesuffix(unit)
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not least <= int(text) <= most:
            raise ValueError(raw)
        return int(text)

    return read


def _patterns(raw: object) -> tuple[str, ...]:
    words = [word.strip() for word in raw.split(",")] if isinstance(raw, str) else raw
    if not isinstance(words, list | tuple) or not all(_text(word) for word in words):
        raise TypeError(raw)
    return tuple(words)


def _words(raw: object) -> tuple[str, ...]:
    """A list of words, or one text that is split as a shell does."""
    words = shlex.split(raw) if isinstance(raw, str) else raw
    if not isinstance(words, list | tuple) or not all(_text(word) for word in words):
        raise TypeError(raw)
    return tuple(words)


def _command(raw: object) -> tuple[str, ...]:
    if not (words := _words(raw)):
        raise ValueError(raw)
    return words


def _path(raw: object) -> str:
    text = _text(raw)
    if not text.startswith(("/", "~/")):
        raise ValueError(raw)
    return text


def _unless_empty(read: Callable[[object], str]) -> Callable[[object], str]:
    return lambda raw: "" if raw == "" else read(raw)


def _word(raw: object) -> str:
    """One word that Slurm takes as a name: empty, or without blanks."""
    text = _text(raw)
    if re.search(r"\s", text) or text.startswith("-"):
        raise ValueError(raw)
    return text


def _limits(raw: object) -> dict[str, int]:
    """A table of groups, or `big=2,eval=4`."""
    if isinstance(raw, str):
        pairs = [word.partition("=")[::2] for word in raw.split(",")]
        raw = {name.strip(): limit for name, limit in pairs}
    if not isinstance(raw, Mapping) or not all(raw):
        raise TypeError(raw)
    return {_text(name): _whole(1)(limit) for name, limit in raw.items()}


def _flag(raw: object) -> bool:
    if raw not in (True, False, "true", "false") or _is_whole(raw):
        raise ValueError(raw)
    return raw in (True, "true")


def _is_whole(raw: object) -> bool:
    return isinstance(raw, int) and not isinstance(raw, bool)


KEYS: Mapping[str, SettingKey] = {
    "devices": SettingKey("", "a list of devices", "0,1", _text),
    "strangers": SettingKey("avoid", "avoid or count", "count", _one_of("avoid", "count")),
    "reserve": SettingKey("512M", "a size", "512M", _size),
    "margin": SettingKey("15%", "a percentage", "20%", _whole(0, 1000, "%")),
    "busy": SettingKey("170%", "a load in percent", "120%", _whole(0, 10_000, "%")),
    "tolerance": SettingKey("300M", "a size", "300M", _size),
    "order": SettingKey("fair", "fair, age or shortest", "age", _one_of("fair", "age", "shortest")),
    "patience": SettingKey("60s", "a duration with a unit", "60s", _duration_or_nothing),
    "quarantine": SettingKey("60s", "a duration with a unit", "60s", _duration_or_nothing),
    "min_free": SettingKey(0, "a number of GPUs", 1, _whole(0)),
    "max_use": SettingKey("none", "a number of GPUs or none", 2, _unless("none", _whole(0))),
    "idle_exit": SettingKey("10m", "a duration with a unit or never", "10m", _unless("never", _duration_or_nothing)),
    "keep": SettingKey("90d", "a duration with a unit or forever", "90d", _unless("forever", _duration)),
    "code_limit": SettingKey("10G", "a size or none", "20G", _unless("none", _size)),
    "cpu_jobs": SettingKey("cores", "a number of jobs or cores", 8, _unless("cores", _whole(1))),
    "on_finish": SettingKey("", "a command", "notify-send $STOKER_JOB_ID", _text),
    "secrets": SettingKey(PATTERNS, "a list of patterns", ["*TOKEN*", "*SECRET*"], _patterns),
    "groups": SettingKey({}, "a table of groups, each with a limit of 1 or more", {"big": 2}, _limits),
    "share": SettingKey("numbers", "nothing, numbers or names", "names", _one_of("nothing", "numbers", "names")),
    "mps_exclusive": SettingKey(False, "true or false", True, _flag),
}

_LIMIT = _unless("none", _whole(0))
LOCKED_KEYS: Mapping[str, SettingKey] = {
    "gpus": SettingKey("none", "a number of GPUs or none", 4, _LIMIT),
    "gpu_hours": SettingKey("none", "a number of GPU-hours or none", 200, _LIMIT),
    "longest": SettingKey("none", "a duration with a unit or none", "2d", _unless("none", _duration)),
    "waiting": SettingKey("none", "a number of jobs or none", 500, _LIMIT),
    "booked": SettingKey("none", "a number of GPU-hours or none", 96, _LIMIT),
    "coordinators": SettingKey("", "the name of a Unix group", "gpu-admins", _word),
}
"""Every key of the table `[locked]`, which counts only in the file of the system."""

PILOTS = ("auto", "never", "always")

CLUSTER_KEYS: Mapping[str, SettingKey] = {
    "kind": SettingKey("slurm", "slurm", "slurm", _one_of("slurm")),
    "shared": SettingKey("~/.stoker-shared", "a path that begins with / or ~/", "~/.stoker-shared", _path),
    "partition": SettingKey("", "the name of a partition", "gpu", _word),
    "account": SettingKey("", "the name of an account", "lab", _word),
    "qos": SettingKey("", "the name of a QOS", "normal", _word),
    "options": SettingKey((), "a list of options for sbatch", ["--constraint=a100"], _words),
    "pilots": SettingKey("auto", "auto, never or always", "never", _one_of(*PILOTS)),
    "pilot_time": SettingKey("4h", "a duration with a unit", "4h", _duration),
    "pilot_idle": SettingKey("20s", "a duration with a unit", "20s", _duration),
    "pilots_max": SettingKey(8, "a number of pilots of 1 or more", 8, _whole(1)),
    "poll": SettingKey("30s", "a duration with a unit", "30s", _duration),
    "queued_max": SettingKey(1000, "a number of jobs of 1 or more", 1000, _whole(1)),
    "python": SettingKey("", "the path of a Python interpreter", "~/venv/bin/python", _unless_empty(_path)),
    "private": SettingKey(False, "true or false", True, _flag),
    "conf": SettingKey("", "a path that begins with / or ~/", "/etc/slurm/slurm.conf", _unless_empty(_path)),
    "prefix": SettingKey("", "a path that begins with / or ~/", "~/.stoker-shared/slurm", _unless_empty(_path)),
    "ssh": SettingKey(("ssh",), "a command", ["ssh", "-F", "~/.ssh/lab"], _command),
}
"""Every key of a `[cluster.NAME]` table."""
