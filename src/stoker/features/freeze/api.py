"""The code of jobs in the API of the page."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from stoker.app.views.facts import read_facts
from stoker.core.errors import NoSuchJob
from stoker.features.freeze.code_view import code_diff, compared, job_named
from stoker.web.answers import QueueService, answer

_LABEL = r"(?a)\d{1,18}(\.\d{1,18})?"


def reads(service: QueueService) -> dict[str, Callable[[Request], Response]]:
    """Paths below /api/v1 and their endpoints."""

    def diff(request: Request) -> Response:
        """The code of a job beside the present one, or beside that of the job `other`."""
        label, other = request.path_params["label"], request.query_params.get("other", "")
        for text in filter(None, (label, other)):
            if not re.fullmatch(_LABEL, text):
                raise NoSuchJob(f"no job {text}", "give the id of a job")
        with read_facts(service.paths) as facts:
            first, second = job_named(facts, label), job_named(facts, other) if other else None
            now = facts.now
        comparison = compared(service.paths, first, second, os.environ)
        return answer(code_diff(comparison, now, simulated=service.paths.is_simulated))

    return {"jobs/{label}/code": diff}
