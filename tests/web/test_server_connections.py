"""The bounds for programs without a token."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import pytest
import uvicorn

from stoker.web import server as connections
from stoker.web.server import BoundedConnection, LoopErrors
from support.wait import PATIENCE_SECONDS

HALF = b"GET / HTTP/1.1\r\nHost: 127"
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def answer(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def serving() -> AsyncIterator[int]:
    """The port of a server whose connections are bounded."""
    server = uvicorn.Server(uvicorn.Config(answer, http=BoundedConnection, lifespan="off", log_level="error"))
    loop = asyncio.get_running_loop()
    config, state = server.config, server.server_state
    listener = await loop.create_server(lambda: BoundedConnection(config, state, {}), "127.0.0.1", 0)
    async with listener:
        yield listener.sockets[0].getsockname()[1]


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await asyncio.wait_for(reader.read(1000), PATIENCE_SECONDS) == b""
    except ConnectionError:
        return True


async def is_answered(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with closing(writer), suppress(ConnectionError):
        writer.write(WHOLE)
        return b"200" in await reader.read(1000)
    return False


async def send_slowly(writer: asyncio.StreamWriter) -> None:
    """Send a request that never ends, more often than the limit for a head is."""
    while True:
        writer.write(b"x")
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("sent", [b"", HALF, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"])
def test_a_half_sent_request(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """The connection is closed, although a byte comes now and then."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)

    async def run() -> None:
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            more = asyncio.create_task(send_slowly(writer))
            assert await is_closed(reader)
            more.cancel()
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("more", [HALF, b"body"])
def test_a_second_request_that_never_ends(monkeypatch: pytest.MonkeyPatch, more: bytes) -> None:
    """It has the same limit as the first; so has a body that the server does not read."""
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    first = WHOLE if more == HALF else WHOLE[:-2] + b"Content-Length: 999\r\n\r\n"

    async def run() -> None:
        async with serving() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(first)
            assert b"200" in await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE_SECONDS)
            writer.write(more)
            assert await is_closed(reader)
            writer.close()

    asyncio.run(run())


def test_too_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond the limit are closed at once; when one ends, there is room for another."""
    monkeypatch.setattr(BoundedConnection, "most", 3)

    async def run() -> None:
        async with serving() as port:
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for _ in range(5):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                assert await is_closed(reader)
                writer.close()
            reader, writer = held[0]
            writer.write(WHOLE)
            assert b"200" in await asyncio.wait_for(reader.readuntil(b"ok"), PATIENCE_SECONDS)
            for _, writer in held:
                writer.close()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await is_answered(port):
                    pass

    asyncio.run(run())


def test_a_shortage_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Each failed accept would print a traceback, thousands in a second."""
    loop = asyncio.new_event_loop()
    complaints = LoopErrors()
    for _ in range(1000):
        complaints(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
    loop.close()
    assert capsys.readouterr().err == "stoker: cannot accept connections: Too many open files\n"
