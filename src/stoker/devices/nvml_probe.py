"""The program that asks the NVIDIA driver through NVML, so that a driver that hangs does not hang the engine."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, MutableMapping, Set
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pynvml
from msgspec import structs

from stoker.core.device import Account, Device, Process, Reading, Snapshot
from stoker.devices.interface import command_of, owner_name
from stoker.devices.nvidia import ProbeAnswer, nameless

_LIBRARY = "libnvidia-ml.so.1"
_MISMATCH = f"the NVIDIA driver and {_LIBRARY} have different versions; reboot to fix this"
_ABSENCES = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: f"no NVIDIA driver is installed: {_LIBRARY} was not found",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: f"{_LIBRARY} is there, but the NVIDIA driver is not loaded",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: _MISMATCH,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: _MISMATCH,
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to open the NVIDIA driver",
}


def main(words: list[str]) -> None:
    """Serve snapshots; with the word `persistence`, print the index of every GPU whose persistence mode is off."""
    if words != ["persistence"]:
        _serve()
        return
    pynvml.nvmlInit()
    for index in range(pynvml.nvmlDeviceGetCount()):
        with contextlib.suppress(pynvml.NVMLError):
            if not pynvml.nvmlDeviceGetPersistenceMode(pynvml.nvmlDeviceGetHandleByIndex(index)):
                print(index)


def _serve() -> None:
    """Answer each byte on standard input with a line, until it closes or there is no driver to ask.

    A library that failed once stays loaded as it is, even when the driver is updated; so the process
    ends after it has said what is wrong, and the next one loads the library that is installed then.
    """
    driver: Driver | None = None
    books: dict[str, AccountBook] = {}
    while os.read(0, 1):
        driver, answer = _ask(driver, books)
        os.write(1, msgspec.json.encode(answer) + b"\n")
        if answer.snapshot is None:
            return


def _ask(driver: Driver | None, books: dict[str, AccountBook]) -> tuple[Driver | None, ProbeAnswer]:
    try:
        driver = driver or Driver(books)
        snapshot = driver.read(time.time())
        if any(reading.problem for reading in snapshot.readings.values()):
            driver.close()
            driver = None
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
        code = getattr(error, "value", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        return None, ProbeAnswer(absent=_ABSENCES.get(code, f"cannot query the NVIDIA driver ({error})"))
    if not snapshot.devices:
        return driver, ProbeAnswer(absent="the NVIDIA driver is loaded, but shows no usable GPU")
    return driver, ProbeAnswer(snapshot)


# -- one reading of all GPUs

# A call that fails in one of these ways gives no value, and the rest of the device is fine.
_NO_VALUE = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
}


def value_of(call: Callable[..., Any], *arguments: Any) -> Any:
    """The driver's answer, None if it has none."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in _NO_VALUE:
            return None
        raise


FIRST_LOAD_SECONDS = 1.0
"""How far back the first reading asks for the load of processes."""
_SECONDS_BETWEEN_MODES = 30.0
_KEPT_SECONDS = 60.0
"""How long the account of a process is kept after its end: an engine may be late."""
_UTILISATION_UNKNOWN = 0xFFFFFFFF


class AccountBook:
    """The accounts of one GPU, from one reading to the next.

    The driver keeps thousands of processes, most of them long gone. Only those are asked for that run, that
    ran at the last reading, or that appeared since.
    """

    def __init__(self) -> None:
        self._mode_asked: float | None = None
        self._on = False
        self._listed: Set[int] | None = None
        """Processes that the driver knew at the last reading; None before the first one."""
        self._ran: Set[int] = frozenset()
        self._ended: dict[int, tuple[float, Account]] = {}

    def read(self, handle: Any, running: Iterable[int], now: float) -> tuple[Account, ...] | None:
        """The accounts of processes that run or ended lately, by number; None where accounting is off."""
        listed = value_of(pynvml.nvmlDeviceGetAccountingPids, handle) if self._is_on(handle, now) else None
        if listed is None:
            self._listed, self._ran, self._ended = None, frozenset(), {}
            return None
        listed_pids = frozenset(listed)
        new = frozenset() if self._listed is None else listed_pids - self._listed
        asked = [_account(handle, pid) for pid in sorted(new | (listed_pids & (frozenset(running) | self._ran)))]
        self._listed = listed_pids
        return self._kept([account for account in asked if account], now)

    def _is_on(self, handle: Any, now: float) -> bool:
        if self._mode_asked is None or abs(now - self._mode_asked) >= _SECONDS_BETWEEN_MODES:
            self._mode_asked = now
            self._on = value_of(pynvml.nvmlDeviceGetAccountingMode, handle) == pynvml.NVML_FEATURE_ENABLED
        return self._on

    def _kept(self, accounts: list[Account], now: float) -> tuple[Account, ...]:
        live = {account.pid: account for account in accounts if account.running}
        self._ran = frozenset(live)
        self._ended |= {account.pid: (now, account) for account in accounts if not account.running}
        self._ended = {
            pid: (at, account)
            for pid, (at, account) in self._ended.items()
            if abs(now - at) <= _KEPT_SECONDS and pid not in live  # a number that came again is a new process
        }
        ended = {pid: account for pid, (_, account) in self._ended.items()}
        return tuple(account for _, account in sorted((ended | live).items()))


