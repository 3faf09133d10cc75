"""A fake training program that reports GPU memory and load to the simulator."""

# Every simulated job starts this program, so it loads nothing outside the standard library.

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from stoker.core.errors import StokerError, UsageError
from stoker.core.interference import slowdown
from stoker.core.units import device_sizes, is_number, parse_size, size_text
from stoker.devices.simulator import SimulatedOutOfMemory, SimulatedProcess

if TYPE_CHECKING:
    from types import FrameType

_TICK_SECONDS = 0.05


class Options(argparse.Namespace):
    """The command line."""

    size: int
    ramp: float
    seconds: float
    load: int
    steps: int
    exit_code: int = 0
    """Of a job that gets to its end."""

    def memory_at(self, second: float) -> int:
        """Bytes that the job holds on each visible GPU after so many seconds of work."""
        return self.size if second >= self.ramp else int(self.size * second / self.ramp)

    def gpus(self, environment: Mapping[str, str]) -> VisibleGpus:
        return VisibleGpus(environment, self.load)

    def progress(self) -> TrainingSteps:
        return TrainingSteps(self.steps)


class Died(Exception):
    """The job must exit with code 1; the message is what a framework prints as it dies."""


class Terminated(Exception):
    """SIGTERM came."""


# -- the command line


class _Help(argparse.HelpFormatter):
    # A fixed width: asking the terminal for its own would load modules that slow down every start.
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)


def argument_parser() -> argparse.ArgumentParser:
    about = "A small job for simulated GPUs. It runs more slowly when it shares a GPU."
    parser = argparse.ArgumentParser("python -m stoker.devices.demo_job", description=about, formatter_class=_Help)
    add = parser.add_argument
    add("--memory", dest="size", type=parse_size, default=2**30, metavar="SIZE", help="memory on each visible GPU")
    add("--ramp", type=float, default=0.0, metavar="SECONDS", help="reach the memory evenly over this time")
    add("--load", type=_percent, default=90, metavar="PERCENT", help="load on each visible GPU")
    add("--seconds", type=float, default=3.0, help="how long to run")
    add("--steps", type=int, default=10, metavar="N", help="how many steps to print")
    return parser


def _percent(text: str) -> int:
    if not (is_number(text) and int(text) <= 100):
        raise UsageError(f"{text!r} is not a load", "write a whole number from 0 to 100")
    return int(text)


# -- GPUs


class VisibleGpus:
    """The simulated devices that CUDA_VISIBLE_DEVICES shows to this process, if there are any."""

    def __init__(self, environment: Mapping[str, str], load: int) -> None:
        spec, directory = environment.get("STOKER_SIM", ""), environment.get("STOKER_SIM_DIR", "")
        self.sizes = device_sizes(spec) if spec and directory else []
        self.visible = visible_devices(environment.get("CUDA_VISIBLE_DEVICES"), len(self.sizes))
        self.simulated = SimulatedProcess(directory, self.sizes) if self.visible else None
        self._load = dict.fromkeys(self.visible, load)
        self._held: dict[int, int] = {}

    def hold(self, memory: int) -> None:
        """Hold so many bytes on every visible device."""
        wanted = dict.fromkeys(self.visible, memory)
        if self.simulated is None or wanted == self._held:
            return
        if oom := self.simulated.hold(wanted, self._load):
            raise Died(self.oom_text(oom))
        self._held = wanted

    def oom_text(self, oom: SimulatedOutOfMemory) -> str:
        return torch_oom_text(oom, self.visible.index(oom.device))

    def speed(self) -> float:
        """How fast the job works beside its co-tenants, as a part of its speed alone."""
        if self.simulated is None:
            return 1.0
        present = self.simulated.present()
        speeds = []
        for device, own in self._load.items():
            loads = [load for process in present if (load := process.load.get(device))]
            speeds.append(slowdown(own, sum(loads), len(loads)))
        return min(speeds)

    def close(self) -> None:
        if self.simulated:
            self.simulated.close()


