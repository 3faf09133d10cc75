"""Answers of the server as JSON: values of the view models, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from starlette.responses import Response

from stoker.core.errors import StokerError
from stoker.core.text import to_json
from stoker.store.paths import Paths

STATUS = {2: 400, 3: 503, 4: 404, 5: 409, 125: 503}
"""HTTP status by the exit code that the same error has on the command line."""


class QueueService(Protocol):
    """The queue that a server shows, for the routes of a feature."""

    @property
    def paths(self) -> Paths:
        """Its state directory."""


def answer(value: object) -> Response:
    return Response(to_json(value), media_type="application/json")


def error_body(error: StokerError) -> dict[str, object]:
    """An error as `--json` prints it."""
    return {"error": {"code": error.exit_code, "message": error.message, "hint": error.hint}}


def failure(error: StokerError, status: int | None = None, headers: Mapping[str, str] | None = None) -> Response:
    code = STATUS.get(error.exit_code, 500) if status is None else status
    return Response(to_json(error_body(error)), code, headers, "application/json")
