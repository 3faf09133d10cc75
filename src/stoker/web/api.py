"""The HTTP API under /api/v1: the view models of the screens as JSON."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Annotated, Literal

import anyio.to_thread
import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from stoker import __version__
from stoker.app.control.actions import cancel, hold, preempt, release
from stoker.app.control.edit import Rewriter, edit_jobs
from stoker.app.control.requests import Control
from stoker.app.control.retry import planned_retries, refuse_unfinished, retry
from stoker.app.control.sentences import SCHEMA, ChangeReport, Effect, change_results
from stoker.app.jobs.local_time import LocalZone
from stoker.app.jobs.select import find, jobs_in_order, tasks_of_line
from stoker.app.views.facts import QueueFacts, read_facts
from stoker.app.views.gpus import gpus_of, known_devices
from stoker.app.views.job_details import SelectedJobs, read_jobs
from stoker.app.views.log import LARGEST as LARGEST_PART
from stoker.app.views.log import LogFile, Stream, log_file, read_log, search_in
from stoker.app.views.pages import LINES, history_page, ids_of_pages, jobs_page
from stoker.app.views.samples import read_samples, series_of
from stoker.app.views.status import status_of
from stoker.app.views.timeline import read_timeline
from stoker.app.views.usage import read_usage
from stoker.core.errors import NoSuchJob, StokerError, UsageError
from stoker.core.job import Job
from stoker.core.outcomes import RESULTS
from stoker.core.ranges import Ranges, distinct
from stoker.core.units import parse_since
from stoker.features import FEATURES, load, shared_pages
from stoker.store.logs import blocks_of
from stoker.store.past_jobs import Period
from stoker.store.paths import Paths, host_name
from stoker.store.reader import Reader
from stoker.store.writer import Store, check_existing, open_store
from stoker.web.answers import answer, failure
from stoker.web.page import is_built
from stoker.web.query import filter_of, jobs_filter, number_of, page_of, text_of

SESSION = "stoker.session/1"
HOURS = 2.0
"""Hours of curves, and of the timeline, if the page does not ask for others."""
_LABEL = r"(?a)\d{1,18}(\.\d{1,18})?"
_TASKS = r"(?a)(\d{1,18})\.\[(\d{1,18})[0-9,:…-]*\]"
Endpoint = Callable[[Request], Response]


class Session(Struct, frozen=True):
    """The server as the page knows it: `/api/v1/session`."""

    schema: str
    host: str
    user: str
    version: str
    simulated: bool
    readonly: bool
    pages: list[str] = []
    """Names of further pages of this server: `lab` is at `/lab.html`."""


class ServedQueue(Struct, frozen=True):
    """The queue that a server shows."""

    paths: Paths
    user: str
    readonly: bool = False
    started: float = 0.0
    """Unix time; links from before are not valid."""

    def read_facts(self) -> contextlib.AbstractContextManager[QueueFacts]:
        return read_facts(self.paths)


def routes(service: ServedQueue) -> list[BaseRoute]:
    api = Api(service)
    reads: dict[str, Endpoint] = {
        "session": api.session,
        "status": api.status,
        "jobs": api.jobs,
        "jobs/{label}": api.job,
        "jobs/{label}/log": api.log,
        "jobs/{label}/log/search": api.search_log,
        "jobs/{label}/log/download": api.download_log,
        "jobs/{label}/series": api.series,
        "gpus": api.gpus,
        "gpus/samples": api.samples,
        "timeline": api.timeline,
        "history": api.history,
        "usage": api.usage,
    }
    for path in [feature.reads for feature in FEATURES.values() if feature.reads]:
        reads |= load(path)(service)
    return [*read_routes(reads, service), Route("/api/v1/actions", api.act, methods=["POST"])]


def read_routes(reads: Mapping[str, Endpoint], service: ServedQueue) -> list[BaseRoute]:
    return [Route(f"/api/v1/{path}", explained(endpoint, service), methods=["GET"]) for path, endpoint in reads.items()]


def explained(endpoint: Endpoint, service: ServedQueue) -> Endpoint:
    """Answer errors that a user can meet as JSON, also that the queue is gone. Starlette runs it in a thread."""

    @wraps(endpoint)
    def checked(request: Request) -> Response:
        try:
            check_existing(service.paths)
            return endpoint(request)
        except StokerError as error:
            return failure(error)

    return checked


class Api:
    """The answers for one queue."""

    def __init__(self, service: ServedQueue) -> None:
        self._service = service
        self._paths = service.paths

    def session(self, _request: Request) -> Response:
        service = self._service
        simulated = service.paths.is_simulated
        pages = [name for name in shared_pages() if is_built(f"{name}.html")]
        return answer(Session(SESSION, host_name(), service.user, __version__, simulated, service.readonly, pages))

    def status(self, _request: Request) -> Response:
        with self._service.read_facts() as facts:
            return answer(status_of(facts, host_name(), LINES))

    def jobs(self, request: Request) -> Response:
        chosen, scope = jobs_filter(request.query_params)
        sort, page = request.query_params.get("sort", ""), page_of(request.query_params)
        each_task = request.query_params.get("tasks") == "each"
        with self._service.read_facts() as facts:
            return answer(jobs_page(facts, chosen, scope, sort=sort, page=page, each_task=each_task))

    def job(self, request: Request) -> Response:
        selected = read_jobs(self._paths, [_label(request)], environment=True)
        return answer(_one_job(selected))

    def log(self, request: Request) -> Response:
        offset = number_of(request.query_params, "offset", 0)
        limit = number_of(request.query_params, "limit", LARGEST_PART, least=0)
        return answer(read_log(self._log_file(request), offset, limit))

    def search_log(self, request: Request) -> Response:
        text, before = text_of(request.query_params, "text"), number_of(request.query_params, "before", -1)
        if not text:
            raise UsageError("the text to search for is missing", "give it as text")
        return answer(search_in(self._log_file(request), text, before if before >= 0 else None))

    def download_log(self, request: Request) -> Response:
        """The file as it is now: what is appended meanwhile is left out."""
        file, label = self._log_file(request), _label(request)
        name = f"stoker-{label}-{file.attempt}.{'err' if file.stream == 'err' else 'log'}"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return StreamingResponse(blocks_of(file.path), media_type="text/plain; charset=utf-8", headers=headers)

    def _log_file(self, request: Request) -> LogFile:
        attempt = number_of(request.query_params, "attempt", 0, least=0)
        stream: Stream = "err" if request.query_params.get("stream") == "err" else "out"
        with self._opened() as store:
            return log_file(store, _find(store, _label(request)), attempt or None, stream)

    def series(self, request: Request) -> Response:
        with self._service.read_facts() as facts:
            job = _find(facts.store, _label(request))
            return answer(series_of(job, facts, self._paths))

    def gpus(self, _request: Request) -> Response:
        with known_devices(self._paths) as facts:
            return answer(gpus_of(facts))

    def samples(self, request: Request) -> Response:
        since = time.time() - 3600 * _hours(request)
        return answer(read_samples(self._paths, since))

    def timeline(self, request: Request) -> Response:
        since = _moment(request, "since") or time.time() - 3600 * HOURS
        until = _moment(request, "until")
        if until is not None and until <= since:
            raise UsageError("the period ends before it begins", "give an earlier since or a later until")
        return answer(read_timeline(self._paths, Period(since), until))

    def history(self, request: Request) -> Response:
        period = Period(_moment(request, "since") or 0.0, filter_of(request.query_params, RESULTS))
        return answer(history_page(self._paths, period, page_of(request.query_params)))

    def usage(self, request: Request) -> Response:
        return answer(read_usage(self._paths, Period(_moment(request, "since") or 0.0)))

    async def act(self, request: Request) -> Response:
        """Carry out an action; the guard has refused requests of other sites, and all if the server is read-only."""
        try:
            action = parse_action(await _body(request))
            check_existing(self._paths)
            return answer(await anyio.to_thread.run_sync(carry_out, self._paths, action))
        except StokerError as error:
            return failure(error)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Store]:
        with contextlib.closing(open_store(self._paths)) as store:
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
        raise NoSuchJob(f"{text[:40]!r} is not the label of a job", "list jobs with /api/v1/jobs")
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


def _hours(request: Request) -> float:
    text = request.query_params.get("hours") or str(HOURS)
    with contextlib.suppress(ValueError):
        if 0 < (hours := float(text)) <= 24 * 366:
            return hours
    raise UsageError(f"hours={text[:40]} is not a number of hours", "give hours=2, for example")


def _moment(request: Request, name: str) -> float | None:
    """Unix seconds, or a time as the command line takes it: 2h, 1d, yesterday, 2026-11-15."""
    text = request.query_params.get(name, "")
    if not text:
        return None
    with contextlib.suppress(ValueError):
        if math.isfinite(seconds := float(text)) and 0 <= seconds < 2**40:
            return seconds
    return parse_since(text, time.time(), LocalZone())


# -- actions -----------------------------------------------------------------------------------

Name = Literal["cancel", "retry", "hold", "release", "preempt", "priority"]
VERBS: dict[Name, str] = {
    "cancel": "cancel",
    "retry": "retry",
    "hold": "pause",
    "release": "resume",
    "preempt": "preempt",
    "priority": "edit",
}
LARGEST_BODY = 2 * 2**20
"""Bytes of a request."""
MOST_JOBS = 2**53
"""More than any queue has."""
_LABEL_OF_TASKS = r"(?a)\d{1,18}\.\[[0-9,:…-]+\]"


class TasksLine(Struct, frozen=True, forbid_unknown_fields=True):
    """Tasks of an array that a list shows in one line."""

    label: str
    """Such as `12.[3-99]`; it may be shortened."""
    state: str
    """As the line shows it: `held` means tasks on hold, any other word those that wait."""


class Matching(Struct, frozen=True, forbid_unknown_fields=True):
    """All jobs that a list shows on its pages."""

    count: Annotated[int, Meta(ge=0, le=MOST_JOBS)]
    """How many there were when the user chose them; if there are more now, nothing is done."""
    state: str = ""
    group: str = ""
    search: str = ""
    array: str = ""


class Action(Struct, frozen=True, forbid_unknown_fields=True):
    """An action on jobs: `POST /api/v1/actions`."""

    action: Name
    jobs: list[str | TasksLine] = []
    """Labels such as `3` and `12.4`, and lines of several tasks."""
    value: int | None = None
    """The new priority."""
    matching: Matching | None = None
    """In place of labels, with the meaning that `GET /api/v1/jobs` gives to its fields."""


def parse_action(body: bytes) -> Action:
    try:
        return msgspec.json.decode(body, type=Action)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"this is not an action: {error}", "see docs/schema/stoker.action-1.json") from error


def carry_out(paths: Paths, action: Action) -> ChangeReport:
    """Do it, and tell what became of each job."""
    with contextlib.closing(open_store(paths)) as store:
        control = Control(paths, store)
        parts = [part for given in action.jobs for part in _ids(control, given).parts]
        if action.matching is not None:
            with read_facts(paths) as facts:
                parts += _matching(facts, action.matching).parts
        effects = _done(control, action, jobs_in_order(store, distinct(parts)))
        return ChangeReport(SCHEMA, VERBS[action.action], False, change_results(effects), [])


def _matching(facts: QueueFacts, wanted: Matching) -> Ranges:
    """The jobs of a list, if they are not more than the user saw."""
    given = {"state": wanted.state, "group": wanted.group, "search": wanted.search, "array": wanted.array}
    ids = ids_of_pages(facts, *jobs_filter(given))
    if len(ids) > wanted.count:
        raise UsageError(f"more than {wanted.count} jobs match by now", "look at the list, and choose them again")
    return ids


def _done(control: Control, action: Action, jobs: Sequence[Job]) -> list[Effect]:
    match action.action:
        case "cancel":
            return cancel(control, jobs)
        case "hold":
            return hold(control, jobs)
        case "release":
            return release(control, jobs)
        case "preempt":
            return preempt(control, jobs)
        case "retry":
            refuse_unfinished(jobs)
            return retry(control, planned_retries(control, jobs))
        case "priority":
            if action.value is None:
                raise UsageError("the new priority is missing", "give it as value")
            return edit_jobs(control, Rewriter(control), jobs, {"priority": action.value})


def _ids(control: Control, given: str | TasksLine) -> Ranges:
    label, form = (given, _LABEL) if isinstance(given, str) else (given.label, _LABEL_OF_TASKS)
    if not re.fullmatch(form, label):
        raise UsageError(f"{label[:40]!r} is not the label of a job", "give labels such as 3 or 12.4")
    if isinstance(given, TasksLine):
        return tasks_of_line(control.store, label, given.state)
    return find(control.store, [label])
