"""What the NVIDIA driver's accounting keeps of processes on a GPU, asked for no more of them than necessary."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import pynvml

from stoker.core.device import Account
from stoker.devices.nvml_call import told

_SECONDS_BETWEEN_MODES = 30.0
_KEPT_SECONDS = 60.0
"""How long the account of a process is told after its end: an engine may look late."""
_UTILISATION_UNKNOWN = 0xFFFFFFFF


class AccountBook:
    """The accounts of one GPU from look to look.

    The driver keeps thousands of processes, most of them long gone. Only those are asked for that run, that
    ran at the last look, or that appeared since.
    """

    def __init__(self) -> None:
        self._mode_asked: float | None = None
        self._on = False
        self._listed: Set[int] | None = None
        """Of whom the driver had something at the last look; None before the first one."""
        self._ran: Set[int] = frozenset()
        self._ended: dict[int, tuple[float, Account]] = {}

    def read(self, handle: Any, running: Iterable[int], now: float) -> tuple[Account, ...] | None:
        """The accounts of processes that run or ended lately, by number; None where accounting is off."""
        listed = told(pynvml.nvmlDeviceGetAccountingPids, handle) if self._is_on(handle, now) else None
        if listed is None:
            self._listed, self._ran, self._ended = None, frozenset(), {}
            return None
        asked = [_account(handle, pid) for pid in sorted(self._wanted(frozenset(listed), frozenset(running)))]
        found = [account for account in asked if account]
        self._listed = frozenset(listed)
        return self._kept(found, now)

    def _is_on(self, handle: Any, now: float) -> bool:
        if self._mode_asked is None or abs(now - self._mode_asked) >= _SECONDS_BETWEEN_MODES:
            self._mode_asked = now
            self._on = told(pynvml.nvmlDeviceGetAccountingMode, handle) == pynvml.NVML_FEATURE_ENABLED
        return self._on

    def _wanted(self, listed: Set[int], running: Set[int]) -> Set[int]:
        new = frozenset() if self._listed is None else listed - self._listed
        return new | (listed & (running | self._ran))

    def _kept(self, found: Iterable[Account], now: float) -> tuple[Account, ...]:
        live = {account.pid: account for account in found if account.running}
        self._ran = frozenset(live)
        self._ended |= {account.pid: (now, account) for account in found if not account.running}
        self._ended = {
            pid: (at, account)
            for pid, (at, account) in self._ended.items()
            if abs(now - at) <= _KEPT_SECONDS and pid not in live  # a number that came again is a new process
        }
        ended = {pid: account for pid, (_, account) in self._ended.items()}
        return tuple(account for _, account in sorted((ended | live).items()))


def _account(handle: Any, pid: int) -> Account | None:
    try:
        stats = told(pynvml.nvmlDeviceGetAccountingStats, handle, pid)
    except TypeError:  # the way in which nvidia-ml-py fails where the driver does not know the peak
        return None
    if stats is None:
        return None
    utilisation = None if stats.gpuUtilization == _UTILISATION_UNKNOWN else stats.gpuUtilization
    return Account(pid, stats.maxMemoryUsage, utilisation, bool(stats.isRunning))
