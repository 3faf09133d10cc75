"""A machine with NVIDIA GPUs that are not there: the stand-in driver library, compiled, and its state."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pynvml
import pytest

from support.optional import refuse, require
from support.wait import PATIENCE_SECONDS

GIB = 2**30
SOURCES = Path(__file__).parent
JOB = [sys.executable, str(SOURCES / "job.py")]
"""A command that uses the GPUs of the stand-in, and takes the options of simulated jobs."""
SONAME = "libnvidia-ml.so.1"
STRICT = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED = 3, 4, 9
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH, UNKNOWN = 15, 16, 18, 999


Kind = Literal["compute", "graphics", "mps"]


@dataclass(frozen=True)
class FakeProcess:
    """A process on a GPU; shown only while it lives, unless it is a ghost."""

    pid: int
    memory: int | None
    kind: Kind = "compute"
    slice: int = -1
    ghost: bool = False
    load: int = 0


@dataclass(frozen=True)
class FakeAccount:
    """What the driver's accounting keeps of a process that has no line of its own any more."""

    pid: int
    peak: int
    utilisation: int = 0
    memory_utilisation: int = 0
    milliseconds: int = 0
    started_microseconds: int = 0


@dataclass(frozen=True)
class FakeSlice:
    """A MIG slice."""

    uuid: str
    total: int = 5 * GIB
    base: int = 0
    name: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"


@dataclass(frozen=True)
class FakeGpu:
    """A GPU; `faults` are error codes by symbol, and the symbol `*` is every call."""

    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB"
    total: int = 40 * GIB
    reserved: int = GIB // 2
    base: int = 0
    utilisation: int = 0
    memory_utilisation: int = 0
    celsius: int = 34
    power_milliwatts: int = 56_000
    limit_milliwatts: int = 400_000
    mig: bool = False
    slices: tuple[FakeSlice, ...] = ()
    processes: tuple[FakeProcess, ...] = ()
    accounting: int = 0
    """For how many processes accounting has room; none means that it is off."""
    accounts: tuple[FakeAccount, ...] = ()
    faults: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FakeLink:
    """How near two GPUs are: a level of nvmlGpuTopologyLevel_t, and whether NVLink joins them."""

    one: int
    other: int
    level: int
    nvlink: bool = False


@dataclass(frozen=True)
class FakeMachine:
    """All that the stand-in library reports; `blocked` symbols hang for so many seconds."""

    gpus: tuple[FakeGpu, ...] = ()
    links: tuple[FakeLink, ...] = ()
    driver: str = "550.54.15"
    init: int = 0
    faults: Mapping[str, int] = field(default_factory=dict)
    blocked: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """A compiled library and the state file that it reads."""

    library: Path
    state: Path

    def write(self, machine: FakeMachine) -> None:
        """Change the machine in one step, so that no call sees half of it."""
        draft = self.state.with_suffix(".draft")
        draft.write_text("".join(f"{line}\n" for line in _lines(machine)))
        draft.replace(self.state)

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which a new process finds the stand-in instead of a driver."""
        return {**os.environ, "LD_LIBRARY_PATH": str(self.library), "FAKE_NVML_STATE": str(self.state)}

    def start(self, *options: str, gpus: str) -> subprocess.Popen[str]:
        """Start a job, with options of the simulated ones, on GPUs named by their UUIDs."""
        environment = self.environment | {"CUDA_VISIBLE_DEVICES": gpus}
        return subprocess.Popen([*JOB, *options], env=environment, stderr=subprocess.PIPE, text=True)


def compiled(directory: Path, *, old: bool = False) -> Path:
    """The folder with the stand-in library, compiled at the first call; `old` lacks the newer symbols."""
    folder = directory / ("nvml-old" if old else "nvml")
    if not (folder / "libnvidia-ml.so").exists():
        folder.mkdir(parents=True, exist_ok=True)
        _compile(folder / SONAME, ["-DOLD_LIBRARY"] if old else [])
        (folder / "libnvidia-ml.so").symlink_to(SONAME)
    return folder


@contextmanager
def driver_of(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The stand-in, loaded and initialised by nvidia-ml-py in this process."""
    monkeypatch.setenv("FAKE_NVML_STATE", str(bench.state))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(bench.library / SONAME)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    bench.write(FakeMachine())
    pynvml.nvmlInit()
    yield bench
    pynvml.nvmlShutdown()


def _compile(library: Path, flags: list[str]) -> None:
    compiler = require("cc")
    sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
    subprocess.run(
        [compiler, *STRICT, *flags, f"-Wl,-soname,{SONAME}", "-o", library, *sources],
        check=True,
        timeout=PATIENCE_SECONDS,
    )


def needed(name: str, folder: str | None = None) -> str:
    """The path of a program, or of a file in a folder, that judges the stand-in; .ci/fetch_gpu_tools gets it."""
    found = shutil.which(name) if folder is None else str(Path(folder, name))
    if found is None or not os.path.exists(found):
        refuse(f"{name} is missing: .ci/fetch_gpu_tools gets it")
    return str(found)


def _lines(machine: FakeMachine) -> list[str]:
    lines = [f"driver {machine.driver}", f"init {machine.init}"]
    for index, gpu in enumerate(machine.gpus):
        lines += [f"gpu {gpu.uuid} {gpu.name}", *_gpu_lines(index, gpu)]
    lines += [f"link {link.one} {link.other} {link.level} {link.nvlink:d}" for link in machine.links]
    lines += [f"fail {symbol} -1 {code}" for symbol, code in machine.faults.items()]
    lines += [f"block {symbol} {seconds}" for symbol, seconds in machine.blocked.items()]
    return lines


def _gpu_lines(index: int, gpu: FakeGpu) -> list[str]:
    return [
        f"memory {index} {gpu.total} {gpu.reserved} {gpu.base}",
        f"load {index} {gpu.utilisation} {gpu.memory_utilisation}",
        f"board {index} {gpu.celsius} {gpu.power_milliwatts} {gpu.limit_milliwatts} {7 + index}",
        *([f"mig {index}"] if gpu.mig else []),
        f"accounting {index} {gpu.accounting}",
        *(f"slice {index} {part.uuid} {part.total} {part.base} {part.name}" for part in gpu.slices),
        *(_account_line(index, account) for account in gpu.accounts),
        *(_process_line(index, process) for process in gpu.processes),
        *(f"fail {symbol} {index} {code}" for symbol, code in gpu.faults.items()),
    ]


def _process_line(index: int, process: FakeProcess) -> str:
    word = "ghost" if process.ghost else "process"
    memory = "na" if process.memory is None else process.memory
    return f"{word} {index} {process.pid} {memory} {process.kind} {process.slice} {process.load}"


def _account_line(index: int, account: FakeAccount) -> str:
    load = f"{account.utilisation} {account.memory_utilisation}"
    times = f"{account.milliseconds} {account.started_microseconds}"
    return f"account {index} {account.pid} {account.peak} {load} {times}"
