"""The scheduler's side of the process that runs its instances: started, listened to, told of signals, outlived."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from stoker.compat.gpu_task.errand import SIGNALS, Ending, Errand, Note, Refusal
from stoker.core.errors import StokerError

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from stoker.backends.forking import Forkserver; forkserver = Forkserver(); "  # starts while the rest is imported
    "from stoker.compat.gpu_task.room import main; main(forkserver)"
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


def carry_out(errand: Errand, note: Callable[[Note], None], say: Callable[[str], None], relay: Relay) -> Ending:
    """Have the errand done; returns when nothing of it runs any more."""
    with _started(apart=relay.possible) as process:
        try:
            relay.aim(process)
            return _listen(process, errand, note, say)
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
    process: subprocess.Popen[bytes], errand: Errand, note: Callable[[Note], None], say: Callable[[str], None]
) -> Ending:
    for message in _messages(process, errand):
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


def _messages(process: subprocess.Popen[bytes], errand: Errand) -> Iterator[object]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(errand, process.stdin)
        process.stdin.flush()  # it stays open: its end tells the process that we are gone
        while True:
            yield pickle.load(process.stdout)  # noqa: S301
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        return