def visible_devices(words: str | None, count: int) -> list[int]:
    """The indices that CUDA would show: all if unset, none if one is doubled, cut at the first wrong one."""
    if words is None:
        return list(range(count))
    indices: list[int] = []
    for word in words.split(","):
        stripped = word.strip()
        if not (is_number(stripped) and int(stripped) < count):
            break
        indices.append(int(stripped))
    return indices if len(set(indices)) == len(indices) else []


def torch_oom_text(oom: SimulatedOutOfMemory, ordinal: int, reason: str = "") -> str:
    """The message of PyTorch as it dies; `ordinal` is the device's number within the process."""
    co_tenants = "".join(f"Process {pid} has {_torch_size(size)} memory in use. " for pid, size in oom.others)
    mine = _torch_size(oom.mine)
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_torch_size(oom.wanted)}. "
        f"GPU {ordinal} has a total capacity of {_torch_size(oom.total)} "
        f"of which {_torch_size(oom.free)} is free. {reason}{co_tenants}"
        f"Including non-PyTorch memory, this process has {mine} memory in use. "
        f"Of the allocated memory {mine} is allocated by PyTorch, "
        "and 0 bytes is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def _torch_size(size: int) -> str:
    if size <= 2**10:
        return f"{size} bytes"
    for unit, factor in (("KiB", 2**10), ("MiB", 2**20)):
        if size <= factor * 2**10:
            return f"{size / factor:.2f} {unit}"
    return f"{size / 2**30:.2f} GiB"


class TrainingSteps:
    """Prints a line for each step, with a falling loss."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._printed = 0

    def show(self, done: float, elapsed: float) -> None:
        """Print the steps that fell due; `done` is the part of all work, `elapsed` the seconds so far."""
        due = int(self.count * done)
        for step in range(self._printed + 1, due + 1):
            self.print(step, elapsed)
        self._printed = due

    def print(self, step: int, elapsed: float) -> None:
        loss = 0.1 + 2.2 * math.exp(-3 * step / self.count)
        print(f"step {step}/{self.count} loss {loss:.4f}", flush=True)


# -- training


def main(arguments: Sequence[str] | None = None) -> int:
    return run(arguments, argument_parser(), Options())


def run(arguments: Sequence[str] | None, parser: argparse.ArgumentParser, options: Options) -> int:
    """Parse the command line, train on the GPUs, and return the exit code."""
    try:
        parser.parse_args(arguments, options)
        signal.signal(signal.SIGTERM, _terminate)
        with closing(options.gpus(os.environ)) as gpus:
            train(options, gpus)
    except Terminated:
        print("terminated, checkpoint saved", flush=True)
        return 128 + signal.SIGTERM
    except Died as death:
        print(death, file=sys.stderr)
        return 1
    except StokerError as error:
        print(f"demo_job: {error}", file=sys.stderr)
        return error.exit_code
    return options.exit_code


def train(options: Options, gpus: VisibleGpus) -> None:
    """Hold memory and show the progress until the work is done."""
    where = ",".join(map(str, gpus.visible)) or "none"
    print(f"demo_job: {size_text(options.size)} on GPU {where}", flush=True)
    steps = options.progress()
    began = time.monotonic()
    worked, elapsed = 0.0, 0.0
    while True:
        gpus.hold(options.memory_at(worked))
        steps.show(min(1.0, worked / options.seconds) if options.seconds > 0 else 1.0, elapsed)
        if worked >= options.seconds:
            return
        speed = gpus.speed()
        time.sleep(min(_TICK_SECONDS, (options.seconds - worked) / speed))
        passed = time.monotonic() - began - elapsed
        worked, elapsed = worked + passed * speed, elapsed + passed


def _terminate(number: int, frame: FrameType | None) -> None:
    # A second TERM must not interrupt the saving that the first one asked for.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


if __name__ == "__main__":
    sys.exit(main())