def _account(handle: Any, pid: int) -> Account | None:
    try:
        stats = value_of(pynvml.nvmlDeviceGetAccountingStats, handle, pid)
    except TypeError:  # nvidia-ml-py fails so where the driver does not know the peak
        return None
    if stats is None:
        return None
    utilisation = None if stats.gpuUtilization == _UTILISATION_UNKNOWN else stats.gpuUtilization
    return Account(pid, stats.maxMemoryUsage, utilisation, bool(stats.isRunning))


_PROBLEMS = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "lost: it has fallen off the bus and needs a reset or a reboot",
    pynvml.NVML_ERROR_RESET_REQUIRED: "it must be reset before it can be used again",
    pynvml.NVML_ERROR_NO_PERMISSION: "no permission to use it",
}


@dataclass(frozen=True)
class Card:
    """One device with its reading."""

    device: Device
    reading: Reading
    handle: Any = None
    """For topology and accounts; only a whole GPU that answers has one."""
    tells_processes: bool = True


class Driver:
    """The driver's library while it is open; keeps the topology, which is slow to ask and does not change."""

    def __init__(self, books: MutableMapping[str, AccountBook]) -> None:
        pynvml.nvmlInit()
        self._books = books
        """By the UUID of the GPU; they outlive the library, which is closed whenever a GPU has a problem."""
        self._near: dict[tuple[str, ...], dict[str, tuple[str, ...]]] = {}
        self._read_at: float | None = None

    def read(self, now: float) -> Snapshot:
        """All GPUs, and MIG slices in place of the GPUs that are divided into them."""
        found_cards = [card for index in range(pynvml.nvmlDeviceGetCount()) for card in _cards(index)]
        cards = [self._with_accounts(self._with_loads(card, now), now) for card in found_cards]
        near = self._topology([card for card in cards if card.handle is not None])
        devices = (structs.replace(card.device, near=near.get(card.device.id, ())) for card in cards)
        readings = {card.device.id: card.reading for card in cards}
        silent = ", ".join(card.device.label for card in cards if not card.tells_processes)
        note = f"the driver does not list the processes of GPU {silent}" if silent else ""
        self._read_at = now
        return Snapshot(now, tuple(devices), readings, note)

    def close(self) -> None:
        """Close the library, so that a GPU with a problem can be reset."""
        pynvml.nvmlShutdown()

    def _with_loads(self, card: Card, now: float) -> Card:
        """The load of each process since the last reading, where several share a GPU; else that of the GPU tells."""
        reading = card.reading
        if card.handle is None or len(reading.processes) < 2:
            return card
        since = now - FIRST_LOAD_SECONDS if self._read_at is None else self._read_at
        try:
            loads = _process_loads(card.handle, max(0.0, since))
        except pynvml.NVMLError as error:
            return Card(card.device, Reading(problem=_problem(error)))
        if loads is None:
            return card
        processes = [structs.replace(process, load=loads.get(process.pid, 0)) for process in reading.processes]
        return replace(card, reading=structs.replace(reading, processes=tuple(processes)))

    def _with_accounts(self, card: Card, now: float) -> Card:
        if card.handle is None:
            return card
        book = self._books.setdefault(card.device.id, AccountBook())
        try:
            accounts = book.read(card.handle, [process.pid for process in card.reading.processes], now)
        except pynvml.NVMLError as error:
            return Card(card.device, Reading(problem=_problem(error)))
        return replace(card, reading=structs.replace(card.reading, accounts=accounts))

    def _topology(self, gpus: list[Card]) -> dict[str, tuple[str, ...]]:
        ids = tuple(card.device.id for card in gpus)
        if ids not in self._near:
            self._near = {ids: {card.device.id: _near(card, gpus) for card in gpus}}
        return self._near[ids]


