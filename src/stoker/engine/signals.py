"""Signals as a readable descriptor."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator, Mapping

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class SignalSocket:
    """Readable after a signal; catches signals while it is open."""

    def __init__(self, *others: signal.Signals) -> None:
        """Catches those that every engine handles, and the others."""
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)
        self._before_wakeup = signal.set_wakeup_fd(self._theirs.fileno(), warn_on_full_buffer=False)
        self._before: Mapping[int, object] = {
            signal_number: signal.signal(signal_number, lambda *_: None)
            for signal_number in (*_NUMBERS, *others)
            if not _ignored(signal_number)
        }

    def fileno(self) -> int:
        return self._ours.fileno()

    def received(self) -> Iterator[signal.Signals]:
        """The signals that came since the last call."""
        with contextlib.suppress(BlockingIOError):
            yield from map(signal.Signals, self._ours.recv(64))

    def retire(self) -> None:
        """Ignore signals from now on, also after `close`: the program is about to exit."""
        self._before = dict.fromkeys(self._before, signal.SIG_IGN)

    def close(self) -> None:
        """Restore the earlier handlers."""
        signal.set_wakeup_fd(self._before_wakeup)
        for signal_number, handler in self._before.items():
            signal.signal(signal_number, handler)  # type: ignore[arg-type]
        self._ours.close()
        self._theirs.close()


def _ignored(signal_number: signal.Signals) -> bool:
    """Whether the parent process started us with the signal ignored, as nohup does."""
    return signal_number != signal.SIGUSR1 and signal.getsignal(signal_number) is signal.SIG_IGN
