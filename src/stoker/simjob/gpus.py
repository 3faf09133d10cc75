"""The simulated GPUs as one job has them: its memory, its neighbours, and how it dies."""

from __future__ import annotations

import time
from collections.abc import Mapping

from stoker.core.interference import slowdown
from stoker.devices.simulator import device_sizes
from stoker.devices.simulator_presence import Presence, Shortage
from stoker.simjob.framework import Limits, UnknownOption, grab, limits
from stoker.simjob.options import Options

_SECONDS_BETWEEN_ACCOUNTS = 1.0


class Died(Exception):
    """The process must end with code 1; the message is what a framework says as it dies."""


class Gpus:
    """The simulated devices that CUDA_VISIBLE_DEVICES leaves to this process, if there are any."""

    def __init__(self, environment: Mapping[str, str], options: Options) -> None:
        spec, directory = environment.get("STOKER_SIM", ""), environment.get("STOKER_SIM_DIR", "")
        self._sizes = device_sizes(spec) if spec and directory else []
        self.visible = visible_devices(environment.get("CUDA_VISIBLE_DEVICES"), len(self._sizes))
        self._options = options
        self._limits = _limits(environment, options)
        self._presence = self._entered(directory, environment) if self.visible else None
        self._load = dict.fromkeys(self.visible, options.load)
        self._held: dict[int, int] = {}
        self._told_busy = dict(self._load)
        self._told_at = 0.0
        self._company = _Company(self.visible)
        self._grabbed = self._grab(grab(environment, options.framework)) if self._presence else {}

    def hold(self, memory: int) -> None:
        """Hold so many bytes on every visible device, or what the framework has grabbed where that is more."""
        wanted = {device: max(memory, self._grabbed.get(device, 0)) for device in self.visible}
        if self._presence is None or (wanted == self._held and not self._account_is_due()):
            return
        if shortage := self._take(self._presence, wanted):
            raise Died(self._words(shortage))

    def speed(self) -> float:
        """How fast the job works beside its neighbours, as a part of its speed alone."""
        if self._presence is None:
            return 1.0
        self._company.meet(self._presence)
        return min(self._company.speed(device, load) for device, load in self._load.items())

    def pass_time(self, seconds: float) -> None:
        """So much time went by in the company that was met last."""
        self._company.pass_time(seconds)

    def check(self) -> None:
        """Die where another client has taken the MPS server with it."""
        if self._presence and self._presence.is_struck():
            self.die()

    def fault(self) -> None:
        """Do what no program should, and die of it with all clients of the same MPS server."""
        if self._presence:
            self._presence.strike()
        self.die()

    def die(self) -> None:
        """Die of an illegal memory access."""
        from stoker.simjob.dying import FAULT

        raise Died(FAULT)

    def close(self) -> None:
        """Give everything back, after a last word on how it went."""
        if self._presence:
            if self._held and self._presence.is_accounted:
                self._take(self._presence, self._held)
            self._presence.close()

    def _entered(self, directory: str, environment: Mapping[str, str]) -> Presence:
        bounds = {device: self._limits.of(ordinal, self._sizes[device]) for ordinal, device in enumerate(self.visible)}
        known = {device: bound for device, bound in bounds.items() if bound is not None}
        return Presence(directory, self._sizes, known, environment.get("CUDA_MPS_PIPE_DIRECTORY", ""))

    def _grab(self, part: float) -> dict[int, int]:
        wanted = {device: int(part * self._sizes[device]) for device in self.visible} if part else {}
        while wanted and self._presence and (shortage := self._presence.hold(wanted, self._load)):
            if part < 1:
                raise Died(self._words(shortage))
            # Whoever wants all takes what is left.
            wanted[shortage.device] = min(wanted[shortage.device] - 1, shortage.mine + shortage.free)
        return wanted

    def _take(self, presence: Presence, wanted: dict[int, int]) -> Shortage | None:
        busy = self._company.busy() or self._load
        shortage = presence.hold(wanted, self._load, busy)
        if shortage is None:
            self._held, self._told_busy, self._told_at = wanted, busy, time.monotonic()
        return shortage

    def _account_is_due(self) -> bool:
        """Whether others should hear how busy the devices were; alone, that never changes."""
        is_news = (self._company.busy() or self._load) != self._told_busy
        return is_news and time.monotonic() - self._told_at >= _SECONDS_BETWEEN_ACCOUNTS

    def _words(self, shortage: Shortage) -> str:
        from stoker.simjob.dying import oom_message

        ordinal = self.visible.index(shortage.device)
        own = self._limits.is_own(ordinal, shortage.total) and shortage.wanted <= shortage.free
        framework = "torch-fraction" if own else self._options.framework
        return oom_message(self._options.oom_text or framework, shortage, ordinal)


class _Company:
    """Who works on the same devices, and how busy these were."""

    def __init__(self, devices: list[int]) -> None:
        self._loads: dict[int, list[int]] = {device: [] for device in devices}
        self._work = dict.fromkeys(devices, 0.0)
        """Percent of the device's utilisation times seconds."""
        self._seconds = 0.0

    def meet(self, presence: Presence) -> None:
        """Look who is there now."""
        present = presence.present()
        for device in self._loads:
            self._loads[device] = [load for other in present if (load := other.load.get(device))]

    def speed(self, device: int, own_load: int) -> float:
        """How fast one goes on a device."""
        loads = self._loads[device]
        return slowdown(own_load, sum(loads), len(loads))

    def pass_time(self, seconds: float) -> None:
        """Count the time for the mean."""
        self._seconds += seconds
        for device, loads in self._loads.items():
            self._work[device] += min(100, sum(loads)) * seconds

    def busy(self) -> dict[int, int]:
        """The mean utilisation of each device so far; nothing where no time has passed."""
        return {device: round(work / self._seconds) for device, work in self._work.items()} if self._seconds else {}


def visible_devices(words: str | None, count: int) -> list[int]:
    """The indices that CUDA would show: all if unset, none if one is doubled, cut at the first wrong one."""
    if words is None:
        return list(range(count))
    indices: list[int] = []
    for word in words.split(","):
        stripped = word.strip()
        if not (stripped.isascii() and stripped.isdecimal() and int(stripped) < count):
            break
        indices.append(int(stripped))
    return indices if len(set(indices)) == len(indices) else []


def _limits(environment: Mapping[str, str], options: Options) -> Limits:
    if not options.cap:
        return Limits()
    try:
        return limits(environment, options.framework, options.torch_version)
    except UnknownOption as error:
        raise Died(str(error)) from None
