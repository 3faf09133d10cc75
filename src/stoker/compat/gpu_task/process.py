"""Messages between a script and the process that runs its engine."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from stoker.core.errors import StokerError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Those that the scheduler passes on, and that wait until they can be heard."""


class Instance(NamedTuple):
    """One test instance that is to be run."""

    place: int
    """In the order of the configuration."""
    text: str
    """As the logs call it."""
    folder: str
    words: tuple[str, ...]
    """The command of its process."""
    log: str
    """Where its output goes."""


class RunRequest(NamedTuple):
    """All that is to be done."""

    label: str
    """Whose instances they are, for people."""
    slots: tuple[str, ...]
    """GPU entries, as CUDA_VISIBLE_DEVICES has them."""
    rounds: Sequence[Sequence[Instance]]
    """Instances that may run side by side; those that share a folder are in different rounds."""


class Note(NamedTuple):
    """A line for the scheduler's log."""

    at: float
    slot: str
    deed: str
    """`receives` or `finishes`."""
    instance: Instance


class Failure(NamedTuple):
    """An instance that did not succeed."""

    text: str
    folder: str
    outcome: str
    """How it ended, in words."""
    log: str
    last_line: str
    """The last that it said."""


class Ending(NamedTuple):
    """How it went."""

    failures: tuple[Failure, ...]
    left: tuple[str, ...]
    """Folders of instances that were not started, because somebody stopped it."""
    elsewhere: tuple[str, ...]
    """Folders of instances that another run has in hand."""
    stopped_by: int
    """The signal that stopped it, 0 where none did."""


class Refusal(NamedTuple):
    """Why it could not be done at all."""

    message: str
    hint: str


Message = str | Note | Ending | Refusal
"""A sentence for people, or something that happened."""

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    # The forkserver starts while the rest is imported.
    "from stoker.runner.forkserver_client import Forkserver; forkserver = Forkserver(); "
    "from stoker.compat.gpu_task.engine import main; main(forkserver)"
)

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])


class Relay:
    """Passes signals on to a process while it is there, instead of having them end ours; in the main thread only.

    The process must then not hear them itself: it has a session of its own. In another thread nothing can be passed
    on, and it stays in our group, so that it hears Ctrl-C as we do.
    """

    def __init__(self) -> None:
        self.possible = threading.current_thread() is threading.main_thread()
        self.caught: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Relay:
        for number in SIGNALS if self.possible else ():
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def aim(self, process: subprocess.Popen[bytes]) -> None:
        """From now on this is the process, also for what came before."""
        self._process = process
        for number in self.caught:
            process.send_signal(number)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self.caught.append(number)
        if self._process is not None:
            self._process.send_signal(number)


def carry_out(
    run_request: RunRequest, note: Callable[[Note], None], say: Callable[[str], None], relay: Relay
) -> Ending:
    """Have the errand done; returns when nothing of it runs any more."""
    with _started(apart=relay.possible) as process:
        try:
            relay.aim(process)
            return _listen(process, run_request, note, say)
        except BaseException:
            process.terminate()
            raise


def _started(*, apart: bool) -> subprocess.Popen[bytes]:
    """The process; it inherits a block of signals, and hears what came meanwhile when it is ready for it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, _PACKAGE_PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=_errors(),
            start_new_session=apart,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _errors() -> int | None:
    """Our standard error; where the script has none, a file that was opened later may have its number."""
    try:
        ours = os.get_inheritable(2)
    except OSError:
        ours = False
    return None if ours else subprocess.DEVNULL


def _listen(
    process: subprocess.Popen[bytes], run_request: RunRequest, note: Callable[[Note], None], say: Callable[[str], None]
) -> Ending:
    for message in _messages(process, run_request):
        match message:
            case Note():
                note(message)
            case Ending():
                return message
            case Refusal():
                raise StokerError(message.message, message.hint)
            case str():
                say(message)
    raise StokerError(
        "the process that runs the instances was killed; those that had started go on",
        "call start() again: it waits for them and runs the others",
    )


def _messages(process: subprocess.Popen[bytes], run_request: RunRequest) -> Iterator[object]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(run_request, process.stdin)
        process.stdin.flush()  # it stays open: its end tells the process that we are gone
        while True:
            yield pickle.load(process.stdout)  # noqa: S301
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        return
