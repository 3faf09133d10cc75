"""The application: the API, the feed of changes, the metrics and the page, behind the guard."""

from __future__ import annotations

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from stoker.core.errors import StokerError
from stoker.web import api, metrics, page
from stoker.web.answers import failure
from stoker.web.api import ServedQueue
from stoker.web.feed import Broadcast
from stoker.web.guard import Guard

HEARTBEAT_SECONDS = 10


def application(service: ServedQueue, token: str, broadcast: Broadcast) -> ASGIApp:
    async def events(_request: Request) -> Response:
        return EventSourceResponse(
            broadcast.events(), ping=HEARTBEAT_SECONDS, sep="\n", ping_message_factory=lambda: HEARTBEAT
        )

    app = Starlette(
        routes=[*api.routes(service), Route("/api/v1/events", events), metrics.route(service), *page.routes()],
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5)],
        exception_handlers={HTTPException: _no_such_thing, Exception: _broken},
    )
    return Guard(
        app, token, readonly=service.readonly, started=service.started
    )  # outermost: its headers are on every answer


HEARTBEAT = ServerSentEvent(comment="still here", sep="\n")


async def _no_such_thing(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = (
        "this address does not take such requests" if error.status_code == 405 else "there is nothing at this address"
    )
    return failure(StokerError(what, "the API is under /api/v1"), error.status_code)


async def _broken(_request: Request, _error: Exception) -> Response:
    """A bug; the server prints it, and the browser need not know more."""
    return failure(StokerError("the server failed", "see what stoker web printed"), 500)
