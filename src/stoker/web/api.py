"""The HTTP API under /api/v1: the view models of the screens as JSON."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator
from functools import wraps

import anyio.to_thread
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stoker import __version__
from stoker.core.errors import NoSuchJob, StokerError, UsageError
from stoker.core.job import Job
from stoker.core.text import printable, text_for_json
from stoker.core.units import parse_since
from stoker.queue.gpu_view import gpus_of, known_devices
from stoker.queue.job_log import LARGEST as LARGEST_PART
from stoker.queue.job_log import Stream, read_log
from stoker.queue.job_series import series_of
from stoker.queue.job_view import SelectedJobs, read_jobs
from stoker.queue.jobs_page import LINES, history_page, jobs_page
from stoker.queue.knowledge import Knowledge, known
from stoker.queue.samples import read_samples
from stoker.queue.select import ENDED_STATES, find, parse_filter
from stoker.queue.sweep_page import read_sweep_page
from stoker.queue.sweep_view import read_sweeps
from stoker.queue.timeline import read_timeline
from stoker.queue.usage import read_usage
from stoker.queue.view_builder import status_of
from stoker.queue.view_text import LocalZone
from stoker.store.filters import Filter, Scope
from stoker.store.paths import Paths, host_name
from stoker.store.queries import Period
from stoker.store.reader import Reader
from stoker.store.writer import Store, open_existing
from stoker.web.actions import LARGEST as LARGEST_BODY
from stoker.web.actions import carry_out, parse_action
from stoker.web.answers import answer, failure

SESSION = "stoker.session/1"
HOURS = 2.0
"""Hours of curves, and of the timeline, if the page does not ask for others."""
LONGEST_TEXT = 1000
MOST_PAGES = 10**9
_LABEL = r"(?a)\d{1,18}(\.\d{1,18})?"
_TASKS = r"(?a)(\d{1,18})\.\[(\d{1,18})[0-9,:…-]*\]"
Endpoint = Callable[[Request], Response]


class Session(Struct, frozen=True):
    """What the page has to know of the server: `/api/v1/session`."""

    schema: str
    host: str
    user: str
    version: str
    simulated: bool
    readonly: bool


class Service(Struct, frozen=True):
    """The queue that a server shows."""

    paths: Paths
    user: str
    sim: str | None = None
    """As typed with --sim; None for real GPUs."""
    readonly: bool = False
    started: float = 0.0
    """Unix time; links from before are not valid."""

    @property
    def simulated(self) -> bool:
        return bool(self.sim)

    def known(self) -> contextlib.AbstractContextManager[Knowledge]:
        return known(self.paths, simulated=self.simulated)


def routes(service: Service) -> list[BaseRoute]:
    api = Api(service)
    reads: dict[str, Endpoint] = {
        "session": api.session,
        "status": api.status,
        "jobs": api.jobs,
        "jobs/{label}": api.job,
        "jobs/{label}/log": api.log,
        "jobs/{label}/series": api.series,
        "gpus": api.gpus,
        "gpus/samples": api.samples,
        "timeline": api.timeline,
        "history": api.history,
        "usage": api.usage,
        "sweeps": api.sweeps,
        "sweeps/{sweep}": api.sweep,
    }
    return [
        *(Route(f"/api/v1/{path}", _explained(endpoint), methods=["GET"]) for path, endpoint in reads.items()),
        Route("/api/v1/actions", api.act, methods=["POST"]),
    ]


def _explained(endpoint: Endpoint) -> Endpoint:
    """Answer errors that a user can meet as JSON. Starlette runs the function in a thread."""

    @wraps(endpoint)
    def explained(request: Request) -> Response:
        try:
            return endpoint(request)
        except StokerError as error:
            return failure(error)

    return explained


class Api:
    """The answers for one queue."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._paths = service.paths
        self._simulated = service.simulated

    def session(self, _request: Request) -> Response:
        one = self._service
        host, user = text_for_json(host_name()), text_for_json(one.user)
        return answer(Session(SESSION, host, user, __version__, one.simulated, one.readonly))

    def status(self, _request: Request) -> Response:
        with self._service.known() as knowledge:
            return answer(status_of(knowledge, host_name(), LINES))

    def jobs(self, request: Request) -> Response:
        chosen, scope = jobs_filter(request)
        sort, page = request.query_params.get("sort", ""), _page(request)
        each_task = request.query_params.get("tasks") == "each"
        with self._service.known() as knowledge:
            return answer(jobs_page(knowledge, chosen, scope, sort=sort, page=page, each_task=each_task))

    def job(self, request: Request) -> Response:
        found = read_jobs(self._paths, [_label(request)], simulated=self._simulated, environment=True)
        return answer(_one_job(found))

    def log(self, request: Request) -> Response:
        attempt = _number(request, "attempt", 0, least=0)
        stream: Stream = "err" if request.query_params.get("stream") == "err" else "out"
        offset, limit = _number(request, "offset", 0), _number(request, "limit", LARGEST_PART, least=0)
        with self._opened() as store:
            job = _find(store, _label(request))
            part = read_log(store, job, attempt=attempt or None, stream=stream, offset=offset, limit=limit)
        return answer(part)

    def series(self, request: Request) -> Response:
        with self._service.known() as knowledge:
            job = _find(knowledge.store, _label(request))
            return answer(series_of(job, knowledge, self._paths))

    def gpus(self, _request: Request) -> Response:
        with known_devices(self._paths, simulated=self._simulated) as knowledge:
            return answer(gpus_of(knowledge))

    def samples(self, request: Request) -> Response:
        since = time.time() - 3600 * _hours(request)
        return answer(read_samples(self._paths, since, simulated=self._simulated))

    def timeline(self, request: Request) -> Response:
        since = _moment(request, "since") or time.time() - 3600 * HOURS
        until = _moment(request, "until")
        if until is not None and until <= since:
            raise UsageError("the period ends before it begins", "give an earlier since or a later until")
        return answer(read_timeline(self._paths, Period(since), until, simulated=self._simulated))

    def history(self, request: Request) -> Response:
        period = Period(_moment(request, "since") or 0.0, _filter(request, ENDED_STATES))
        return answer(history_page(self._paths, period, _page(request)))

    def usage(self, request: Request) -> Response:
        return answer(read_usage(self._paths, Period(_moment(request, "since") or 0.0), simulated=self._simulated))

    def sweeps(self, _request: Request) -> Response:
        return answer(read_sweeps(self._paths))

    def sweep(self, request: Request) -> Response:
        word = _sweep_id(request)
        return answer(read_sweep_page(self._paths, word, _page(request), simulated=self._simulated))

    async def act(self, request: Request) -> Response:
        """Carry out an action; the guard has refused requests of other sites, and all if the server is read-only."""
        try:
            action = parse_action(await _body(request))
            return answer(await anyio.to_thread.run_sync(carry_out, self._paths, self._service.sim, action))
        except StokerError as error:
            return failure(error)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Store]:
        with contextlib.closing(open_existing(self._paths)) as store:
            yield store


