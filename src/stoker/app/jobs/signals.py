"""Signals as users write them, and the signal before a time limit."""

from __future__ import annotations

import signal

from stoker.core.errors import UsageError
from stoker.core.spec import EarlySignal
from stoker.core.units import parse_duration

_EARLY_HINT = "write it as USR1@60: the signal, and the seconds before the time limit"


def parse_signal(text: str) -> int:
    """The number of `INT`, `SIGINT` or `2`."""
    name = text.strip().upper().removeprefix("SIG")
    known = {each.name.removeprefix("SIG"): each.value for each in signal.Signals}
    known |= {str(value): value for value in known.values()}
    if name not in known:
        raise UsageError(f"--signal: {text!r} is not a signal", "write it as INT, TERM, USR1 or a number")
    return known[name]


def parse_early_signal(text: str) -> EarlySignal:
    """Slurm's `[B:]SIGNAL[@SECONDS]`; a duration such as `5m` may replace the seconds."""
    scope, colon, rest = text.strip().rpartition(":")
    if scope.upper() not in ("", "B") or (colon and not scope):
        raise UsageError(f"--signal: {scope + colon!r} is not understood", f"{_EARLY_HINT}, or as B:USR1@60")
    name, at, before = rest.partition("@")
    number = parse_signal(name)
    if number in (signal.SIGKILL, signal.SIGSTOP):
        raise UsageError(f"--signal: no program can react to {name}", "use USR1 or TERM")
    try:
        seconds = parse_duration(f"{before}s" if before.strip().isdecimal() else before) if at else 60.0
    except UsageError:
        raise UsageError(f"--signal: {before!r} is not a time", _EARLY_HINT) from None
    return EarlySignal(number, seconds, command_only=bool(scope))


def early_signal_text(early: EarlySignal | None) -> str:
    """The signal as typed: `B:USR1@60`; empty for none."""
    return "" if early is None else f"{'B:' * early.command_only}{signal_name(early.number)}@{early.seconds:g}"


def signal_name(number: int) -> str:
    return signal.Signals(number).name.removeprefix("SIG")


def check_early_signal(early: EarlySignal | None, limit: float | None) -> None:
    """Refuse a signal that would come before the job."""
    if early is not None and limit is not None and early.seconds >= limit:
        raise UsageError(
            f"--signal {early_signal_text(early)}: the time limit of {limit:g}s is not longer than that",
            "give a longer -t, or a shorter time after the @",
        )
