"""The command line of the job."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from stoker.core.errors import UsageError
from stoker.core.units import parse_size
from stoker.simjob.curve import Memory, Point, Spike, parse_curve, parse_spike

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
    parser = argparse.ArgumentParser("python -m stoker.simjob", description=about, formatter_class=_Help)
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
