"""A scheduler inside a job uses the GPUs of that job: its devices, and a ledger of the job's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from stoker.core.device import Device, Process, Reading, Snapshot
from stoker.core.parent import VARIABLE, ParentAllocation, ParentGpu, part_of, part_of_reading, read_parent
from stoker.core.settings import EngineSettings
from stoker.devices.detect import DeclaredDevices, declare, found_by_driver
from stoker.devices.interface import Devices, ancestors, has_open, process_file
from stoker.devices.simulated import SimulatedDevices
from stoker.ledger import find_ledger, prepare_ledger
from stoker.store.paths import Paths

_ONLY_A_NAME = "name:"
"""Beginning of the ledger names that no driver knows."""


class Parent:
    """The job that this process runs in."""

    def __init__(self, allocation: ParentAllocation, worker: int, environment: Mapping[str, str]) -> None:
        """`worker` is the process of the job's worker."""
        self.allocation = allocation
        self._worker = worker
        self._environment = environment

    @property
    def worker(self) -> str:
        """The name of the job's worker."""
        return Path(self.allocation.folder).name

    @property
    def ledger(self) -> Path:
        """The ledger of all engines inside the job. It goes with the worker's folder."""
        return prepare_ledger(self.file("ledger"))

    @property
    def visible(self) -> str:
        """CUDA_VISIBLE_DEVICES with all GPUs of the job, so that they are counted from 0 in their order."""
        return ",".join(gpu.visible for gpu in self.allocation.gpus)

    def numbers(self, given: Sequence[int]) -> tuple[int, ...]:
        """Places of GPUs in the job, counted from 0, by their numbers on the machine or in the job."""
        return tuple(self.allocation.gpus.index(gpu) for gpu in self.allocation.named([str(one) for one in given]))

    def file(self, name: str) -> Path:
        """A file that goes with the worker's folder."""
        return Path(self.allocation.folder) / name

    def restrict(self, settings: EngineSettings) -> EngineSettings:
        return self.allocation.restrict(settings)

    def devices(self, named: Sequence[str] = ()) -> Devices:
        """The job's GPUs, or the named ones of them, with readings where there are any."""
        if len(set(named)) < len(named):
            return self.declare(named)
        gpus = self.allocation.named(named) if named else self.allocation.gpus
        source = self._source()
        if source is None:
            return self.declare([gpu.visible for gpu in gpus])
        return PartOfDevices(source, gpus, self._is_nested)

    def declare(self, words: Sequence[str]) -> Devices:
        """Slots as the user named them; each word may name several of the job's GPUs."""
        parts = [[part for each in word.split(",") if (part := each.strip())] for word in words]
        flat = iter(self.allocation.named([part for word in parts for part in word]))
        return DeclaredParts(words, [[next(flat) for _ in word] for word in parts])

    def _source(self) -> Devices | None:
        """The source of measurements of the job's GPUs; None without one."""
        if self.allocation.simulated:
            spec, directory = self._environment.get("STOKER_SIM"), self._environment.get("STOKER_SIM_DIR")
            return SimulatedDevices(spec, directory) if spec and directory else None
        if any(gpu.claim.startswith(_ONLY_A_NAME) for gpu in self.allocation.gpus):
            return None
        return found_by_driver()

    def _is_nested(self, process: Process) -> bool:
        """Whether a process is of a job inside this job: it has another worker, which descends from this job's."""
        mark = f"STOKER_WORKER={self.worker}".encode()
        variables = process_file(process.pid, "environ").split(b"\0")
        return mark not in variables and self._worker in ancestors(process.pid)


def find_parent(environment: Mapping[str, str], paths: Paths | None = None) -> Parent | None:
    """The job that this process runs in, if it has GPUs; None elsewhere.

    The variable alone proves nothing: a shell may have inherited it from a job that is over, or of another machine.
    So an ancestor of this process must be the worker. Simulated GPUs that are asked for inside a job with real ones
    are not of that job.
    """
    allocation = read_parent(environment.get(VARIABLE, ""))
    if allocation is None or (paths and paths.is_simulated and not allocation.simulated):
        return None
    worker = _worker_above(Path(allocation.folder) / "lock")
    return None if worker is None else Parent(allocation, worker, environment)


def _worker_above(lock: Path) -> int | None:
    """The outermost ancestor of this process that has a worker's lock open; None where there is none."""
    try:
        status = os.stat(lock)
    except OSError:
        return None
    holders = [pid for pid in ancestors(os.getpid()) if has_open(pid, status)]
    return holders[-1] if holders else None


def declare_here(words: Sequence[str]) -> Devices:
    """Devices as the user named them: of the parent job, or of the machine."""
    parent = find_parent(os.environ)
    return parent.declare(words) if parent else declare(words)


def ledger_here(parent: Parent | None, paths: Paths) -> Path:
    """The ledger of the parent job, or that of all users of the machine.

    Simulated GPUs are private, unless STOKER_LEDGER names a ledger to share them.
    """
    if parent:
        return parent.ledger
    private = paths.is_simulated and not os.environ.get("STOKER_LEDGER")
    return prepare_ledger(paths.state / "ledger") if private else find_ledger(os.environ)


class PartOfDevices:
    """The GPUs of a parent job, each with the memory that is reserved for that job as its total."""

    def __init__(self, devices: Devices, gpus: Sequence[ParentGpu], is_nested: Callable[[Process], bool]) -> None:
        self._devices = devices
        self._gpus = gpus
        self._is_nested = is_nested
        self._seen: tuple[Device, ...] | None = None
        self._parts: tuple[Device, ...] = ()
        self._last: tuple[Snapshot, Snapshot] | None = None
        self.variables = devices.variables

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        snapshot = self._devices.snapshot(now, newer_than)
        if self._last is None or self._last[0] is not snapshot:  # looking at processes again would change nothing
            self._last = snapshot, self._restricted(snapshot)
        return self._last[1]

    def fileno(self) -> int:
        return self._devices.fileno()

    def close(self) -> None:
        self._devices.close()

    def _restricted(self, snapshot: Snapshot) -> Snapshot:
        if snapshot.devices is not self._seen:
            self._seen = snapshot.devices
            by_claim = {claim: device for device in snapshot.devices for claim in device.claims}
            self._parts = tuple(part_of(by_claim[gpu.claim], gpu) for gpu in self._gpus if gpu.claim in by_claim)
        readings: dict[str, Reading] = {}
        for device in self._parts:
            if device.id in snapshot.readings:
                readings[device.id] = part_of_reading(snapshot.readings[device.id], self._is_nested)
        return replace(snapshot, devices=self._parts, readings=readings)


class DeclaredParts(DeclaredDevices):
    """Slots of GPUs of a parent job: labelled as the user wrote them, visible to CUDA as the parent's are."""

    def __init__(self, words: Sequence[str], slots: Sequence[Sequence[ParentGpu]]) -> None:
        claims = {gpu.visible: gpu.claim for gpus in slots for gpu in gpus}
        super().__init__([",".join(gpu.visible for gpu in gpus) for gpus in slots], claims)
        self._devices = tuple(
            replace(device, label=word, memory=_least(gpus, "memory"), whole=_least(gpus, "whole"))
            for device, word, gpus in zip(self._devices, words, slots, strict=True)
        )


def _least(gpus: Sequence[ParentGpu], field: str) -> int | None:
    amounts = [getattr(gpu, field) for gpu in gpus]
    return None if not amounts or None in amounts else min(amounts)
