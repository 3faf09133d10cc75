"""The job from its command line to its exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from stoker.core.errors import StokerError
from stoker.simjob.gpus import Died, Gpus
from stoker.simjob.options import Options, parse
from stoker.simjob.training import train

if TYPE_CHECKING:
    from types import FrameType

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
    from stoker.simjob.worker import launch

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
        _write(f"{death}\n".encode(), in_pieces=options.split_oom)
        return 1
    except StokerError as error:
        return _told(error)
    return options.fail


def _told(error: StokerError) -> int:
    print(f"simjob: {error.message}; {error.hint}", file=sys.stderr)
    return error.exit_code


def _write(text: bytes, *, in_pieces: bool) -> None:
    """Write to standard error, at once or as programs do that write words one by one."""
    size = _PIECE if in_pieces else len(text)
    for start in range(0, len(text), size):
        os.write(sys.stderr.fileno(), text[start : start + size])
        if in_pieces:
            time.sleep(_SECONDS_BETWEEN_PIECES)


def _terminate(number: int, frame: FrameType | None) -> None:
    # A second TERM must not interrupt the saving that the first one asked for.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated
