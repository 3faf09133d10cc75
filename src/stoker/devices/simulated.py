"""Simulated GPUs as devices: real processes, with the memory and load that they report to the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.core.device import Device, Process, Reading, Snapshot
from stoker.core.units import device_sizes, size_text
from stoker.devices.interface import command_of, user_name
from stoker.devices.simulator import SimulatedMemory, holdings, make_directory

_IDLE_DEGREES = 34.0
_DEGREES_PER_PERCENT = 0.44
_IDLE_WATTS = 25.0
_WATTS_PER_PERCENT = 2.75


class SimulatedDevices:
    """The simulated GPUs of one directory."""

    def __init__(self, spec: str, directory: str) -> None:
        self._devices = tuple(_device(index, size) for index, size in enumerate(device_sizes(spec)))
        self._directory = directory
        self.variables: Mapping[str, str] = {"STOKER_SIM": spec, "STOKER_SIM_DIR": directory}
        make_directory(directory)

    def snapshot(self, now: float, newer_than: float = 0.0) -> Snapshot:
        """The memory of live processes; a directory that cannot be read makes every device unusable."""
        try:
            held = holdings(self._directory)
        except OSError as error:
            lost = Reading(problem=f"the simulator's directory cannot be read: {error.strerror}")
            return Snapshot(now, self._devices, {device.id: lost for device in self._devices})
        return Snapshot(now, self._devices, {device.id: _reading(i, held) for i, device in enumerate(self._devices)})

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass


def _device(index: int, size: int) -> Device:
    return Device(
        id=f"SIM-{index}",
        label=str(index),
        visible=str(index),
        claims=(f"sim:{index}",),
        kind="simulated",
        model="SIM " + size_text(size).replace(".0", ""),
        memory=size,
    )


def _reading(index: int, held: Sequence[SimulatedMemory]) -> Reading:
    present = [holding for holding in held if index in holding.memory]
    utilisation = min(100, sum(holding.load.get(index, 0) for holding in present))
    return Reading(
        used=sum(holding.memory[index] for holding in present),
        utilisation=utilisation,
        temperature=round(_IDLE_DEGREES + _DEGREES_PER_PERCENT * utilisation),
        power=_IDLE_WATTS + _WATTS_PER_PERCENT * utilisation,
        processes=tuple(
            Process(
                holding.pid,
                holding.memory[index],
                user_name(holding.owner),
                command_of(holding.pid),
                load=holding.load.get(index, 0),
            )
            for holding in present
        ),
    )
