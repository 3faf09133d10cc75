"""The GPUs of a job as schedulers that run inside the job see them: all the machine that they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker.core.device import Device, Process, Reading
from stoker.core.errors import Impossible
from stoker.core.settings import EngineSettings
from stoker.core.spec import Resources, amount_on

VARIABLE = "STOKER_ALLOCATION"
"""Holds the parent allocation in the environment of every job with GPUs."""

SIMULATED = "sim:"
"""Beginning of the ledger names of simulated GPUs."""


class ParentGpu(Struct, frozen=True, omit_defaults=True):
    """One GPU, or the part of one, that a job has."""

    label: str
    visible: str
    """Its entry in CUDA_VISIBLE_DEVICES."""
    claim: str
    """Its ledger name."""
    memory: int | None = None
    """Bytes that the job may use; None if unknown."""
    whole: int | None = None
    """Bytes of the whole GPU."""

    def is_called(self, word: str) -> bool:
        return word in (self.label, self.visible, self.claim) or (len(word) > 4 and self.claim.startswith(word))


class ParentAllocation(Struct, frozen=True):
    """The job that a scheduler runs in, its worker and its GPUs."""

    job: str
    """Its id as users know it."""
    folder: str
    """The folder of its worker, which holds the lock in it."""
    gpus: tuple[ParentGpu, ...]

    @property
    def text(self) -> str:
        """As it is put into the environment."""
        return msgspec.json.encode(self).decode()

    @property
    def simulated(self) -> bool:
        return all(gpu.claim.startswith(SIMULATED) for gpu in self.gpus)

    @property
    def whose(self) -> str:
        """The job and its GPUs, for a sentence."""
        noun = "GPU" if len(self.gpus) == 1 else "GPUs"
        return f"job {self.job}, which has {noun} {', '.join(gpu.label for gpu in self.gpus)}"

    def named(self, words: Sequence[str]) -> list[ParentGpu]:
        """The GPUs that the words name; if one is no name of a GPU, all are counted as CUDA does in the job: from 0.

        One rule for all words, else 0 and 1 could mean the same of the GPUs 1 and 2.
        """
        by_name = [next((gpu for gpu in self.gpus if gpu.is_called(word)), None) for word in words]
        gpus = [gpu for gpu in by_name if gpu is not None]
        if len(gpus) == len(words):
            return gpus
        places = [int(word) if word.isdecimal() and len(word) < 5 else len(self.gpus) for word in words]
        if all(place < len(self.gpus) for place in places):
            return [self.gpus[place] for place in places]
        absent = next(word for word, gpu in zip(words, by_name, strict=True) if gpu is None)
        raise Impossible(
            f"GPU {absent} is not available inside {self.whose}",
            f"name those, or let Stoker choose; `stoker submit`, or a job with -G 0 instead of {self.job}, "
            "can use the other GPUs of the machine",
        )

    def restrict(self, settings: EngineSettings) -> EngineSettings:
        """Settings for engines inside the job: those about the whole machine were heeded when the job got its GPUs."""
        parts = all(gpu.memory is not None and gpu.memory != gpu.whole for gpu in self.gpus)
        reserve = 0 if parts else settings.reserve
        return replace(settings, devices="", min_free=0, max_use=None, reserve=reserve)


def read_parent(text: str) -> ParentAllocation | None:
    """The parent allocation that a job finds in its environment; None if this version cannot read it."""
    try:
        parent = msgspec.json.decode(text, type=ParentAllocation)
    except msgspec.MsgspecError:
        return None
    return parent if parent.gpus else None


def parent_gpus(devices: Sequence[Device], resources: Resources) -> tuple[ParentGpu, ...]:
    """The GPUs of a job with these resources: one for each name in the ledger."""
    return tuple(gpu for device in devices for gpu in _gpus(device, resources))


def _gpus(device: Device, resources: Resources) -> Iterator[ParentGpu]:
    """A slot of several GPUs, such as `0,1`, gives several."""
    amount = amount_on(resources, device)
    if amount is None and device.memory is not None:
        amount = device.memory // device.share
    whole = device.memory if device.whole is None else device.whole
    if len(device.claims) == 1:
        yield ParentGpu(device.label, device.visible, device.claims[0], amount, whole)
        return
    visible = dict.fromkeys(part.strip() for part in device.visible.split(","))
    for part, claim in zip((part for part in visible if part), device.claims, strict=False):
        yield ParentGpu(part, part, claim, amount, whole)


def part_of(device: Device, gpu: ParentGpu) -> Device:
    """A device of the machine as the part of it that the parent job has."""
    memory = device.memory if gpu.memory is None else gpu.memory
    whole = device.memory if gpu.whole is None else gpu.whole
    return replace(device, memory=memory, whole=whole)


def part_of_reading(reading: Reading, is_nested: Callable[[Process], bool]) -> Reading:
    """A reading with only the processes of jobs inside the parent job.

    Other processes, those of the parent job itself among them, are not in the way of its children.
    """
    nested = tuple(process for process in reading.processes if is_nested(process))
    is_complete = all(process.memory is not None for process in nested)
    used = sum(process.memory or 0 for process in nested) if is_complete else None
    return replace(reading, used=used, processes=nested)
