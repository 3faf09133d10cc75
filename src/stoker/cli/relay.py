"""The terminal of a session: a small process passes bytes between the user's terminal and that of the session.

It is a process of its own because a turn of the engine takes longer than a keystroke may. Each side notices the death
of the other: the relay restores the user's terminal when the engine is gone, and closes the session's terminal, so that
the kernel hangs it up.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import sys
import termios
import time
import tty
from collections.abc import Sequence
from typing import NoReturn

from stoker.cli.console import to_stderr
from stoker.core.errors import UsageError

PIECE = 1 << 16
KEYS_INTERVAL = 1.0
"""Seconds within which several keystrokes are reported once."""
DRAIN_SECONDS = 1.0
"""Seconds to wait for the last output of a session whose processes have ended."""
END_SECONDS = 5.0
"""Seconds after which a relay that does not end is killed, for example one whose terminal does not take its output."""
_LOCAL = re.compile(rb"https?://(?:localhost|127\.0\.0\.1|\[::1\]):(\d{2,5})\b")
_LONGEST_ADDRESS = 64
_BEGIN, _SAY, _END = b"B", b"S", b"E"


class Relay:
    """The engine's side: the session's terminal as a path, and the relay process."""

    def __init__(self, *, forward_ports: bool) -> None:
        """`forward_ports` is whether the ssh command is shown for a port that the output names."""
        if not (os.isatty(0) and os.isatty(1)):
            raise UsageError("a session needs a terminal", "in a script use stoker run -- COMMAND, or stoker submit")
        self._before = termios.tcgetattr(0)
        master, slave = os.openpty()
        self.terminal = os.ttyname(slave)
        termios.tcsetattr(slave, termios.TCSANOW, self._before)
        copy_window_size(0, slave)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self._process: int | None = os.fork()
        if self._process == 0:
            self._control.close()
            _RelayProcess(master, slave, theirs, self._before, forward_ports=forward_ports).run()
        theirs.close()
        os.close(master)
        os.close(slave)
        self.begun = False

    def fileno(self) -> int:
        """Readable after keystrokes, and when the relay is gone."""
        return self._control.fileno()

    def begin(self) -> None:
        """Connect both terminals."""
        self.begun = True
        self._send(_BEGIN)

    def say(self, text: str) -> None:
        """Show the user a line, between the output of the session."""
        self._send(_SAY + os.fsencode(text))

    def receive(self) -> bool:
        """Read what the relay reported; False where it is gone, with the user's terminal."""
        try:
            return bool(self._control.recv(PIECE))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def end(self, lines: Sequence[str] = ()) -> None:
        """Show the rest of the output and then the lines, and restore the user's terminal."""
        if self._process is None:
            return
        told = self._send(_END + os.fsencode("".join(lines)))
        deadline = time.monotonic() + END_SECONDS
        while os.waitpid(self._process, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(self._process, signal.SIGKILL)
            time.sleep(0.002)
        self._process = None
        if self.begun:
            restore(self._before)
        if not told:
            to_stderr("".join(lines))

    def close(self) -> None:
        """End it, if that was not done."""
        self.end()
        self._control.close()

    def _send(self, message: bytes) -> bool:
        try:
            self._control.send(message)
        except OSError:  # the relay is gone, which `receive` tells
            return False
        return True


class _RelayProcess:
    """The relay's side."""

    def __init__(
        self, master: int, slave: int, control: socket.socket, before: list[object], *, forward_ports: bool
    ) -> None:
        self._master = master
        self._slave = slave
        self._control = control
        self._before = before
        self._begun = False
        self._ended = False
        self._closing = b""
        """Text to show after the output of a session that has ended."""
        self._typed = b""
        """Input that the session has not taken yet."""
        self._reported = 0.0
        self._ports = _Ports() if forward_ports else None
        self._at_line_start = True
        self._poller = select.poll()
        self._poller.register(control, select.POLLIN)

    def run(self) -> NoReturn:
        """Relay until the session or the engine ends; never return into the program that forked."""
        try:
            for number in (signal.SIGINT, signal.SIGQUIT):  # they are for the engine, while that waits
                signal.signal(number, signal.SIG_IGN)
            for number in (signal.SIGHUP, signal.SIGTERM):
                signal.signal(number, lambda *_: sys.exit())
            os.set_blocking(self._master, False)
            self._serve()
        finally:
            with contextlib.suppress(OSError, termios.error):
                if self._begun:
                    restore(self._before)
                self._write(self._closing.replace(b"\r\n", b"\n"))
            os._exit(0)

    def _serve(self) -> None:
        while not self._ended:
            for descriptor, _ in self._poller.poll():
                if descriptor == self._control.fileno():
                    self._obey()
                elif descriptor == self._master:
                    self._take_output()
                    self._pass_typed()
                else:
                    self._take_keys()
        self._drain()

    def _obey(self) -> None:
        message = self._control.recv(PIECE)
        if message == _BEGIN:
            self._begin()
        elif message.startswith(_SAY):
            self._say(message[1:])
        else:  # the end, or the engine is dead
            self._ended = True
            self._closing = message[1:]

    def _begin(self) -> None:
        self._begun = True
        tty.setraw(0, termios.TCSADRAIN)
        self._resize()
        signal.signal(signal.SIGWINCH, lambda *_: self._resize())
        self._poller.register(0, select.POLLIN)
        self._poller.register(self._master, select.POLLIN)

    def _resize(self) -> None:
        with contextlib.suppress(OSError):
            copy_window_size(0, self._slave)

    def _take_keys(self) -> None:
        try:
            keys = os.read(0, PIECE)
        except OSError:
            keys = b""
        if not keys:  # the terminal is gone
            sys.exit()
        self._typed += keys
        self._pass_typed()
        now = time.monotonic()
        if now - self._reported > KEYS_INTERVAL:
            self._reported = now
            with contextlib.suppress(OSError):
                self._control.send(b"k", socket.MSG_DONTWAIT)

    def _pass_typed(self) -> None:
        """Write what was typed; while the session takes no more, the user's terminal holds the rest."""
        if self._typed:
            with contextlib.suppress(BlockingIOError):
                self._typed = self._typed[os.write(self._master, self._typed) :]
            self._poller.modify(0, 0 if self._typed else select.POLLIN)
            self._poller.modify(self._master, select.POLLIN | (select.POLLOUT if self._typed else 0))

    def _take_output(self) -> bool:
        """Show output; False where there is none."""
        try:
            data = os.read(self._master, PIECE)
        except OSError:  # none now, or all processes have closed the terminal
            return False
        self._write(data)
        if self._ports is not None and (command := self._ports.command_for(data)) and self._at_line_start:
            self._say(command)
        return bool(data)

    def _drain(self) -> None:
        os.close(self._slave)  # without it the end of the output can be seen
        waiting = select.poll()
        waiting.register(self._master, select.POLLIN)
        while self._begun and waiting.poll(DRAIN_SECONDS * 1000) and self._take_output():
            pass
        if self._closing and not self._at_line_start:
            self._write(b"\r\n")

    def _say(self, text: bytes) -> None:
        start = b"" if self._at_line_start else b"\r\n"
        self._write(start + b"stoker: " + text + b"\r\n")

    def _write(self, data: bytes) -> None:
        self._at_line_start = data.endswith(b"\n") if data else self._at_line_start
        while data:
            data = data[os.write(1, data) :]


class _Ports:
    """Finds the ports that a server such as Jupyter names in its output, each once."""

    def __init__(self) -> None:
        self._tail = b""
        self._known: set[bytes] = set()
        self._unsaid: list[bytes] = []

    def command_for(self, data: bytes) -> bytes:
        """How to reach a new port from the user's own computer; empty where there is none, or within a line."""
        text = self._tail + data
        for port in _LOCAL.findall(text):
            if port not in self._known:
                self._known.add(port)
                self._unsaid.append(port)
        self._tail = text[-_LONGEST_ADDRESS:]
        if not self._unsaid or not data.endswith(b"\n"):
            return b""
        ports, self._unsaid = self._unsaid, []
        forwards = b" ".join(b"-L %s:localhost:%s" % (port, port) for port in ports)
        return b"to open this on your own computer: ssh " + forwards + b" " + _login()


def _login() -> bytes:
    from stoker.app.jobs.context import current_user

    return os.fsencode(f"{current_user()}@{socket.gethostname()}")


def copy_window_size(source: int, target: int) -> None:
    termios.tcsetwinsize(target, termios.tcgetwinsize(source))


def restore(before: list[object]) -> None:
    """Put the user's terminal back; also from the background, where the kernel would stop us."""
    earlier = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(termios.error):  # it is gone
        termios.tcsetattr(0, termios.TCSANOW, before)  # type: ignore[arg-type]
    signal.signal(signal.SIGTTOU, earlier)
