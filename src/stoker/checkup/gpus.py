"""What the driver says of the GPUs, and what is in the machine that it does not know of."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from stoker.checkup.verdict import Subject, Verdict, note, ok, output_of, problem
from stoker.core.device import Device, Reading
from stoker.core.units import count_text
from stoker.devices.detect import FIRST_ANSWER_SECONDS
from stoker.devices.nvidia import NvidiaAbsent, NvidiaDevices

_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"
PCI = Path("/sys/bus/pci/devices")


def look_at_gpus(subject: Subject, pci: Path = PCI) -> Iterator[Verdict]:
    """Every GPU that the driver shows; where it shows none, why."""
    if subject.simulated:
        yield ok("gpus", "simulated ones need no driver")
        return
    devices = NvidiaDevices()
    try:
        snapshot = devices.first(FIRST_ANSWER_SECONDS)
    except NvidiaAbsent as absent:
        yield judge_absence(absent.message, cards(pci))
        return
    finally:
        devices.close()
    yield ok("gpus", f"the NVIDIA driver shows {count_text(len(snapshot.devices), 'GPU')}")
    for device in snapshot.devices:
        yield from _trouble(device, snapshot.reading(device.id))
    yield from _persistence()


def judge_absence(reason: str, cards: int) -> Verdict:
    """Why there is no GPU; without a card that may be as it should be."""
    if "not found" not in reason:
        return problem("gpus", reason, "see what nvidia-smi says; a restart of the machine mends most of it")
    if cards:
        text = f"{count_text(cards, 'NVIDIA card')} in this machine, but {reason}"
        return problem("gpus", text, "install the NVIDIA driver")
    advice = "name devices yourself (--devices), try simulated ones (--sim 4x24G), or run jobs without GPU (-G 0)"
    return note("gpus", f"no GPU in this machine: {reason}", advice)


def cards(pci: Path = PCI) -> int:
    """How many graphics cards of NVIDIA's the machine has, driver or not."""
    found = 0
    with contextlib.suppress(OSError):
        for device in pci.iterdir():
            with contextlib.suppress(OSError):
                vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
                found += vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS)
    return found


def _trouble(device: Device, reading: Reading) -> Iterator[Verdict]:
    if reading.problem:
        advice = "see nvidia-smi and dmesg; a lost GPU comes back with a reset or a restart of the machine"
        yield problem("gpus", f"GPU {device.label}: {reading.problem}", advice)


def _persistence() -> Iterator[Verdict]:
    """Without persistence a driver forgets the GPU between two jobs, and each one waits for it anew."""
    said = output_of([sys.executable, "-P", "-m", "stoker.devices.nvml_persistence"], FIRST_ANSWER_SECONDS)
    if said and (off := said.split()):
        text = f"persistence mode is off on GPU {', '.join(off)}: a job on an idle GPU starts seconds later"
        yield note("gpus", text, "let root run: systemctl enable --now nvidia-persistenced")
