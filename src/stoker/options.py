"""What a user asks for a job, in the same words on the command line and in job files, and the terms it becomes."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from stoker.core.errors import UsageError
from stoker.core.terms import Need, Terms
from stoker.core.units import parse_duration, parse_size


class JobOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Options as typed; None means not given, so that a job's own wish can go before that of its batch."""

    gpus: int | None = None
    vram: str | None = None
    on: str | None = None
    prefer: str | None = None
    priority: int | None = None
    time: str | None = None
    grace: str | None = None
    retries: int | None = None
    chdir: str | None = None
    env: dict[str, str] = {}
    out: str | None = None
    err: str | None = None
    name: str | None = None


class Surroundings(Struct, frozen=True):
    """Where a job was submitted from, and how device names are understood there."""

    cwd: str
    umask: int
    environment: str
    """Digest of the submitter's environment."""
    default_out: str
    resolve: Callable[[str], str]
    """From a device's label to its id."""


def merged(base: JobOptions, own: JobOptions) -> JobOptions:
    """The options of a batch with those that one of its jobs has of its own."""
    given = {name: getattr(own, name) for name in own.__struct_fields__ if getattr(own, name) is not None}
    return msgspec.structs.replace(base, **{**given, "env": {**base.env, **own.env}})


def terms_of(options: JobOptions, around: Surroundings) -> Terms:
    """The terms of a job, with every value checked."""
    cwd = os.path.normpath(os.path.join(around.cwd, options.chdir or ""))
    return Terms(
        need=need_of(options, around.resolve),
        priority=options.priority or 0,
        cwd=cwd,
        environment=around.environment,
        extra_env=tuple(sorted(_checked_env(options.env).items())),
        umask=around.umask,
        limit=None if options.time is None else parse_duration(options.time),
        grace=30.0 if options.grace is None else parse_grace(options.grace),
        retries=_at_least_zero(options.retries or 0, "--retries"),
        out=_output(options.out, cwd) or around.default_out,
        err=_output(options.err, cwd),
    )


def need_of(options: JobOptions, resolve: Callable[[str], str]) -> Need:
    """What the job needs of the machine."""
    return Need(
        gpus=_at_least_zero(1 if options.gpus is None else options.gpus, "-G"),
        memory=None if options.vram in (None, "all") else _memory(options.vram),
        allowed=_device_ids(options.on, "--on", resolve),
        preferred=_device_ids(options.prefer, "--prefer", resolve),
    )


def parse_grace(text: str) -> float:
    """Seconds between TERM and KILL; unlike a time limit it may be nothing at all."""
    return 0.0 if text.strip() in ("0", "0s") else parse_duration(text)


def parse_assignment(text: str) -> tuple[str, str]:
    """Name and value of K=V."""
    name, equals, value = text.partition("=")
    if not equals or not name or "\0" in text:
        raise UsageError(f"--env {text!r} is not of the form NAME=VALUE", "write it as --env SEED=1")
    return name, value


def current_user() -> str:
    """The user's name, or number where the system has no name for it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def current_umask() -> int:
    """The umask of this process, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _memory(text: str | None) -> int:
    if text == "auto":
        raise UsageError("--vram auto is not known yet", "give a size such as --vram 6G, or leave it out")
    size = parse_size(text or "")
    if size <= 0:
        raise UsageError("--vram must be more than nothing", "write it as --vram 6G")
    return size


def _device_ids(text: str | None, option: str, resolve: Callable[[str], str]) -> tuple[str, ...]:
    if text is None:
        return ()
    ids = [resolve(word) for word in text.split(",")]
    if len(set(ids)) < len(ids):
        raise UsageError(f"{option} {text} names a device twice", "name each device once")
    return tuple(ids)


def _checked_env(env: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"{name!r} cannot be the name of a variable", "write it as --env SEED=1")
    return env


def _at_least_zero(number: int, option: str) -> int:
    if number < 0:
        raise UsageError(f"{option} {number} is less than nothing", f"give {option} 0 or more")
    return number


def _output(pattern: str | None, cwd: str) -> str:
    """A path pattern made absolute; "-" stays the caller's own output."""
    if not pattern or pattern == "-":
        return pattern or ""
    return os.path.join(cwd, os.path.expanduser(pattern))
