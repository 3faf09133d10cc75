"""Diagnose a failed attempt by the end of its log: out of memory, or a fault of a shared GPU."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from stoker.core.device import Device
from stoker.core.job import Cause, Job, Placed, resources_of
from stoker.core.logs.oom import OutOfMemory, find_fault, find_oom, floor_after, is_own_fault
from stoker.core.spec import amount_on
from stoker.core.units import size_text
from stoker.sites.machine.ref import read_ref
from stoker.store.logs import read_tail


class Diagnosis(NamedTuple):
    """The cause of a failure, as far as its log tells."""

    cause: Cause = ""
    floor: int = 0
    """Bytes that it needs at least, if it used more than was reserved for it."""
    needs: int | None = None
    """Bytes that it had and asked for, if the log tells."""
    note: str = ""
    shared: bool = False


NOTHING = Diagnosis()


class AttemptUse(NamedTuple):
    """Measurements of an attempt while it ran."""

    peak: int | None = None
    processes: Collection[int] = ()
    shared: bool = False
    """Whether it shared its devices."""


def diagnose(job: Job, devices: Sequence[Device], seen: AttemptUse) -> Diagnosis:
    """Why an attempt that had these devices failed."""
    if not devices or not isinstance(job.state, Placed):
        return NOTHING
    text = read_tail(job.state.log, since=read_ref(job.state.ref).log_start)
    if oom := find_oom(text):
        foreign = any(pid not in seen.processes for pid, _ in oom.co_tenants)
        shared = seen.shared or foreign or (oom.capped and resources_of(job).shares)
        return _out_of_memory(oom, job, devices, seen.peak, shared=shared)
    if seen.shared and resources_of(job).mps is not None and (fault := find_fault(text)):
        return Diagnosis("fault", note=f"failed while sharing a GPU through MPS: {fault}", shared=True)
    return NOTHING


def _out_of_memory(
    oom: OutOfMemory, job: Job, devices: Sequence[Device], seen_peak: int | None, *, shared: bool
) -> Diagnosis:
    resources = resources_of(job)
    reserved = min((amount for device in devices if (amount := amount_on(resources, device)) is not None), default=None)
    if not shared:
        return Diagnosis("oom", 0, _needs(oom), f"{_why_exclusive(oom, devices)}: {oom.text}")
    if not is_own_fault(oom, reserved, seen_peak):
        return Diagnosis("oom", 0, None, f"out of GPU memory, taken by other processes on the GPU: {oom.text}", shared)
    floor = floor_after(oom, reserved, seen_peak)
    why = "exceeded its GPU memory cap" if oom.capped else "out of GPU memory while sharing"
    return Diagnosis("oom", floor, _needs(oom), f"{why}: {oom.text}", shared)


def _why_exclusive(oom: OutOfMemory, devices: Sequence[Device]) -> str:
    if oom.capped:
        return "exceeded the GPU memory limit set in its environment"
    total = max((device.memory or 0 for device in devices), default=0)
    return "needs more than a whole GPU" + (f" ({size_text(total)})" if total else "")


def _needs(oom: OutOfMemory) -> int | None:
    return None if oom.own is None else oom.own + (oom.wanted or 0)
