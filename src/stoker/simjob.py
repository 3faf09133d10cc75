"""A small job for simulated GPUs, for demonstrations and tests: `python -m stoker.simjob --memory 6G`."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

from stoker.core.errors import StokerError, UsageError
from stoker.core.units import parse_size, size_text
from stoker.devices.simulator import Presence, Shortage, device_sizes

if TYPE_CHECKING:
    from types import FrameType

_TICK_SECONDS = 0.05
_SPIKE_SECONDS = 1.0


class Spike(NamedTuple):
    """For one second from this one on, the job holds so much."""

    size: int
    second: float


class Options(argparse.Namespace):
    """The command line."""

    memory: int
    seconds: float
    load: int
    ramp: float
    spike: Spike | None
    fail: int
    oom_text: str
    steps: int
    ignore_term: bool
    name: str


class _Help(argparse.HelpFormatter):
    # A fixed width: asking the terminal for its own would load modules that slow down every start.
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)


class Terminated(Exception):
    """SIGTERM came."""


class OutOfMemory(Exception):
    """A device was full; the message is the framework's own."""


class Gpus:
    """The simulated devices that CUDA_VISIBLE_DEVICES leaves to this process, if there are any."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        spec, directory = environment.get("STOKER_SIM", ""), environment.get("STOKER_SIM_DIR", "")
        sizes = device_sizes(spec) if spec and directory else []
        self.visible = visible_devices(environment.get("CUDA_VISIBLE_DEVICES"), len(sizes))
        self._presence = Presence(directory, sizes) if self.visible else None
        self._held: int | None = None

    def hold(self, memory: int, load: int, framework: str) -> None:
        """Hold so many bytes on every visible device."""
        if self._presence is None or memory == self._held:
            return
        shortage = self._presence.hold(dict.fromkeys(self.visible, memory), dict.fromkeys(self.visible, load))
        if shortage:
            raise OutOfMemory(oom_message(framework, shortage, self.visible.index(shortage.device)))
        self._held = memory

    def close(self) -> None:
        """Give everything back."""
        if self._presence:
            self._presence.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    try:
        options = _parse(arguments)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if options.ignore_term else _terminate)
        with closing(Gpus(os.environ)) as gpus:
            train(options, gpus)
    except Terminated:
        print("terminated, checkpoint saved", flush=True)
        return 128 + signal.SIGTERM
    except OutOfMemory as error:
        print(error, file=sys.stderr)
        return 1
    except StokerError as error:
        print(f"simjob: {error.message}; {error.hint}", file=sys.stderr)
        return error.exit_code
    return options.fail


def train(options: Options, gpus: Gpus) -> None:
    """Hold memory along the curve and print the steps as they fall due."""
    where = ",".join(map(str, gpus.visible)) or "none"
    print(f"{options.name}: {size_text(options.memory)} on GPU {where}", flush=True)
    began = time.monotonic()
    elapsed, printed = 0.0, 0
    while True:
        gpus.hold(memory_at(options, elapsed), options.load, options.oom_text)
        due = steps_due(options, elapsed)
        for step in range(printed + 1, due + 1):
            print(f"step {step}/{options.steps} loss {loss(step / options.steps):.4f}", flush=True)
        if elapsed >= options.seconds:
            return
        printed = due
        time.sleep(min(_TICK_SECONDS, options.seconds - elapsed))
        elapsed = time.monotonic() - began


def memory_at(options: Options, elapsed: float) -> int:
    """Bytes that the job holds so many seconds after its start."""
    grown = min(1.0, elapsed / options.ramp) if options.ramp > 0 else 1.0
    size = int(options.memory * grown)
    spike = options.spike
    if spike and spike.second <= elapsed < spike.second + _SPIKE_SECONDS:
        return max(size, spike.size)
    return size


def steps_due(options: Options, elapsed: float) -> int:
    """How many steps are done after so many seconds."""
    done = min(1.0, elapsed / options.seconds) if options.seconds > 0 else 1.0
    return int(options.steps * done)


def loss(done: float) -> float:
    """A loss that falls as losses do, by the part of the training that is done."""
    return 0.1 + 2.2 * math.exp(-3 * done)


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


def oom_message(framework: str, shortage: Shortage, ordinal: int) -> str:
    """What the framework prints as it dies; `ordinal` is the device's number within the process."""
    if framework == "jax":
        error = "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory"
        return f"{error} while trying to allocate {shortage.wanted} bytes."
    if framework == "tf":
        error = "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor"
        place = f"/job:localhost/replica:0/task:0/device:GPU:{ordinal} by allocator GPU_{ordinal}_bfc"
        return f"{error} with shape[{shortage.wanted // 4}] and type float on {place}"
    return _torch_message(shortage, ordinal)


def _torch_message(shortage: Shortage, ordinal: int) -> str:
    neighbours = "".join(f"Process {pid} has {_torch_size(size)} memory in use. " for pid, size in shortage.others)
    mine = _torch_size(shortage.mine)
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_torch_size(shortage.wanted)}. "
        f"GPU {ordinal} has a total capacity of {_torch_size(shortage.total)} "
        f"of which {_torch_size(shortage.free)} is free. {neighbours}"
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


def _terminate(number: int, frame: FrameType | None) -> None:
    # A second TERM must not interrupt the saving that the first one asked for.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser("python -m stoker.simjob", description=__doc__, formatter_class=_Help)
    add = parser.add_argument
    add("--memory", type=parse_size, default=2**30, metavar="SIZE", help="memory on each visible GPU")
    add("--seconds", type=float, default=3.0, help="how long to run")
    add("--load", type=_percent, default=90, metavar="PERCENT", help="load on each visible GPU")
    add("--ramp", type=float, default=0.0, metavar="SECONDS", help="reach the memory evenly over this time")
    add("--spike", type=_spike, metavar="SIZE@SECOND", help="hold SIZE for one second from SECOND on")
    add("--fail", type=int, default=0, metavar="CODE", help="exit with this code at the end")
    add("--oom-text", choices=("torch", "jax", "tf"), default="torch", help="whose words to die with")
    add("--steps", type=int, default=10, metavar="N", help="how many steps to print")
    add("--ignore-term", action="store_true", help="ignore SIGTERM")
    add("--name", default="simjob", metavar="TEXT", help="what to call the job in its output")
    return parser.parse_args(arguments, namespace=Options())


def _percent(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) <= 100):
        raise UsageError(f"{text!r} is not a load", "write a whole number from 0 to 100")
    return int(text)


def _spike(text: str) -> Spike:
    size, _, second = text.partition("@")
    try:
        return Spike(parse_size(size), float(second))
    except ValueError:
        raise UsageError(f"{text!r} is not a spike", "write SIZE@SECOND, for example 20G@1.5") from None


if __name__ == "__main__":
    sys.exit(main())