# -- what a request asks for -----------------------------------------------------------------------


async def _body(request: Request) -> bytes:
    """The body, if it is JSON and not too long; a page of another site cannot send this type without asking."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise UsageError("the body must be JSON", "send it with Content-Type: application/json")
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > LARGEST_BODY:
                raise UsageError("the request is too long", "name fewer jobs at once")
    except ClientDisconnect:
        raise UsageError("the request ended early", "send it again") from None
    return bytes(body)


def _label(request: Request) -> str:
    """A job by its label; a line of several tasks stands for the first of them."""
    text = request.path_params["label"]
    if tasks := re.fullmatch(_TASKS, text):
        return f"{tasks[1]}.{tasks[2]}"
    if not re.fullmatch(_LABEL, text):
        raise NoSuchJob(f"{printable(text[:40])!r} is not the label of a job", "list jobs with /api/v1/jobs")
    return str(text)


def _sweep_id(request: Request) -> str:
    text = request.path_params["sweep"]
    if not re.fullmatch(r"(?a)\d{1,18}", text):
        raise NoSuchJob(f"{printable(text[:40])!r} is not the id of a sweep", "list sweeps with /api/v1/sweeps")
    return str(text)


def _find(store: Reader, label: str) -> Job:
    """The job, or the first task of an array."""
    assert isinstance(store, Store)
    job = store.job(find(store, [label])[0])
    assert job is not None
    return job


def _one_job(found: SelectedJobs) -> SelectedJobs:
    """The first job, with the names of its variables and without their values."""
    first = found.jobs[0]
    names = dict.fromkeys(first.environment or {}, "")
    return replace(found, jobs=[replace(first, environment=names)])


def jobs_filter(request: Request) -> tuple[Filter, Scope]:
    """Which jobs are wanted, and whether those are open, ended, or both."""
    wanted = request.query_params.get("state", "")
    if wanted == "all":
        return _filter(request, ()), "any"
    chosen = _filter(request)
    ended = [word in ENDED_STATES for word in chosen.states]
    return chosen, "open" if not any(ended) else "ended" if all(ended) else "any"


def _filter(request: Request, known_states: tuple[str, ...] | None = None) -> Filter:
    """The filter of a request; `known_states` are those that it may name, empty for none."""
    given = request.query_params
    states = [] if known_states == () or not given.get("state") else [given["state"]]
    group = _text(request, "group")
    chosen = parse_filter(groups=[_literal(group)] if group else [], states=states)
    if known_states and (other := [word for word in chosen.states if word not in known_states]):
        raise UsageError(f"no ended job is {other[0]}", f"known states: {', '.join(known_states)}")
    text = _text(request, "search").strip()
    return chosen._replace(text=text) if text else chosen


def _text(request: Request, name: str) -> str:
    """A text to look for; SQLite reads it up to a NUL, and takes no endless pattern."""
    text = request.query_params.get(name, "")
    if len(text) > LONGEST_TEXT or "\0" in text:
        raise UsageError(f"{name} is too long, or contains a NUL", f"give at most {LONGEST_TEXT} characters")
    return text


def _literal(text: str) -> str:
    """A text as a pattern that matches only itself."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def _page(request: Request) -> int:
    return _number(request, "page", 1, least=1, most=MOST_PAGES)


def _number(request: Request, name: str, default: int, least: int = -(2**62), most: int = 2**62) -> int:
    text = request.query_params.get(name) or str(default)
    if not re.fullmatch(r"(?a)-?\d{1,18}", text) or not least <= int(text) <= most:
        raise UsageError(
            f"{name}={printable(text[:40])} is not a number that fits", f"give {name}={default}, for example"
        )
    return int(text)


def _hours(request: Request) -> float:
    text = request.query_params.get("hours") or str(HOURS)
    with contextlib.suppress(ValueError):
        if 0 < (hours := float(text)) <= 24 * 366:
            return hours
    raise UsageError(f"hours={printable(text[:40])} is not a number of hours", "give hours=2, for example")


def _moment(request: Request, name: str) -> float | None:
    """Unix seconds, or a time as the command line takes it: 2h, 1d, yesterday, 2026-11-15."""
    text = request.query_params.get(name, "")
    if not text:
        return None
    with contextlib.suppress(ValueError):
        if math.isfinite(seconds := float(text)) and 0 <= seconds < 2**40:
            return seconds
    return parse_since(text, time.time(), LocalZone())
