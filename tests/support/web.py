"""A queue with a past and browsers that look at it, without a network, for tests of the web server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from stoker.web.api import ServedQueue
from stoker.web.feed import Broadcast
from stoker.web.server import application
from support.past import PastQueue

ADDRESS = "http://127.0.0.1:7717"
TOKEN = "a-token-of-the-tests-0123456789"


class Browser:
    """Sends requests to the application of a queue, and keeps its cookies."""

    def __init__(self, service: ServedQueue, app: Any = None, **headers: str) -> None:
        """Of the queue's own page, unless another application is given."""
        self.headers = headers
        self.cookies = httpx.Cookies()
        self._app: Any = app or application(service, TOKEN, Broadcast(service.paths))

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def request(self, method: str, path: str, headers: Any = None, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=ADDRESS, cookies=self.cookies) as client:
                answer = await client.request(method, path, headers={**self.headers, **(headers or {})}, **options)
                self.cookies = client.cookies
                return answer

        return asyncio.run(send())


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PastQueue]:
    (tmp_path / "host-simulated").mkdir()
    made = PastQueue(tmp_path / "host-simulated", time.time())
    made.write_status()
    yield made
    made.close()


@pytest.fixture
def stranger(queue: PastQueue) -> Browser:
    """A browser that has not opened the link."""
    return Browser(ServedQueue(queue.paths, "tester"))


@pytest.fixture
def client(stranger: Browser) -> Browser:
    """A program that knows the token."""
    stranger.headers["Authorization"] = f"Bearer {TOKEN}"
    return stranger


def read(client: Browser, path: str) -> Any:
    """The answer to a request that succeeds."""
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(client: Browser, path: str) -> tuple[int, str]:
    """Status and message of the answer to a request that is refused."""
    answer = client.get(f"/api/v1/{path}")
    error = answer.json()["error"]
    assert error["message"]
    assert error["hint"]
    return answer.status_code, error["message"]
