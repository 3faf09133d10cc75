"""A fake training program that reports GPU memory and load to the simulator."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from stoker.core.errors import StokerError, UsageError
from stoker.core.interference import slowdown
from stoker.core.units import device_sizes, parse_size, size_text
from stoker.devices.simulator import OutOfMemory, SimulatedProcess

if TYPE_CHECKING:
    from types import FrameType


SPIKE_SECONDS = 1.0


class Spike(NamedTuple):
    """For one second from this one on, the job holds so much."""

    size: int
    second: float


class Point(NamedTuple):
    """At this second the job holds so much; between two points the memory grows or falls evenly."""

    second: float
    size: int


class Memory(NamedTuple):
    """What was asked for: points, or a size that is reached over a time, and perhaps a spike."""

    size: int
    ramp: float = 0.0
    spike: Spike | None = None
    points: tuple[Point, ...] = ()

    @property
    def level(self) -> int:
        """What it holds in the long run, spikes apart."""
        return max((point.size for point in self.points), default=self.size)


def memory_at(memory: Memory, second: float) -> int:
    """Bytes that the job holds after so many seconds of work."""
    size = _along(memory.points, second) if memory.points else _grown(memory, second)
    spike = memory.spike
    if spike and spike.second <= second < spike.second + SPIKE_SECONDS:
        return max(size, spike.size)
    return size


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


def parse_spike(text: str) -> Spike:
    """The spike of `20G@1.5`."""
    size, _, second = text.partition("@")
    try:
        return Spike(parse_size(size), float(second))
    except ValueError:
        raise UsageError(f"{text!r} is not a spike", "write SIZE@SECOND, for example 20G@1.5") from None


def _point(text: str) -> Point:
    second, _, size = text.partition(":")
    return Point(float(second), parse_size(size))


def _grown(memory: Memory, second: float) -> int:
    return int(memory.size * (min(1.0, second / memory.ramp) if memory.ramp > 0 else 1.0))


def _along(points: tuple[Point, ...], second: float) -> int:
    if second <= points[0].second:
        return points[0].size
    for left, right in pairwise(points):
        if second < right.second:
            return int(left.size + (right.size - left.size) * (second - left.second) / (right.second - left.second))
    return points[-1].size


TEXTS = (
    *("torch", "torch-1", "torch-2.0", "torch-2.1", "torch-2.4", "torch-fraction"),
    *("jax", "tf", "cupy", "cublas", "cudnn", "nccl", "cuda"),
)
"""Whose words a job can die with when a GPU is full; `torch` is the newest one."""

_NEWEST_TORCH = (2, 15)


class Options(argparse.Namespace):
    """The command line."""

    size: int
    curve: tuple[Point, ...]
    ramp: float
    spike: Spike | None
    seconds: float
    load: int
    framework: str
    torch_version: tuple[int, ...]
    cap: bool
    oom_text: str
    split_oom: bool
    child: bool
    fault: float | None
    fail: int
    steps: int
    tqdm: bool
    ignore_term: bool
    name: str

    @property
    def memory(self) -> Memory:
        """What the job holds on each visible GPU."""
        return Memory(self.size, self.ramp, self.spike, self.curve)


class _Help(argparse.HelpFormatter):
    # A fixed width: asking the terminal for its own would load modules that slow down every start.
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)


def parse(arguments: Sequence[str] | None) -> Options:
    """What the job was asked to do."""
    about = "A small job for simulated GPUs. In company it works more slowly, and all its seconds become longer."
    parser = argparse.ArgumentParser("python -m stoker.devices.demo_job", description=about, formatter_class=_Help)
    _add_memory(parser)
    _add_framework(parser)
    _add_course(parser)
    return parser.parse_args(arguments, namespace=Options())


def _add_memory(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--memory", dest="size", type=parse_size, default=2**30, metavar="SIZE", help="memory on each visible GPU")
    add("--curve", type=parse_curve, default=(), metavar="SECOND:SIZE,...", help="memory as it changes over time")
    add("--ramp", type=float, default=0.0, metavar="SECONDS", help="reach the memory evenly over this time")
    add("--spike", type=parse_spike, metavar="SIZE@SECOND", help="hold SIZE for one second from SECOND on")
    add("--load", type=_percent, default=90, metavar="PERCENT", help="load on each visible GPU")
    add("--child", action="store_true", help="let a child in a session of its own do the work, as torchrun does")


def _add_framework(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    grabs = "tf takes all memory at its start and jax 75 %%, unless the environment forbids it"
    add("--framework", choices=("torch", "tf", "jax"), default="torch", help=grabs)
    add("--cap", action="store_true", help="keep to the memory limits that the environment sets")
    add("--torch-version", type=_version, default=_NEWEST_TORCH, metavar="X.Y", help="which limits it knows")
    add("--oom-text", choices=TEXTS, default="", help="whose words to die with")
    add("--split-oom", action="store_true", help="write these words in many small pieces")
    fault = "die of an illegal memory access, at SECOND or in the end, with all clients of the same MPS server"
    add("--fault", type=float, nargs="?", const=float("inf"), metavar="SECOND", help=fault)


def _add_course(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seconds", type=float, default=3.0, help="how long to run")
    add("--steps", type=int, default=10, metavar="N", help="how many steps to print")
    add("--tqdm", action="store_true", help="print a progress bar instead of steps")
    add("--fail", type=int, default=0, metavar="CODE", help="exit with this code at the end")
    add("--ignore-term", action="store_true", help="ignore SIGTERM")
    add("--name", default="simjob", metavar="TEXT", help="what to call the job in its output")


def _percent(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 100):
        raise UsageError(f"{text!r} is not a load", "write a whole number from 0 to 100")
    return int(text)


def _version(text: str) -> tuple[int, ...]:
    numbers = text.split(".")
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise UsageError(f"{text!r} is not a version", "write numbers and points, for example 2.9")
    return tuple(map(int, numbers))


_ASYNCHRONOUS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)

FAULT = f"RuntimeError: CUDA error: an illegal memory access was encountered\n{_ASYNCHRONOUS}"

_USED_FRACTION = "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit"

_NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
    "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.20.5\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
)


def oom_message(text: str, oom: OutOfMemory, ordinal: int) -> str:
    """What a framework prints as it dies; `ordinal` is the device's number within the process."""
    return _MESSAGES[text](oom, ordinal)


