"""What a job is asked to be: its command, what it needs, and the conditions it runs under."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stoker.core.dependency import Dependency
from stoker.core.device import Device

Role = Literal["job", "hook"]


class Need(Struct, frozen=True):
    """What a job asks for. Jobs with equal needs are interchangeable to the plan."""

    gpus: int = 1
    memory: int | None = None
    """Bytes on each GPU, which may then be shared; None is the whole card, alone, unless they are learnt."""
    allowed: tuple[str, ...] = ()
    """Device ids; empty is any."""
    preferred: tuple[str, ...] = ()
    model: str = ""
    """A part of the name that the GPU must have, in small letters."""
    required: tuple[str, ...] = ()
    """Device ids that must be among them, whatever the others are."""
    auto: bool = False
    """Whether the bytes are learnt from earlier runs."""
    mps: int | None = None
    """Percent of a GPU's threads that it may use as a client of MPS; None is no client."""
    predicted: tuple[tuple[str, int], ...] = ()
    """Bytes that were learnt, by the model of the GPU; where there are none, the first run is alone and measured."""
    loads: tuple[tuple[str, int], ...] = ()
    """Percent of a GPU that it keeps busy, likewise."""
    floor: int = 0
    """Bytes that it needs at least, as an attempt showed, whatever was declared or learnt."""

    @property
    def shares(self) -> bool:
        """Whether it suffers company."""
        return self.memory is not None or self.auto


def amount_on(need: Need, device: Device) -> int | None:
    """The bytes that are set aside for a need on a device; None is all of it."""
    if device.memory is None:
        return None
    amount = dict(need.predicted).get(device.model) if need.auto else need.memory
    if amount is None:
        return None
    amount = max(amount, need.floor)
    return None if amount > device.memory else amount


def load_on(need: Need, device: Device) -> int:
    """The percent of a device that a need keeps busy, as far as that was learnt."""
    return dict(need.loads).get(device.model, 0) if need.loads else 0


class Terms(Struct, frozen=True):
    """The conditions a job runs under; most jobs of a batch have the same ones and share this object."""

    need: Need = Need()
    priority: int = 0
    cwd: str = "/"
    environment: str = ""
    """Digest of the environment kept in the store."""
    extra_env: tuple[tuple[str, str], ...] = ()
    umask: int = 0o022
    limit: float | None = None
    """Seconds of running time."""
    grace: float = 30.0
    """Seconds between TERM and KILL."""
    retries: int = 0
    requeue: bool = True
    """Whether a lost attempt may be run again."""
    out: str = ""
    """Path pattern of standard output; "-" is the caller's own, empty the log file of the attempt."""
    err: str = ""
    """Path pattern of standard error; empty follows standard output."""
    group: str = ""
    """Jobs of a group share a limit on how many run at once, where one is configured."""
    begin: float | None = None
    """The moment before which it does not start."""
    after: tuple[Dependency, ...] = ()
    retry_on: tuple[str, ...] = ()
    """Results and exit codes that a retry may mend; empty is any failure."""
    at_once: int | None = None
    """How many tasks of its array may run at once."""
    tags: tuple[tuple[str, str], ...] = ()
    commit: str = ""
    """The commit that was checked out in its directory at submit, with a `*` where files differed from it."""
    fill: bool = False
    """Whether {i}, {id}, {gpu} and {name} in the command stand for what they name."""
    cap: bool = False
    """Whether PyTorch is told to take no more of a GPU than is set aside for the job."""
    mps_optional: bool = False
    """Whether it may run without MPS where there is none."""
    role: Role = "job"
    """A hook is run on behalf of a job that ended, and is not shown among the jobs."""


class Command(Struct, frozen=True):
    """Words to execute, or one line for a shell."""

    words: tuple[str, ...]
    shell: str = ""
    """The shell that reads the single word; empty executes the words as they are."""

    @property
    def text(self) -> str:
        """The command as a person would type it."""
        if self.shell:
            return self.words[0]
        import shlex

        return shlex.join(self.words)
