"""Start `stoker` as a fork of a process that has imported it: a command then costs a fifth of its CPU time.

Such a command is a process of its own, with its own arguments, environment, directory and streams; so is an engine that
it starts. What it does not have is a program of its own in /proc. A test of the start itself runs PROGRAM of
support.cli; so do all tests that change a variable that the interpreter or the loader reads, and the tests as an
ordinary user.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import inspect
import os
import pickle
import pkgutil
import re
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

READ_AT_START = re.compile("PYTHON|LC_|LANG|LD_|TZ|GLIBC|MALLOC|_STOKER_COMPLETE")
"""Variables that count when a program starts, and not later."""
PROGRAM = str(Path(sys.executable).parent / "stoker")
MODULE = (sys.executable, "-P", "-m", "stoker")
STATUS = struct.Struct("i")
LENGTH = struct.Struct("I")
END_SECONDS = 60.0
MOST_DESCRIPTORS = 8
ABOVE_ALL = 200
"""Descriptors from here on collide with no number that a command asks for."""
PACKAGES = ("stoker.cli.commands", "stoker.cli.screens", "stoker.app", "stoker.store", "stoker.engine")
_Popen = subprocess.Popen


class Request(NamedTuple):
    """A command to start; without words, a question for the daemons that have this environment's state directory."""

    words: list[bytes]
    environment: dict[bytes, bytes]
    directory: bytes = b"."
    umask: int = -1
    daemon: bool = False
    numbers: tuple[int, ...] = ()
    """Of the descriptors that it gets."""


class Forked(_Popen[bytes]):
    """A command that the template process starts, and whose end it reports; of any other program an ordinary one."""

    _report: socket.socket | None = None

    def _execute_child(self, *arguments: Any) -> None:
        given = inspect.signature(_Popen._execute_child).bind(self, *arguments).arguments  # type: ignore[attr-defined]
        environment = os.environ if given["env"] is None else given["env"]
        if not can_fork(environment, given["args"]):
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        streams = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        descriptors = {number: number if stream == -1 else stream for number, stream in enumerate(streams)}
        descriptors |= {number: number for number in given["pass_fds"]}
        request = Request(
            [os.fsencode(word) for word in given["args"]],
            {os.fsencode(name): os.fsencode(value) for name, value in environment.items()},
            os.fsencode(given["cwd"] or "."),
            given["umask"],
            given["start_new_session"],
            tuple(descriptors),
        )
        self._report = _asked(request, list(descriptors.values()))
        self.pid = STATUS.unpack(_receive(self._report, STATUS.size))[0]
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]

    def _internal_poll(self, *arguments: Any, **named: Any) -> int | None:
        if self._report is None:
            return super()._internal_poll(*arguments, **named)  # type: ignore[misc, no-any-return]
        if self.returncode is None and self._has_ended():
            self._handle_exitstatus(self._try_wait(os.WNOHANG)[1])  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """As waitpid."""
        if self._report is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc, no-any-return]
        if wait_flags and not self._has_ended():
            return 0, 0
        told = self._report.recv(STATUS.size)
        return self.pid, STATUS.unpack(told)[0] if told else signal.SIGKILL

    def _has_ended(self) -> bool:
        with selectors.DefaultSelector() as selector:
            assert self._report is not None
            selector.register(self._report, selectors.EVENT_READ)
            return bool(selector.select(0))

    def __del__(self, *arguments: Any, **named: Any) -> None:
        super().__del__(*arguments, **named)
        if self._report is not None:
            self._report.close()


def can_fork(environment: Mapping[str, str], words: Sequence[str | bytes] = (PROGRAM,)) -> bool:
    """Whether it is a command of `stoker` that would start with this environment as the template process did."""
    ours = words[0] == PROGRAM or tuple(words[: len(MODULE)]) == MODULE
    return ours and "STOKER_TEST_PROGRAM" not in os.environ and _at_start(environment) == _at_start(os.environ)


def forked_daemons(state: str) -> list[int]:
    """The engines of a state directory that live as forks; /proc does not have their environment."""
    with _asked(Request([], {b"STOKER_STATE": os.fsencode(state)}), []) as answers:
        (count,) = STATUS.unpack(_receive(answers, STATUS.size))
        return [STATUS.unpack(_receive(answers, STATUS.size))[0] for _ in range(count)]


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if READ_AT_START.match(name)}


