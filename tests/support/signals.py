"""Signals as a shell gives them to what is typed, however the tests themselves were started."""

from __future__ import annotations

import signal

_OFTEN_IGNORED = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)


def reset_for_children() -> None:
    """Give the programs that this process starts no ignored and no blocked signals.

    Under nohup, from cron or in the background of a script some signals are ignored, and programs inherit that.
    A signal that is ignored here stays without effect here, by a handler that does nothing, because handlers are not
    inherited. Only SIGINT becomes KeyboardInterrupt again, since some tests send it to themselves.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in _OFTEN_IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
