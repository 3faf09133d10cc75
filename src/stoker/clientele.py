"""Whether jobs that ask for NVIDIA MPS can have it; where not, they go without it only if somebody allowed that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from stoker.core.device import Device
from stoker.core.errors import Impossible
from stoker.core.terms import Terms


class Clientele:
    """Decides for all jobs of a batch, and says once that they go without."""

    def __init__(self, environment: Mapping[str, str], say: Callable[[str], None]) -> None:
        self.say = say
        self._environment = environment
        self._said: set[str] = set()

    def settled(self, terms: Terms, devices: Sequence[Device]) -> Terms:
        """The terms, without MPS where there is none and that was allowed; on devices that may not be known yet."""
        if terms.need.mps is None or not (reason := self._hindrance(devices)):
            return terms
        if not terms.mps_optional:
            raise Impossible(f"there is no MPS here: {reason}", "leave out --mps, or let it go with --mps-optional")
        if reason not in self._said:
            self._said.add(reason)
            self.say(f"--mps is left out: {reason}")
        return replace(terms, need=replace(terms.need, mps=None))

    def _hindrance(self, devices: Sequence[Device]) -> str:
        if devices and all(device.kind == "declared" for device in devices):
            return "it needs NVIDIA GPUs, and these devices are only names"
        from shutil import which

        from stoker.mps.control import PROGRAM

        return "" if which(PROGRAM, path=self._environment.get("PATH")) else f"{PROGRAM} is not on the PATH"
