"""Run the server on the loopback interface or on a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from sse_starlette.sse import AppStatus

from stoker.core.errors import StokerError
from stoker.store.decoders import prepare_decoders
from stoker.store.paths import Paths
from stoker.store.web_server import WebLock, WebServer, last_address
from stoker.web.api import ServedQueue
from stoker.web.app import application
from stoker.web.connections import BoundedConnection, LoopErrors, most_connections
from stoker.web.feed import Broadcast

ADDRESS = "127.0.0.1"
PORT = 7717
TRIES = 50
"""Ports that are tried, from the usual one on: other users of the machine have their own servers."""
BACKLOG = 128
GRACE_SECONDS = 1


@contextlib.contextmanager
def listening(paths: Paths, port: int | None, path: str | None) -> Iterator[tuple[socket.socket, str]]:
    """A socket that listens, and its address: `http://127.0.0.1:7717`, or the path of a Unix socket."""
    if path is not None:
        with _at_path(Path(path).absolute()) as made:
            yield made, str(Path(path).absolute())
        return
    with contextlib.closing(_at_port(port) if port is not None else _at_any_port(paths)) as made:
        yield made, f"http://{ADDRESS}:{made.getsockname()[1]}"


def serve(service: ServedQueue, token: str, listener: socket.socket, address: str, lock: WebLock) -> None:
    """Serve until a signal ends it."""
    broadcast = Broadcast(service.paths)
    prepare_decoders()  # requests are answered in threads
    BoundedConnection.most = most_connections()
    config = uvicorn.Config(
        application(service, token, broadcast),
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_level="error",  # a warning can be caused without a token, any number of times
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    lock.announce(WebServer(os.getpid(), address, service.readonly))
    AppStatus.enable_automatic_graceful_drain = False  # the server ends the streams itself
    server = _Server(config, broadcast)
    for number in (signal.SIGTERM, signal.SIGHUP):  # uvicorn ends the server, and then raises the signal once more
        signal.signal(number, server.handle_exit)
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends the events of all browsers before it waits for the last answers."""

    def __init__(self, config: uvicorn.Config, broadcast: Broadcast) -> None:
        super().__init__(config)
        self._broadcast = broadcast

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(LoopErrors())
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._broadcast.close()
        await super().shutdown(sockets)


def _at_any_port(paths: Paths) -> socket.socket:
    """The port of the last server, so that links stay valid; else the first free one."""
    known = last_address(paths).rpartition(":")[2]
    last = [int(known)] if known.isdecimal() else []
    for port in (*last, *range(PORT, PORT + TRIES)):
        with contextlib.suppress(StokerError):
            return _at_port(port)
    raise StokerError(
        f"no port from {PORT} to {PORT + TRIES - 1} is free", "choose another one: stoker web --port 8800"
    )


def _at_port(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((ADDRESS, port))
        made.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        made.close()
        used = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "another program uses it" if used else str(error)
        raise StokerError(f"cannot listen on port {port}: {why}", "leave out --port to take a free one") from error
    return made


@contextlib.contextmanager
def _at_path(path: Path) -> Iterator[socket.socket]:
    """A Unix socket that only this user can connect to; one that a killed server left is replaced."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as made:
        mask = os.umask(0o177)  # before it exists, since others could connect before a chmod
        try:
            _remove_left(path)
            made.bind(str(path))
        except OSError as error:
            raise StokerError(f"cannot listen on {path}: {error.strerror or error}", "give another path") from error
        finally:
            os.umask(mask)
        try:
            made.listen(BACKLOG)
            yield made
        finally:
            path.unlink(missing_ok=True)


def _remove_left(path: Path) -> None:
    """Remove a socket on which no process listens."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
        raise StokerError(f"{path} exists, and is not a socket of yours", "give another path")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise StokerError(f"another program listens on {path}", "give another path")
