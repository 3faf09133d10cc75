"""Run the server: its socket, its connections and its application."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from stoker.core.errors import StokerError
from stoker.features import load, shared_pages
from stoker.store.decoders import prepare_decoders
from stoker.store.paths import Paths
from stoker.store.web_server import OWN_PAGE, WebLock, WebServer, last_address
from stoker.web import api, metrics, page
from stoker.web.answers import failure
from stoker.web.api import ServedQueue
from stoker.web.feed import Broadcast
from stoker.web.guard import Door, Guard, TokenDoor

ADDRESS = "127.0.0.1"
PORT = 7717
TRIES = 50
"""Ports that are tried, from the usual one on: other users of the machine have their own servers."""
BACKLOG = 128
GRACE_SECONDS = 1


@contextlib.contextmanager
def listening(
    paths: Paths, port: int | None, path: str | None, page_name: str = OWN_PAGE
) -> Iterator[tuple[socket.socket, str]]:
    """A socket that listens, and its address: `http://127.0.0.1:7717`, or the path of a Unix socket.

    To the socket of the queue's own page only its user can connect, to that of a shared page all users.
    """
    if path is not None:
        with _at_path(Path(path).absolute(), 0o600 if page_name == OWN_PAGE else 0o666) as made:
            yield made, str(Path(path).absolute())
        return
    with contextlib.closing(_at_port(port) if port is not None else _at_any_port(paths, page_name)) as made:
        yield made, f"http://{ADDRESS}:{made.getsockname()[1]}"


def serve(service: ServedQueue, token: str, listener: socket.socket, address: str, lock: WebLock) -> None:
    """Serve the page of the queue until a signal ends it."""
    broadcast = Broadcast(service.paths)
    app = application(service, token, broadcast)
    serve_application(app, listener, WebServer(os.getpid(), address, service.readonly), lock, broadcast.close)


def serve_application(
    app: ASGIApp,
    listener: socket.socket,
    known_as: WebServer,
    lock: WebLock,
    end_streams: Callable[[], None] | None = None,
) -> None:
    prepare_decoders()  # requests are answered in threads
    BoundedConnection.most = most_connections()
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_level="error",  # a warning can be caused without a token, any number of times
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    lock.announce(known_as)
    AppStatus.enable_automatic_graceful_drain = False  # the server ends the streams itself
    server = _Server(config, end_streams)
    for number in (signal.SIGTERM, signal.SIGHUP):  # uvicorn ends the server, and then raises the signal once more
        signal.signal(number, server.handle_exit)
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """Ends the events of all browsers before it waits for the last answers."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(LoopErrors())
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._end_streams is not None:
            self._end_streams()
        await super().shutdown(sockets)


def _at_any_port(paths: Paths, page_name: str) -> socket.socket:
    """The port of the last server, so that links stay valid; else the first free one."""
    port_text = last_address(paths, page_name).rpartition(":")[2]
    last = [int(port_text)] if port_text.isdecimal() else []
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
def _at_path(path: Path, mode: int) -> Iterator[socket.socket]:
    """A Unix socket to which those can connect whom the mode lets; one that a killed server left is replaced."""
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as made:
        mask = os.umask(0o777 & ~mode)  # before it exists, since others could connect before a chmod
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
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
        raise StokerError(f"{path} exists, and is not a socket of yours", "give another path")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise StokerError(f"another program listens on {path}", "give another path")


# -- connections -------------------------------------------------------------------------------

HEAD_SECONDS = 10.0
"""How long a connection may be without a complete request."""
MOST_CONNECTIONS = 256
COMPLAINT_SECONDS = 60.0
"""Least seconds between two messages that files ran out."""
_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def most_connections() -> int:
    """At most half of the files that this process may open: each request opens files of its own."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 2)


class BoundedConnection(H11Protocol):
    """A connection that is closed if there are too many, or if no complete request comes in time."""

    most = MOST_CONNECTIONS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
        else:
            self._deadline = self.loop.call_later(HEAD_SECONDS, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_deadline()
        elif self._deadline is None:  # bytes of the next request, or of a body that the application does not read
            self._deadline = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class LoopErrors:
    """Handles errors of the event loop; reports a shortage of files once a minute, not at each connection."""

    def __init__(self) -> None:
        self._next = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _SHORTAGES:
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + COMPLAINT_SECONDS
            print(f"stoker: cannot accept connections: {error.strerror}", file=sys.stderr, flush=True)


# -- the application ---------------------------------------------------------------------------

HEARTBEAT_SECONDS = 10
HEARTBEAT = ServerSentEvent(comment="still here", sep="\n")


def application(service: ServedQueue, token: str, broadcast: Broadcast) -> ASGIApp:
    async def events(_request: Request) -> Response:
        return EventSourceResponse(
            broadcast.events(), ping=HEARTBEAT_SECONDS, sep="\n", ping_message_factory=lambda: HEARTBEAT
        )

    routes = [*api.routes(service), Route("/api/v1/events", events), metrics.route(service), *page.routes()]
    return Guard(_answering(routes), TokenDoor(token, service.started), readonly=service.readonly)


def shared_application(service: ServedQueue, name: str, door: Door) -> ASGIApp:
    """A page that others may read: its file, and the reads of its feature, and nothing else of the queue."""
    reads = load(shared_pages()[name].reads)(service)
    return Guard(_answering([*api.read_routes(reads, service), *page.routes(f"{name}.html")]), door, readonly=True)


def _answering(routes: list[BaseRoute]) -> ASGIApp:
    return Starlette(
        routes=routes,
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)],
        exception_handlers={HTTPException: _no_such_thing, Exception: _broken},
    )


async def _no_such_thing(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = (
        "this address does not take such requests" if error.status_code == 405 else "there is nothing at this address"
    )
    return failure(StokerError(what, "the API is under /api/v1"), error.status_code)


async def _broken(_request: Request, _error: Exception) -> Response:
    """A bug; the server prints it, and the browser need not know more."""
    return failure(StokerError("the server failed", "see what stoker web printed"), 500)