def _cards(index: int) -> list[Card]:
    try:
        board = pynvml.nvmlDeviceGetHandleByIndex(index)
        modes = value_of(pynvml.nvmlDeviceGetMigMode, board)
        if not modes or modes[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return [_card(board, board, str(index))]
        return [_card(part, board, f"{index}:{place}") for place, part in _slices(board)]
    except pynvml.NVMLError as error:
        return [Card(nameless(index), Reading(problem=_problem(error)))]


def _slices(board: Any) -> list[tuple[int, Any]]:
    paths = range(value_of(pynvml.nvmlDeviceGetMaxMigDeviceCount, board) or 0)
    parts = [(place, value_of(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, board, place)) for place in paths]
    return [(place, part) for place, part in parts if part is not None]


def _card(handle: Any, board: Any, label: str) -> Card:
    uuid = pynvml.nvmlDeviceGetUUID(handle)
    model = value_of(pynvml.nvmlDeviceGetName, handle) or ""
    device = Device(id=uuid, label=label, visible=uuid, claims=(uuid,), kind="nvidia", model=model)
    try:
        memory, used = _memory(handle)
        processes = _processes(handle)
        rates = value_of(pynvml.nvmlDeviceGetUtilizationRates, handle)
        milliwatts = value_of(pynvml.nvmlDeviceGetPowerUsage, board)
        reading = Reading(
            used,
            rates.gpu if rates else None,
            _temperature(board),
            None if milliwatts is None else milliwatts / 1000,
            processes or (),
        )
    except pynvml.NVMLError as error:
        return Card(device, Reading(problem=_problem(error)))
    device = structs.replace(device, memory=memory)
    return Card(device, reading, handle if handle is board else None, processes is not None)


def _memory(handle: Any) -> tuple[int | None, int | None]:
    """Bytes that jobs can get, and bytes that they have: without what the driver keeps for itself."""
    if newer := value_of(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2):
        return newer.total - newer.reserved, newer.used
    if older := value_of(pynvml.nvmlDeviceGetMemoryInfo, handle):
        return older.total, older.used
    return None, None


def _temperature(board: Any) -> int | None:
    for call in (pynvml.nvmlDeviceGetTemperatureV, pynvml.nvmlDeviceGetTemperature):
        celsius: int | None = value_of(call, board, pynvml.NVML_TEMPERATURE_GPU)
        if celsius is not None:
            return celsius
    return None


def _processes(handle: Any) -> tuple[Process, ...] | None:
    """Processes on the device, each once; None if the driver does not list them."""
    lists = [_listed(kind, handle) for kind in ("Compute", "Graphics", "MPSCompute")]
    if lists[0] is None:
        return None
    memory_by_pid: dict[int, int | None] = {}
    for entry in (entry for entries in lists for entry in entries or []):
        sizes = [size for size in (memory_by_pid.get(entry.pid), entry.usedGpuMemory) if size is not None]
        memory_by_pid[entry.pid] = max(sizes, default=None)
    computing = {entry.pid for entries in (lists[0], lists[2]) for entry in entries or []}
    return tuple(
        Process(pid, memory, owner_name(pid), command_of(pid), graphics=pid not in computing)
        for pid, memory in sorted(memory_by_pid.items())
    )


def _process_loads(handle: Any, since: float) -> dict[int, int] | None:
    """The most that each process kept the GPU busy since then, in percent, without those that did nothing.

    None if the driver does not tell. It has no samples of clients of the MPS daemon by themselves.
    """
    if _listed("MPSCompute", handle):
        return None
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, int(since * 1e6))
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS):  # no process did anything
            return {}
        if error.value in _NO_VALUE:
            return None
        raise
    loads: dict[int, int] = {}
    for sample in samples:
        load = max(sample.smUtil, sample.encUtil, sample.decUtil)
        loads[sample.pid] = min(100, max(loads.get(sample.pid, 0), load))
    return loads


def _listed(kind: str, handle: Any) -> list[Any] | None:
    # The names with a version: the others raise NVMLLibraryMismatchError, which is no NVMLError.
    for version in ("v3", "v2"):
        entries: list[Any] | None = value_of(getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_{version}"), handle)
        if entries is not None:
            return entries
    return None


def _near(card: Card, gpus: list[Card]) -> tuple[str, ...]:
    others = [other for other in gpus if other is not card]
    distances = [(_distance(card.handle, other.handle), other.device.id) for other in others]
    reachable = [(distance, name) for distance, name in distances if distance is not None]
    return tuple(name for _, name in sorted(reachable, key=lambda pair: pair[0]))


def _distance(handle: Any, other: Any) -> tuple[bool, int] | None:
    """Smaller is nearer: first what NVLink joins, then by the common ancestor on the PCI tree."""
    try:
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)
        link = value_of(pynvml.nvmlDeviceGetP2PStatus, handle, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK)
    except pynvml.NVMLError:
        return None
    return link != pynvml.NVML_P2P_STATUS_OK, level


def _problem(error: pynvml.NVMLError) -> str:
    return _PROBLEMS.get(error.value, f"the driver reports an error ({error})")


if __name__ == "__main__":
    main(sys.argv[1:])
