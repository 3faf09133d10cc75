"""The script's side of the process that runs its instances: messages, signals, start and end."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from stoker.core.errors import StokerError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the script passes on to the process."""


class Instance(NamedTuple):
    """One test instance to run."""

    place: int
    """In the order of the configuration."""
    text: str
    """Its name in the logs."""
    folder: str
    words: tuple[str, ...]
    """The command of its process."""
    log: str


class RunRequest(NamedTuple):
    """All that the process has to do."""

    label: str
    """The batch as users see it."""
    slots: tuple[str, ...]
    """GPU entries, as values of CUDA_VISIBLE_DEVICES."""
    instances: Sequence[Instance]
    cluster: str = ""
    """Name of the cluster that they run on; empty is this machine."""


class Note(NamedTuple):
    """A line for the scheduler's log: at a moment, an instance is received or finished on a slot."""

    at: float
    slot: str
    verb: str
    instance: Instance


class InstanceFailure(NamedTuple):
    """An instance that did not succeed."""

    text: str
    folder: str
    outcome: str
    log: str
    last_line: str
    """Of its log."""


class InstanceResult(NamedTuple):
    """How the run ended; the last message."""

    failures: tuple[InstanceFailure, ...] = ()
    left: tuple[Instance, ...] = ()
    """Not started, because a signal stopped the run."""
    elsewhere: tuple[Instance, ...] = ()
    """Not started, because another scheduler runs them."""
    stopped_by: int = 0
    """A signal, or 0."""


Message = str | Note | InstanceResult | StokerError
"""A line of the process: a sentence for the user, an event, or the end."""

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    # The forkserver starts while the rest is imported.
    "from stoker.runner.forkserver_client import Forkserver; forkserver = Forkserver(); "
    "from stoker.features.compat.gpu_task.engine import main; main(forkserver)"
)

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])


class SignalRelay:
    """Passes signals to the process instead of letting them end the script; in the main thread only.

    There the process has a session of its own, so that it does not get Ctrl-C twice. In another thread no signal
    handler can be set; the process stays in the group of the script and gets Ctrl-C from the terminal.
    """

    def __init__(self) -> None:
        self.possible = threading.current_thread() is threading.main_thread()
        self.caught: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalRelay:
        for signal_number in SIGNALS if self.possible else ():
            if signal.getsignal(signal_number) not in (signal.SIG_IGN, None):
                self._before[signal_number] = signal.signal(signal_number, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        for signal_number, handler in self._before.items():
            signal.signal(signal_number, handler)

    def connect(self, process: subprocess.Popen[bytes]) -> None:
        """Send the process the signals that were caught so far, and all later ones."""
        self._process = process
        for signal_number in self.caught:
            process.send_signal(signal_number)

    def _pass_on(self, signal_number: int, _: FrameType | None) -> None:
        self.caught.append(signal_number)
        if self._process is not None:
            self._process.send_signal(signal_number)


def run_instances(
    request: RunRequest, on_note: Callable[[Note], None], say: Callable[[str], None], relay: SignalRelay
) -> InstanceResult:
    """Returns when no instance runs any more."""
    with _started(own_session=relay.possible) as process:
        try:
            relay.connect(process)
            for message in _messages(process, request):
                match message:
                    case Note():
                        on_note(message)
                    case InstanceResult():
                        return message
                    case StokerError():
                        raise message
                    case str():
                        say(message)
        except BaseException:
            process.terminate()
            raise
    raise StokerError(
        "the process that runs the instances was killed; started instances continue",
        "call start() again to wait for them and run the others",
    )


def _started(*, own_session: bool) -> subprocess.Popen[bytes]:
    """The process inherits blocked signals, and gets those that came meanwhile when it unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, _PACKAGE_PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=_standard_error(),
            start_new_session=own_session,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _standard_error() -> int | None:
    """Inherited, unless the script closed it and another file has its number."""
    try:
        return None if os.get_inheritable(2) else subprocess.DEVNULL
    except OSError:
        return subprocess.DEVNULL


def _messages(process: subprocess.Popen[bytes], request: RunRequest) -> Iterator[object]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(request, process.stdin)
        process.stdin.flush()  # it stays open: when it closes, the process knows that the script is gone
        while True:
            yield pickle.load(process.stdout)  # noqa: S301
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        return
