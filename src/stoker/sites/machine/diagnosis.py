"""What an attempt died of, by the end of its log, where company on its GPU may have to do with it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from stoker.core.device import Device
from stoker.core.job import Cause, Job, Placed, need_of
from stoker.core.logs.oom import Shortage, find_fault, find_shortage, floor_after, is_own_fault
from stoker.core.spec import amount_on
from stoker.core.units import size_text
from stoker.store.logs import read_tail


class Findings(NamedTuple):
    """What is to be told of an end beside its code."""

    cause: Cause = ""
    floor: int = 0
    """Bytes that it needs at least, where it took more than was set aside for it."""
    needs: int | None = None
    """Bytes that it had and wanted, where the log tells."""
    note: str = ""
    company: bool = False


NOTHING = Findings()


class Seen(NamedTuple):
    """What was seen of an attempt while it ran."""

    peak: int | None = None
    processes: Collection[int] = ()
    company: bool = False
    """Whether it shared its devices."""


def examine(job: Job, devices: Sequence[Device], seen: Seen) -> Findings:
    """Why an attempt that had these devices failed."""
    if not devices or not isinstance(job.state, Placed):
        return NOTHING
    text = read_tail(job.state.log, since=job.state.log_start)
    if shortage := find_shortage(text):
        strangers = any(pid not in seen.processes for pid, _ in shortage.neighbours)
        shared = seen.company or strangers or (shortage.capped and need_of(job).shares)
        return _short(shortage, job, devices, seen.peak, company=shared)
    if seen.company and need_of(job).mps is not None and (fault := find_fault(text)):
        return Findings("fault", note=f"failed beside other clients of MPS: {fault}", company=True)
    return NOTHING


def _short(
    shortage: Shortage, job: Job, devices: Sequence[Device], seen_peak: int | None, *, company: bool
) -> Findings:
    need = need_of(job)
    reserved = min((amount for device in devices if (amount := amount_on(need, device)) is not None), default=None)
    if not company:
        return Findings("oom", 0, _needs(shortage), f"{_why_alone(shortage, devices)}: {shortage.text}")
    if not is_own_fault(shortage, reserved, seen_peak):
        return Findings("oom", 0, None, f"out of GPU memory, which others on the GPU had: {shortage.text}", company)
    floor = floor_after(shortage, reserved, seen_peak)
    why = "wanted more GPU memory than it may have" if shortage.capped else "out of GPU memory beside others"
    return Findings("oom", floor, _needs(shortage), f"{why}: {shortage.text}", company)


def _why_alone(shortage: Shortage, devices: Sequence[Device]) -> str:
    if shortage.capped:
        return "ran into a limit on its GPU memory that it was started with"
    total = max((device.memory or 0 for device in devices), default=0)
    return "does not fit on a GPU of its own" + (f" ({size_text(total)})" if total else "")


def _needs(shortage: Shortage) -> int | None:
    return None if shortage.own is None else shortage.own + (shortage.wanted or 0)