def _asked(request: Request, descriptors: Sequence[int]) -> socket.socket:
    """A connection to the template process, from which its answer comes, and later the end of the command."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_template.address())
    text = pickle.dumps(tuple(request))
    socket.send_fds(connection, [LENGTH.pack(len(text))], descriptors)
    connection.sendall(text)
    return connection


class _Template:
    """The process that has imported `stoker`; it ends with this one."""

    def __init__(self) -> None:
        self._address = ""
        self._lock = threading.Lock()

    def address(self) -> str:
        """Where it listens; it is started when it is first needed."""
        with self._lock:
            if not self._address:
                self._start(f"\0stoker-template-{os.getpid()}")
        return self._address

    def _start(self, address: str) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(100)
            words = [sys.executable, "-P", __file__, str(listener.fileno())]
            # A test that is the first to need it must not end it with the processes of its own queue.
            environment = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
            process = _Popen(words, stdin=subprocess.PIPE, pass_fds=[listener.fileno()], env=environment)
        atexit.register(process.communicate, timeout=END_SECONDS)
        self._address = address

    def remember(self, address: str) -> None:
        """In a process that it has forked: it exists."""
        self._address = address


_template = _Template()


def _receive(connection: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        part = connection.recv(size - len(text))
        if not part:
            raise EOFError
        text += part
    return text


# -- the template process -------------------------------------------------------------------------


class _Child(NamedTuple):
    pid: int
    report: socket.socket
    state: bytes
    """The state directory of a daemon, empty of other commands."""


def serve(listener: socket.socket) -> None:
    """Fork for each request, and report ends. Returns in each child, with a few descriptors that exec closes."""
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(0, selectors.EVENT_READ)
    children: dict[int, _Child] = {}
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                _end_all(children.values())
            elif key.fd in children:
                selector.unregister(key.fd)
                _report_end(children.pop(key.fd))
                os.close(key.fd)
            elif (asked := _read_request(listener.accept()[0])) is not None and asked.request.words:
                pid = os.fork()
                if not pid:
                    selector.close()
                    for own in (listener, asked.connection, *(child.report for child in children.values())):
                        own.close()
                    _become(asked.request, asked.descriptors)
                    return
                pidfd = os.pidfd_open(pid)
                children[pidfd] = _started(asked, pid)
                selector.register(pidfd, selectors.EVENT_READ)
            elif asked is not None:
                _answer_daemons(asked, children.values())


class _Asked(NamedTuple):
    request: Request
    descriptors: list[int]
    connection: socket.socket

    @property
    def state(self) -> bytes:
        return self.request.environment.get(b"STOKER_STATE", b"")


def _started(asked: _Asked, pid: int) -> _Child:
    for descriptor in asked.descriptors:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # whoever asked was killed meanwhile
        asked.connection.sendall(STATUS.pack(pid))
    return _Child(pid, asked.connection, asked.state if asked.request.daemon else b"")


def _report_end(child: _Child) -> None:
    with contextlib.suppress(OSError), child.report:  # the test may have forgotten the command
        child.report.sendall(STATUS.pack(os.waitpid(child.pid, os.WNOHANG)[1]))


def _answer_daemons(asked: _Asked, children: Collection[_Child]) -> None:
    daemons = [child.pid for child in children if child.state == asked.state]
    with contextlib.suppress(OSError), asked.connection:
        asked.connection.sendall(b"".join(STATUS.pack(number) for number in (len(daemons), *daemons)))


def _end_all(children: Collection[_Child]) -> NoReturn:
    for child in children:
        os.kill(child.pid, signal.SIGKILL)  # not reaped yet, so the number is its own
    os._exit(0)


def _read_request(connection: socket.socket) -> _Asked | None:
    """The request of a connection; None if whoever asked was killed meanwhile."""
    try:
        head, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, MOST_DESCRIPTORS)
        text = _receive(connection, LENGTH.unpack(head)[0]) if head else b""
    except (OSError, EOFError):
        text = b""
    if not text:
        connection.close()
        return None
    return _Asked(Request(*pickle.loads(text)), descriptors, connection)


def _become(request: Request, descriptors: Sequence[int]) -> None:
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, ABOVE_ALL) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    for descriptor, number in zip(moved, request.numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if request.daemon:
        os.setsid()
    if request.umask >= 0:
        os.umask(request.umask)
    os.chdir(request.directory)
    os.environb.clear()
    os.environb.update(request.environment)
    sys.argv = [os.fsdecode(word) for word in request.words]
    if tuple(sys.argv[: len(MODULE)]) == MODULE:
        sys.argv[: len(MODULE)] = [PROGRAM]


if __name__ == "__main__":
    from stoker.cli import main

    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()
    listener = socket.socket(fileno=int(sys.argv[1]))
    _template.remember(os.fsdecode(listener.getsockname()))
    serve(listener)
    subprocess.Popen = Forked  # type: ignore[assignment, misc]
    main()
