"""Start `stoker` as a fork of a process that has imported it: a command then costs a fifth of its CPU time.

Such a command is a process of its own, with its own arguments, environment, directory and streams. What it does not
have is a program of its own in /proc. A test of the start itself runs PROGRAM of support.cli; so do all tests that
change a variable that the interpreter or the loader reads, and the tests as an ordinary user.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

READ_AT_START = re.compile("PYTHON|LC_|LANG|LD_|TZ|GLIBC|MALLOC|_STOKER_COMPLETE")
"""Variables that count when a program starts, and not later."""
STATUS = struct.Struct("i")
LENGTH = struct.Struct("I")
PACKAGES = ("stoker.cli.commands", "stoker.cli.screens", "stoker.app", "stoker.store", "stoker.engine")


class Request(NamedTuple):
    """A command to start."""

    words: list[bytes]
    directory: bytes
    environment: dict[bytes, bytes]


class Forked(subprocess.Popen[bytes]):
    """A command that the template process starts, and whose end it reports."""

    def _execute_child(self, *arguments: Any) -> None:
        given = inspect.signature(subprocess.Popen._execute_child).bind(self, *arguments).arguments  # type: ignore[attr-defined]
        words, environment = [os.fsencode(word) for word in given["args"]], given["env"]
        variables = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        theirs = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        self._end, reports = os.pipe()
        try:
            self.pid = _template().start(Request(words, os.fsencode(given["cwd"]), variables), [*theirs, reports])
        finally:
            os.close(reports)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._has_ended():
            self._handle_exitstatus(self._try_wait(os.WNOHANG)[1])  # type: ignore[attr-defined]
        return self.returncode

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """As waitpid."""
        if wait_flags and not self._has_ended():
            return 0, 0
        told = os.read(self._end, STATUS.size)
        return self.pid, STATUS.unpack(told)[0] if told else signal.SIGKILL

    def _has_ended(self) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._end, selectors.EVENT_READ)
            return bool(selector.select(0))

    def __del__(self, *arguments: Any, **named: Any) -> None:
        if hasattr(self, "_end"):
            os.close(self._end)
        super().__del__(*arguments, **named)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a command with this environment would start as the template process did."""
    return "STOKER_TEST_PROGRAM" not in os.environ and _at_start(environment) == _at_start(os.environ)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if READ_AT_START.match(name)}


class _Template:
    """The process that has imported `stoker`; it ends with this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, "-P", __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()])

    def start(self, request: Request, descriptors: Sequence[int]) -> int:
        """Start a command with these streams; returns its process id."""
        text = pickle.dumps(tuple(request))
        socket.send_fds(self._socket, [LENGTH.pack(len(text))], descriptors)
        self._socket.sendall(text)
        return int(STATUS.unpack(_receive(self._socket, STATUS.size))[0])


@cache
def _template() -> _Template:
    return _Template()


def _receive(connection: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        part = connection.recv(size - len(text))
        if not part:
            raise EOFError
        text += part
    return text


# -- the template process -------------------------------------------------------------------------


def serve(connection: socket.socket) -> Request:
    """Fork for each request, and report ends. Returns in each child, with a few descriptors that exec closes."""
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.data is not None:
                pid, reports = key.data
                with contextlib.suppress(BrokenPipeError):  # the test has forgotten the command
                    os.write(reports, STATUS.pack(os.waitpid(pid, os.WNOHANG)[1]))
                selector.unregister(key.fd)
                os.close(key.fd)
                os.close(reports)
                continue
            head, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, 4)
            if not head:
                os._exit(0)
            request = Request(*pickle.loads(_receive(connection, LENGTH.unpack(head)[0])))
            pid = os.fork()
            if not pid:
                connection.close()
                selector.close()
                _become(request, descriptors)
                return request
            connection.sendall(STATUS.pack(pid))
            *streams, reports = descriptors
            for descriptor in streams:
                os.close(descriptor)
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, reports))


def _become(request: Request, descriptors: Sequence[int]) -> None:
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    os.chdir(request.directory)
    os.environb.clear()
    os.environb.update(request.environment)
    sys.argv = [os.fsdecode(word) for word in request.words]


if __name__ == "__main__":
    from stoker.cli import main

    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            importlib.import_module(module.name)
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))
    main()
