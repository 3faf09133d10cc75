"""A browser for tests of the web server: requests go to the application without a network."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from stoker.web.api import ServedQueue
from stoker.web.feed import Broadcast
from stoker.web.server import application

ADDRESS = "http://127.0.0.1:7717"
TOKEN = "a-token-of-the-tests-0123456789"


class Browser:
    """Sends requests to the application of a queue, and keeps its cookies."""

    def __init__(self, service: ServedQueue, **headers: str) -> None:
        self.headers = headers
        self.cookies = httpx.Cookies()
        self._app: Any = application(service, TOKEN, Broadcast(service.paths))

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
