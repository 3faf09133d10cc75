"""A fake training program that reports GPU memory and load to the simulator."""

# Every simulated job starts this program, so it loads nothing outside the standard library.

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from stoker.core.errors import StokerError, UsageError
from stoker.core.interference import slowdown
from stoker.core.units import device_sizes, is_number, parse_size, size_text
from stoker.devices.simulator import Holding, OutOfMemory, SimulatedProcess

if TYPE_CHECKING:
    from types import FrameType

_TICK_SECONDS = 0.05


class Point(NamedTuple):
    """Bytes held at a second of the job; between two points the memory changes linearly."""

    second: float
    size: int


class Options(argparse.Namespace):
    """The command line."""

    size: int
    curve: tuple[Point, ...]
    ramp: float
    seconds: float
    load: int
    fail: int
    steps: int
    tqdm: bool
    name: str

    @property
    def memory(self) -> tuple[Point, ...]:
        """What the job holds on each visible GPU."""
        start = (Point(0.0, 0),) if self.ramp > 0 else ()
        return self.curve or (*start, Point(self.ramp, self.size))


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
    about = "A small job for simulated GPUs. Beside other jobs it works more slowly, and takes longer."
    parser = argparse.ArgumentParser("python -m stoker.devices.demo_job", description=about, formatter_class=_Help)
    add = parser.add_argument
    add("--memory", dest="size", type=parse_size, default=2**30, metavar="SIZE", help="memory on each visible GPU")
    add("--curve", type=parse_curve, default=(), metavar="SECOND:SIZE,...", help="memory as it changes over time")
    add("--ramp", type=float, default=0.0, metavar="SECONDS", help="reach the memory evenly over this time")
    add("--load", type=_percent, default=90, metavar="PERCENT", help="load on each visible GPU")
    add("--seconds", type=float, default=3.0, help="how long to run")
    add("--steps", type=int, default=10, metavar="N", help="how many steps to print")
    add("--tqdm", action="store_true", help="print a progress bar instead of steps")
    add("--fail", type=int, default=0, metavar="CODE", help="exit with this code at the end")
    add("--name", default="demo_job", metavar="TEXT", help="what to call the job in its output")
    return parser


def parse_curve(text: str) -> tuple[Point, ...]:
    """The points of `0:1G,5:4G,20:6G`."""
    try:
        points = tuple(_point(part) for part in text.split(","))
    except (ValueError, UsageError):
        points = ()
    if not points or any(not left.second < right.second for left, right in pairwise(points)):
        hint = "write SECOND:SIZE in the order of time, for example 0:1G,5:4G,20:6G"
        raise UsageError(f"{text!r} is not a curve", hint)
    return points


def _point(text: str) -> Point:
    second, _, size = text.partition(":")
    return Point(float(second), parse_size(size))


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

    def oom_text(self, oom: OutOfMemory) -> str:
        return torch_oom_text(oom, self.visible.index(oom.device))

    def speed(self) -> float:
        """How fast the job works beside its co-tenants, as a part of its speed alone."""
        if self.simulated is None:
            return 1.0
        present = self.simulated.present()
        return min(self._speed(device, present) for device in self.visible)

    def close(self) -> None:
        if self.simulated:
            self.simulated.close()

    def _speed(self, device: int, present: Sequence[Holding]) -> float:
        loads = [load for process in present if (load := process.load.get(device))]
        return slowdown(self._load[device], sum(loads), len(loads))


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


def torch_oom_text(oom: OutOfMemory, ordinal: int, reason: str = "") -> str:
    """What PyTorch prints as it dies; `ordinal` is the device's number within the process."""
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


# -- progress

_BAR_WIDTH = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"
_SMOOTHING = 0.3


