"""Sweeps in the API of the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from stoker.core.errors import NoSuchJob
from stoker.features.sweep.page import read_sweep_page
from stoker.features.sweep.view import read_sweeps
from stoker.store.paths import Paths
from stoker.web.answers import answer
from stoker.web.query import page_of


class QueueService(Protocol):
    """The queue that a server shows."""

    @property
    def paths(self) -> Paths:
        """Its state directory."""


def reads(service: QueueService) -> dict[str, Callable[[Request], Response]]:
    """Paths below /api/v1 and their endpoints."""

    def sweeps(_request: Request) -> Response:
        return answer(read_sweeps(service.paths))

    def sweep(request: Request) -> Response:
        page = page_of(request.query_params)
        return answer(read_sweep_page(service.paths, _sweep_id(request), page))

    return {"sweeps": sweeps, "sweeps/{sweep}": sweep}


def _sweep_id(request: Request) -> str:
    text = request.path_params["sweep"]
    if not re.fullmatch(r"(?a)\d{1,18}", text):
        raise NoSuchJob(f"{text[:40]!r} is not the id of a sweep", "list sweeps with /api/v1/sweeps")
    return str(text)
