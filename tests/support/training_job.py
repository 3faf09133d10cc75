"""The shipped demonstration job with a memory curve, a progress bar, and more ways to end."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from stoker.core.units import parse_size
from stoker.devices.demo_job import Died, Options, TrainingSteps, VisibleGpus, argument_parser, run, torch_oom_text
from stoker.devices.simulator import SimulatedOutOfMemory

if TYPE_CHECKING:
    from types import FrameType

WORDS = (sys.executable, "-P", __file__)
"""The command; `-P` keeps the modules beside this file out of it."""
TRAIN = shlex.join(WORDS)

_REJECTED = "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. "
_FRACTION = "per_process_memory_fraction:"
_PIECE_BYTES = 16
_SECONDS_BETWEEN_PIECES = 0.001


class TrainingOptions(Options):
    """The command line."""

    curve: str = ""
    tqdm: bool = False
    cap: bool = False
    child: bool = False
    oom_text: str = "torch"
    split_oom: bool = False
    until: str = ""
    _seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """How long to run, which nobody knows before the file is there."""
        return math.inf if self._waits() else self._seconds

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._seconds = value

    def memory_at(self, second: float) -> int:
        """Between two points of a curve such as `0:1G,2:1G,3:40G` the memory changes linearly."""
        second = 0.0 if self._waits() else second
        if not self.curve:
            return super().memory_at(second)
        points = [
            (float(at), parse_size(size)) for at, _, size in (part.partition(":") for part in self.curve.split(","))
        ]
        for (before, low), (after, high) in pairwise(points):
            if second < after:
                return int(low + (high - low) * max(0.0, second - before) / (after - before))
        return points[-1][1]

    def _waits(self) -> bool:
        return bool(self.until) and not os.path.exists(self.until)

    def gpus(self, environment: Mapping[str, str]) -> VisibleGpus:
        return TrainingGpus(environment, self.load, self)

    def progress(self) -> TrainingSteps:
        return (Bar if self.tqdm else TrainingSteps)(self.steps)


class Bar(TrainingSteps):
    """Writes each step over the one before, as tqdm does."""

    def print(self, step: int, elapsed: float) -> None:
        """With the mean rate so far."""
        rate = step / elapsed if elapsed else 0.0
        sys.stderr.write(f"\r{step / self.count:4.0%}|{'█' * 10}| {step}/{self.count} [00:00<00:00, {rate:5.2f}it/s]")
        sys.stderr.flush()


class TrainingGpus(VisibleGpus):
    """Visible GPUs of a process that may keep to a limit of PyTorch."""

    def __init__(self, environment: Mapping[str, str], load: int, options: TrainingOptions) -> None:
        super().__init__(environment, load)
        self._options = options
        self._fraction = fraction(environment) if options.cap else 1.0

    def hold(self, memory: int) -> None:
        """Hold so many bytes on every visible device, unless PyTorch's own limit is lower."""
        for device in self.visible if self._fraction < 1 else ():
            if self.simulated and memory > self._fraction * self.sizes[device]:
                oom = self.simulated.refusal(device, memory, self.simulated.present())
                raise Died(torch_oom_text(oom, self.visible.index(device), _REJECTED))
        try:
            super().hold(memory)
        except Died as death:
            if not self._options.split_oom:
                raise
            write_in_pieces(f"{death}\n".encode())
            os._exit(1)

    def oom_text(self, oom: SimulatedOutOfMemory) -> str:
        """What the chosen framework prints as it dies."""
        return jax_oom_text(oom) if self._options.oom_text == "jax" else super().oom_text(oom)


def fraction(environment: Mapping[str, str]) -> float:
    """The part of each device that PyTorch may allocate."""
    configuration = environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF", "")
    found = [part.removeprefix(_FRACTION) for part in configuration.split(",") if part.startswith(_FRACTION)]
    return float(found[-1]) if found else 1.0


def jax_oom_text(oom: SimulatedOutOfMemory) -> str:
    """JAX does not say who has the memory."""
    error = "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory"
    return f"{error} while trying to allocate {oom.wanted} bytes."


def write_in_pieces(text: bytes) -> None:
    """Write to standard error as programs do that write words one by one."""
    for start in range(0, len(text), _PIECE_BYTES):
        os.write(2, text[start : start + _PIECE_BYTES])
        time.sleep(_SECONDS_BETWEEN_PIECES)


def launch(work: Callable[[], int]) -> int:
    """Do the work in a child with a session of its own, as torchrun does; pass SIGTERM on, and end as it ends."""
    # The signal waits until it is settled which process handles it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    child = os.fork()
    if child == 0:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        return work()

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def training_parser() -> argparse.ArgumentParser:
    parser = argument_parser()
    parser.add_argument("--curve", metavar="SECOND:SIZE,...", help="memory as it changes over time")
    parser.add_argument("--until", metavar="FILE", help="neither grow nor end before the file is there")
    parser.add_argument("--tqdm", action="store_true", help="print a progress bar instead of steps")
    parser.add_argument("--fail", dest="exit_code", type=int, metavar="CODE", help="exit with this code at the end")
    parser.add_argument("--cap", action="store_true", help="keep to the limit of PyTorch in the environment")
    parser.add_argument("--child", action="store_true", help="let a child do the work")
    parser.add_argument("--oom-text", choices=("torch", "jax"), default="torch", help="whose words to die with")
    parser.add_argument("--split-oom", action="store_true", help="write these words in many small pieces")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    options = TrainingOptions()

    def work() -> int:
        return run(arguments, training_parser(), options)

    given = sys.argv[1:] if arguments is None else arguments
    return launch(work) if "--child" in given else work()


if __name__ == "__main__":
    sys.exit(main())
