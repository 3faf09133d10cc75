"""The table of faults: each has a name, the promise that it tests, and a function that does it to a queue on trial."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from support import optional
from support.slurm import missing_slurm
from support.storm.background import QueueStorm
from support.wait import PATIENCE_SECONDS

FAKETIME = "libfaketime.so.1"

Injection = Callable[[QueueStorm], None]


@dataclass(frozen=True)
class Fault:
    """A row of the table."""

    name: str
    promise: str
    inject: Injection
    """Feeds the queue, does the harm and ends it again; what is left to do is `finish`."""
    needs: tuple[str, ...] = ()
    """Names of what the machine must have: see `missing`."""
    devices: str = "any"
    """`any` is declared or simulated devices by chance; else `declared`, `simulated` or `nvml`."""
    losses_known: bool = True
    """Whether every lost attempt must be one whose worker the trial killed itself."""
    noisy: bool = False
    """Whether an engine may write errors into its log."""
    timed: bool = True
    """Whether the clock of the engine is that of the jobs."""
    usual: bool = True
    """Whether a campaign draws it; else it runs only by its name."""


TABLE: dict[str, Fault] = {}


def fault(
    name: str,
    promise: str,
    *,
    needs: tuple[str, ...] = (),
    devices: str = "any",
    losses_known: bool = True,
    noisy: bool = False,
    timed: bool = True,
    usual: bool = True,
) -> Callable[[Injection], Injection]:
    """Put a function into the table."""

    def add(inject: Injection) -> Injection:
        TABLE[name] = Fault(name, promise, inject, needs, devices, losses_known, noisy, timed, usual)
        return inject

    return add


def missing(one: Fault) -> str:
    """Why this machine cannot have the fault; empty where it can."""
    return ", ".join(why for need in one.needs if (why := _NEEDS[need]()))


def faketime_library() -> Path | None:
    """Debian's libfaketime."""
    return next(Path("/usr/lib").glob(f"*/faketime/{FAKETIME}"), None)


@functools.cache
def _no_strace() -> str:
    if why := optional.missing("strace"):
        return why
    run = subprocess.run(
        ["strace", "-D", "-qq", "-o", "/dev/null", "true"], check=False, capture_output=True, timeout=PATIENCE_SECONDS
    )
    return "" if run.returncode == 0 else f"strace may not trace here: {run.stderr.decode().strip()}"


_NEEDS: Mapping[str, Callable[[], str]] = {
    "root": lambda: "" if os.geteuid() == 0 else "only root can do it",
    "strace": _no_strace,
    "faketime": lambda: "" if faketime_library() else "libfaketime is missing",
    "slurm": missing_slurm,
    "cc": lambda: optional.missing("cc"),
}