class Steps:
    """Prints a line for each step, with a falling loss."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._printed = 0

    def show(self, done: float, elapsed: float) -> None:
        """Print the steps that fell due; `done` is the part of all work."""
        due = int(self._count * done)
        for step in range(self._printed + 1, due + 1):
            loss = 0.1 + 2.2 * math.exp(-3 * step / self._count)
            print(f"step {step}/{self._count} loss {loss:.4f}", flush=True)
        self._printed = due


class Bar:
    """One line on standard error that each step overwrites, as tqdm does."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._drawn = -1
        self._at = 0.0
        self._rate = 0.0

    def show(self, done: float, elapsed: float) -> None:
        """Draw the bar after so many seconds, if a step was done since."""
        due = int(self._count * done)
        if due == self._drawn:
            return
        self._measure(due - max(0, self._drawn), elapsed - self._at)
        self._drawn, self._at = due, elapsed
        sys.stderr.write("\r" + bar_text(due, self._count, elapsed, self._rate) + ("\n" if done >= 1 else ""))
        sys.stderr.flush()

    def _measure(self, steps: int, seconds: float) -> None:
        if steps > 0 and seconds > 0:
            new = steps / seconds
            self._rate = new if not self._rate else _SMOOTHING * new + (1 - _SMOOTHING) * self._rate


def bar_text(step: int, count: int, elapsed: float, rate: float) -> str:
    """The bar at a step: ` 45%|████▌     | 45/100 [00:10<00:12, 4.50it/s]`."""
    part = step / count if count else 1.0
    whole, eighths = divmod(int(part * _BAR_WIDTH * 8), 8)
    bar = ("█" * whole + (_EIGHTHS[eighths] if whole < _BAR_WIDTH else "")).ljust(_BAR_WIDTH)
    remaining = _clock((count - step) / rate) if rate else "?"
    return f"{part:4.0%}|{bar}| {step}/{count} [{_clock(elapsed)}<{remaining}, {_rate_text(rate)}]"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def _rate_text(rate: float) -> str:
    if not rate:
        return "?it/s"
    return f"{rate:5.2f}it/s" if rate >= 1 else f"{1 / rate:5.2f}s/it"


# -- training


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    return run(arguments, argument_parser(), Options(), VisibleGpus)


def run(
    arguments: Sequence[str] | None,
    parser: argparse.ArgumentParser,
    options: Options,
    gpus_of: Callable[[Mapping[str, str], int], VisibleGpus],
) -> int:
    """Parse the command line, train on the GPUs, and return the exit code."""
    try:
        parser.parse_args(arguments, options)
        signal.signal(signal.SIGTERM, _terminate)
        with closing(gpus_of(os.environ, options.load)) as gpus:
            train(options, gpus)
    except Terminated:
        print("terminated, checkpoint saved", flush=True)
        return 128 + signal.SIGTERM
    except Died as death:
        print(death, file=sys.stderr)
        return 1
    except StokerError as error:
        print(f"demo_job: {error.message}; {error.hint}", file=sys.stderr)
        return error.exit_code
    return options.fail


def train(options: Options, gpus: VisibleGpus) -> None:
    """Hold memory along the curve and show the progress until the work is done."""
    where = ",".join(map(str, gpus.visible)) or "none"
    largest = max(point.size for point in options.memory)
    print(f"{options.name}: {size_text(largest)} on GPU {where}", flush=True)
    progress = (Bar if options.tqdm else Steps)(options.steps)
    began = time.monotonic()
    worked, elapsed = 0.0, 0.0
    while True:
        gpus.hold(memory_at(options.memory, worked))
        progress.show(min(1.0, worked / options.seconds) if options.seconds > 0 else 1.0, elapsed)
        if worked >= options.seconds:
            return
        speed = gpus.speed()
        time.sleep(min(_TICK_SECONDS, (options.seconds - worked) / speed))
        passed = time.monotonic() - began - elapsed
        worked, elapsed = worked + passed * speed, elapsed + passed


def memory_at(points: Sequence[Point], second: float) -> int:
    """Bytes that the job holds after so many seconds of work."""
    if second <= points[0].second:
        return points[0].size
    for left, right in pairwise(points):
        if second < right.second:
            return int(left.size + (right.size - left.size) * (second - left.second) / (right.second - left.second))
    return points[-1].size


def _terminate(number: int, frame: FrameType | None) -> None:
    # A second TERM must not interrupt the saving that the first one asked for.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


if __name__ == "__main__":
    sys.exit(main())