def torch_size(size: int) -> str:
    """A size as PyTorch writes it."""
    if size <= 2**10:
        return f"{size} bytes"
    for unit, factor in (("KiB", 2**10), ("MiB", 2**20)):
        if size <= factor * 2**10:
            return f"{size / factor:.2f} {unit}"
    return f"{size / 2**30:.2f} GiB"


def _torch(oom: OutOfMemory, ordinal: int) -> str:
    return _torch_since_2_1("torch.OutOfMemoryError", "capacity", oom, ordinal)


def _torch_2_4(oom: OutOfMemory, ordinal: int) -> str:
    return _torch_since_2_1("torch.cuda.OutOfMemoryError", "capacity", oom, ordinal)


def _torch_2_1(oom: OutOfMemory, ordinal: int) -> str:
    return _torch_since_2_1("torch.cuda.OutOfMemoryError", "capacty", oom, ordinal)


def _torch_fraction(oom: OutOfMemory, ordinal: int) -> str:
    return _torch_since_2_1("torch.OutOfMemoryError", "capacity", oom, ordinal, f"{_USED_FRACTION}. ")


def _torch_since_2_1(error: str, capacity: str, oom: OutOfMemory, ordinal: int, more: str = "") -> str:
    co_tenants = "".join(f"Process {pid} has {torch_size(size)} memory in use. " for pid, size in oom.others)
    mine = torch_size(oom.mine)
    return (
        f"{error}: CUDA out of memory. Tried to allocate {torch_size(oom.wanted)}. "
        f"GPU {ordinal} has a total {capacity} of {torch_size(oom.total)} "
        f"of which {torch_size(oom.free)} is free. {more}{co_tenants}"
        f"Including non-PyTorch memory, this process has {mine} memory in use. "
        f"Of the allocated memory {mine} is allocated by PyTorch, "
        "and 0 bytes is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def _torch_2_0(oom: OutOfMemory, ordinal: int) -> str:
    return _torch_until_2_0("torch.cuda.OutOfMemoryError", oom, ordinal)


def _torch_1(oom: OutOfMemory, ordinal: int) -> str:
    return _torch_until_2_0("RuntimeError", oom, ordinal)


def _torch_until_2_0(error: str, oom: OutOfMemory, ordinal: int) -> str:
    mine = torch_size(oom.mine)
    return (
        f"{error}: CUDA out of memory. Tried to allocate {torch_size(oom.wanted)} (GPU {ordinal}; "
        f"{torch_size(oom.total)} total capacity; {mine} already allocated; {torch_size(oom.free)} free; "
        f"{mine} reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
        "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
        "PYTORCH_CUDA_ALLOC_CONF"
    )


def _jax(oom: OutOfMemory, ordinal: int) -> str:
    error = "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory"
    return f"{error} while trying to allocate {oom.wanted} bytes."


def _tensorflow(oom: OutOfMemory, ordinal: int) -> str:
    error = "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor"
    place = f"/job:localhost/replica:0/task:0/device:GPU:{ordinal} by allocator GPU_{ordinal}_bfc"
    return f"{error} with shape[{oom.wanted // 4}] and type float on {place}"


def _cupy(oom: OutOfMemory, ordinal: int) -> str:
    sizes = f"allocating {oom.wanted:,} bytes (allocated so far: {oom.mine:,} bytes)."
    return f"cupy.cuda.memory.OutOfMemoryError: Out of memory {sizes}"


def _always(words: str) -> Callable[[OutOfMemory, int], str]:
    return lambda oom, ordinal: words


_MESSAGES: Mapping[str, Callable[[OutOfMemory, int], str]] = {
    "torch": _torch,
    "torch-1": _torch_1,
    "torch-2.0": _torch_2_0,
    "torch-2.1": _torch_2_1,
    "torch-2.4": _torch_2_4,
    "torch-fraction": _torch_fraction,
    "jax": _jax,
    "tf": _tensorflow,
    "cupy": _cupy,
    "cublas": _always("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cudnn": _always("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "nccl": _always(_NCCL),
    "cuda": _always(f"RuntimeError: CUDA error: out of memory\n{_ASYNCHRONOUS}"),
}

_FRACTION = "per_process_memory_fraction"

_KNOWS_FRACTION = (2, 10)


class UnknownOption(Exception):
    """The framework refuses to start; the message is its own."""


class Limits(NamedTuple):
    """Bytes that the process may have, by the number that a device has within it."""

    mps: Mapping[int, int] = {}
    """What the MPS server refuses; the framework does not know."""
    fraction: float | None = None
    """The part of each device at which PyTorch's allocator stops by itself."""

    def of(self, ordinal: int, total: int) -> int | None:
        """The smaller one of both, where there is any."""
        own = None if self.fraction is None else int(self.fraction * total)
        return min((limit for limit in (own, self.mps.get(ordinal)) if limit is not None), default=None)

    def is_own(self, ordinal: int, total: int) -> bool:
        """Whether the framework's own limit is the one that counts."""
        return self.fraction is not None and self.of(ordinal, total) == int(self.fraction * total)


def limits(environment: Mapping[str, str], framework: str, version: Sequence[int]) -> Limits:
    """What the environment allows; a PyTorch that is too old for its option does not start."""
    conf = environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF", "")
    fraction = _fraction(conf) if framework == "torch" else None
    if fraction is not None and tuple(version) < _KNOWS_FRACTION:
        raise UnknownOption(f"RuntimeError: Unrecognized CachingAllocator option: {_FRACTION}")
    return Limits(_pinned(environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "")), fraction)


def grab(environment: Mapping[str, str], framework: str) -> float:
    """The part of each device that the framework takes before it has done anything."""
    if framework == "tf" and environment.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() != "true":
        return 1.0
    if framework == "jax" and environment.get("XLA_PYTHON_CLIENT_PREALLOCATE", "").lower() not in {"false", "0"}:
        older = environment.get("XLA_PYTHON_CLIENT_MEM_FRACTION", "")
        return _number(environment.get("XLA_CLIENT_MEM_FRACTION", "") or older) or 0.75
    return 0.0


def _pinned(text: str) -> dict[int, int]:
    """The limits of `0=8G,1=4G`; anything else limits nothing."""
    found = {}
    for part in text.split(","):
        ordinal, _, size = part.partition("=")
        with suppress(ValueError, UsageError):
            found[int(ordinal)] = parse_size(size)
    return found


def _fraction(conf: str) -> float | None:
    settings = dict(part.strip().partition(":")[::2] for part in conf.split(","))
    return _number(settings.get(_FRACTION, ""))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
        self._simulated = self._entered(directory, environment) if self.visible else None
        self._load = dict.fromkeys(self.visible, options.load)
        self._held: dict[int, int] = {}
        self._told_busy = dict(self._load)
        self._told_at = 0.0
        self._shared = _Company(self.visible)
        self._grabbed = self._grab(grab(environment, options.framework)) if self._simulated else {}

    def hold(self, memory: int) -> None:
        """Hold so many bytes on every visible device, or what the framework has grabbed where that is more."""
        wanted = {device: max(memory, self._grabbed.get(device, 0)) for device in self.visible}
        if self._simulated is None or (wanted == self._held and not self._account_is_due()):
            return
        if oom := self._take(self._simulated, wanted):
            raise Died(self._words(oom))

    def speed(self) -> float:
        """How fast the job works beside its neighbours, as a part of its speed alone."""
        if self._simulated is None:
            return 1.0
        self._shared.meet(self._simulated)
        return min(self._shared.speed(device, load) for device, load in self._load.items())

    def pass_time(self, seconds: float) -> None:
        """So much time went by in the company that was met last."""
        self._shared.pass_time(seconds)

    def check(self) -> None:
        """Die where another client has taken the MPS server with it."""
        if self._simulated and self._simulated.is_struck():
            self.die()

    def fault(self) -> None:
        """Do what no program should, and die of it with all clients of the same MPS server."""
        if self._simulated:
            self._simulated.strike()
        self.die()

    def die(self) -> None:
        """Die of an illegal memory access."""

        raise Died(FAULT)

    def close(self) -> None:
        """Give everything back, after a last word on how it went."""
        if self._simulated:
            if self._held and self._simulated.is_accounted:
                self._take(self._simulated, self._held)
            self._simulated.close()

    def _entered(self, directory: str, environment: Mapping[str, str]) -> SimulatedProcess:
        bounds = {device: self._limits.of(ordinal, self._sizes[device]) for ordinal, device in enumerate(self.visible)}
        known = {device: bound for device, bound in bounds.items() if bound is not None}
        return SimulatedProcess(directory, self._sizes, known, environment.get("CUDA_MPS_PIPE_DIRECTORY", ""))

    def _grab(self, part: float) -> dict[int, int]:
        wanted = {device: int(part * self._sizes[device]) for device in self.visible} if part else {}
        while wanted and self._simulated and (oom := self._simulated.hold(wanted, self._load)):
            if part < 1:
                raise Died(self._words(oom))
            # Whoever wants all takes what is left.
            wanted[oom.device] = min(wanted[oom.device] - 1, oom.mine + oom.free)
        return wanted

    def _take(self, simulated: SimulatedProcess, wanted: dict[int, int]) -> OutOfMemory | None:
        busy = self._shared.busy() or self._load
        oom = simulated.hold(wanted, self._load, busy)
        if oom is None:
            self._held, self._told_busy, self._told_at = wanted, busy, time.monotonic()
        return oom

    def _account_is_due(self) -> bool:
        """Whether others should hear how busy the devices were; alone, that never changes."""
        is_news = (self._shared.busy() or self._load) != self._told_busy
        return is_news and time.monotonic() - self._told_at >= _SECONDS_BETWEEN_ACCOUNTS

    def _words(self, oom: OutOfMemory) -> str:

        ordinal = self.visible.index(oom.device)
        own = self._limits.is_own(ordinal, oom.total) and oom.wanted <= oom.free
        framework = "torch-fraction" if own else self._options.framework
        return oom_message(self._options.oom_text or framework, oom, ordinal)


class _Company:
    """Who works on the same devices, and how busy these were."""

    def __init__(self, devices: list[int]) -> None:
        self._loads: dict[int, list[int]] = {device: [] for device in devices}
        self._work = dict.fromkeys(devices, 0.0)
        """Percent of the device's utilisation times seconds."""
        self._seconds = 0.0

    def meet(self, simulated: SimulatedProcess) -> None:
        """Look who is there now."""
        present = simulated.present()
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


_BAR_WIDTH = 10

_EIGHTHS = " ▏▎▍▌▋▊▉"

_SMOOTHING = 0.3


class Steps:
    """A line for each step, with a loss that falls as losses do."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._printed = 0

    def show(self, done: float, elapsed: float) -> None:
        """Print the steps that fell due; `done` is the part of all work."""
        due = int(self._count * done)
        for step in range(self._printed + 1, due + 1):
            print(f"step {step}/{self._count} loss {loss(step / self._count):.4f}", flush=True)
        self._printed = due


class Bar:
    """One line on standard error that each step writes anew, as tqdm does."""

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


def loss(done: float) -> float:
    """A loss that falls as losses do, by the part of the training that is done."""
    return 0.1 + 2.2 * math.exp(-3 * done)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def _rate_text(rate: float) -> str:
    if not rate:
        return "?it/s"
    return f"{rate:5.2f}it/s" if rate >= 1 else f"{1 / rate:5.2f}s/it"


_TICK_SECONDS = 0.05


def train(options: Options, gpus: Gpus) -> None:
    """Hold memory along the curve and show the progress, until the work is done or something kills it."""
    where = ",".join(map(str, gpus.visible)) or "none"
    print(f"{options.name}: {size_text(options.memory.level)} on GPU {where}", flush=True)
    progress = (Bar if options.tqdm else Steps)(options.steps)
    began = time.monotonic()
    worked, elapsed = 0.0, 0.0
    while True:
        gpus.check()
        gpus.hold(memory_at(options.memory, worked))
        progress.show(_part(worked, options.seconds), elapsed)
        if options.fault is not None and worked >= min(options.fault, options.seconds):
            gpus.fault()
        if worked >= options.seconds:
            return
        speed = gpus.speed()
        time.sleep(min(_TICK_SECONDS, (options.seconds - worked) / speed))
        passed = time.monotonic() - began - elapsed
        gpus.pass_time(passed)
        worked, elapsed = worked + passed * speed, elapsed + passed


def _part(worked: float, seconds: float) -> float:
    return min(1.0, worked / seconds) if seconds > 0 else 1.0


def launch(work: Callable[[], int]) -> int:
    """Do the work in a child, pass SIGTERM on to it, and end as it ends."""
    # Until it is settled who has to hear it, the signal waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if child == 0:
        os._exit(_isolated(work))

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _isolated(work: Callable[[], int]) -> int:
    code = 1
    try:
        os.setsid()
        # Without a handler of its own the child would die of a signal that came early, like any program.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        code = work()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return code


_PIECE = 16

_SECONDS_BETWEEN_PIECES = 0.001


class Terminated(Exception):
    """SIGTERM came."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    try:
        options = parse(arguments)
    except StokerError as error:
        return _told(error)
    if not options.child:
        return work(options)

    return launch(lambda: work(options))


def work(options: Options) -> int:
    """Train in this process, and return the code it has to exit with."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_term else _terminate)
        with closing(Gpus(os.environ, options)) as gpus:
            train(options, gpus)
    except Terminated:
        print("terminated, checkpoint saved", flush=True)
        return 128 + signal.SIGTERM
    except Died as death:
        _write(f"{death}\n".encode(), in_spans=options.split_oom)
        return 1
    except StokerError as error:
        return _told(error)
    return options.fail


def _told(error: StokerError) -> int:
    print(f"simjob: {error.message}; {error.hint}", file=sys.stderr)
    return error.exit_code


def _write(text: bytes, *, in_spans: bool) -> None:
    """Write to standard error, at once or as programs do that write words one by one."""
    size = _PIECE if in_spans else len(text)
    for start in range(0, len(text), size):
        os.write(sys.stderr.fileno(), text[start : start + size])
        if in_spans:
            time.sleep(_SECONDS_BETWEEN_PIECES)


def _terminate(number: int, frame: FrameType | None) -> None:
    # A second TERM must not interrupt the saving that the first one asked for.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


if __name__ == "__main__":
    sys.exit(main())
