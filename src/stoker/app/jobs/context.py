"""The place of a submit, as far as jobs depend on it: directory, umask, environment, devices, earlier jobs."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from stoker.core.errors import UsageError
from stoker.core.spec import Dependency, JobSpec


def _no_earlier_jobs(text: str) -> tuple[Dependency, ...]:
    raise UsageError(f"--after {text} cannot be used here", "submit the job with stoker submit")


class SubmitContext(Struct, frozen=True):
    """Facts that a spec takes from the place of submit rather than from options."""

    cwd: str
    umask: int
    environment: str
    """Digest of the submitter's environment."""
    default_out: str
    resolve: Callable[[str], str]
    """From a device's label to its id."""
    array_out: str = ""
    """The log of a task of an array; empty for `default_out`."""
    earlier: Callable[[str], tuple[Dependency, ...]] = _no_earlier_jobs
    """From ids as typed to dependencies."""
    commit: Callable[[str], str] = lambda _: ""
    """From a directory to the commit checked out there."""
    now: float = 0.0
    terminal: str = ""
    """The terminal of an interactive session, which is never run twice."""
    fill: bool = False
    """Whether placeholders in commands are filled."""
    parent: str = ""
    """The worker of the job that this process runs in, for a run that uses the GPUs of that job."""
    shared_out: Callable[[str], tuple[str, str]] = lambda _: ("", "")
    """`default_out` and `array_out` for a cluster, whose nodes do not see the others; empty for the same."""
    slurm: bool = False
    """Whether the jobs are a script with #SBATCH lines."""
    place_of_model: Callable[[str], str] = lambda _: ""
    """From a GPU model to the line of a script that asks for it; empty if none does."""


def context_here(**more: Any) -> SubmitContext:
    """The context of jobs that this process submits; `more` are the fields that depend on the front end."""
    return SubmitContext(**{"cwd": working_directory(), "umask": current_umask(), "now": time.time(), **more})


def context_of(spec: JobSpec, **more: Any) -> SubmitContext:
    """The context of a job that was submitted before, whose options are changed now."""
    own = {"cwd": spec.cwd, "umask": spec.umask, "environment": spec.environment, "now": time.time()}
    return SubmitContext(**{**own, **more})


def working_directory() -> str:
    """The current directory, which may have been removed."""
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(f"the current directory cannot be used: {error.strerror}", "cd to another one") from error


def check_directory(path: str) -> None:
    """Refuse a directory that no job could enter."""
    try:
        os.stat(os.path.join(path, "."))  # the dot needs the permission to enter it
    except OSError as error:
        raise UsageError(f"cannot enter {path}: {error.strerror}", "give another directory with -D") from error


def current_user() -> str:
    from stoker.devices.interface import user_name  # a submit needs nothing of devices

    return user_name(os.getuid())


def current_umask() -> int:
    """The umask of this process; on kernels before 4.7 it is set for a moment, which other threads may notice."""
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/status", "rb") as status:
        return int(status.read().partition(b"\nUmask:")[2].split()[0], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def find_program(name: str, path: str | None = None) -> str | None:
    """A program as a shell finds it, by default on our PATH: as shutil.which, whose import loads all compressors."""
    directories = (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep)
    places = (name,) if "/" in name else (os.path.join(directory, name) for directory in directories)
    return next((place for place in places if os.access(place, os.X_OK) and not os.path.isdir(place)), None)
