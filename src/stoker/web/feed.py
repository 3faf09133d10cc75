"""One feed of changes for all browsers: what is different from what was sent before, and nothing while nobody looks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from sse_starlette import ServerSentEvent

from stoker.core.errors import StokerError
from stoker.queue.view_model import Counts, DeviceLine, EngineLine, FailedJob, InterruptedRun, JobLine, Status
from stoker.web.answers import error_body

SCHEMA = "stoker.changes/1"
POLL_SECONDS = 0.2
"""How often the feed looks for changes while a browser listens..."""
SHARE = 10
"""... unless a look takes so long that it would need more than this part (1/N) of a core."""
BEHIND = 64
"""Events that a browser may be behind; one that reads more slowly is told to load everything again."""
SAME_SECONDS = 5.0
"""Expected times that differ by less are the same."""


class Changes(Struct, frozen=True, omit_defaults=True):
    """What is new since the last event: `/api/v1/events`, event `changes`. What is missing is as before."""

    schema: str
    at: datetime
    jobs: list[JobLine] = []
    """New or different ones of the jobs that run, and of the first 100 that wait."""
    gone: list[str] = []
    """Labels of those that are over, or no longer among the first."""
    counts: Counts | None = None
    hidden: Counts | None = None
    today: dict[str, int] | None = None
    devices: list[DeviceLine] = []
    """Those that are different."""
    engine: EngineLine | None = None
    expected_empty: datetime | None = None
    """With `counts`; missing there means unknown."""
    notes: list[str] | None = None
    interrupted: list[InterruptedRun] | None = None
    failures: list[FailedJob] | None = None


class Feed:
    """Compares the status with that of before in a thread, as long as browsers listen, and tells all of them."""

    def __init__(self, read: Callable[[], Status | None]) -> None:
        """`read` returns the status if it may have changed since its last call."""
        self._read = read
        self._clients: set[asyncio.Queue[ServerSentEvent]] = set()
        self._stop: threading.Event | None = None
        self._ready = False
        """Whether there is a status to compare with."""

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """Events for one browser. It loads everything at each `hello`; later events tell the changes."""
        queue: asyncio.Queue[ServerSentEvent] = asyncio.Queue(BEHIND)
        self._clients.add(queue)
        if self._stop is None:
            self._start()
        elif self._ready:
            queue.put_nowait(event("hello"))
        try:
            while True:
                yield await queue.get()
        finally:
            self._clients.discard(queue)
            if not self._clients:
                self.close()

    def close(self) -> None:
        if self._stop is not None:
            self._stop.set()
            self._stop, self._ready = None, False

    def _start(self) -> None:
        self._stop = threading.Event()
        loop = asyncio.get_running_loop()
        arguments = (self._stop, lambda one: loop.call_soon_threadsafe(self._publish, one))
        threading.Thread(target=self._watch, args=arguments, name="feed", daemon=True).start()

    def _publish(self, one: ServerSentEvent) -> None:
        self._ready = self._ready or one.event == "hello"
        for queue in self._clients:
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                one = event("hello")
            queue.put_nowait(one)

    def _watch(self, stop: threading.Event, publish: Callable[[ServerSentEvent], None]) -> None:
        before: Status | None = None
        trouble = ""
        pause = 0.0
        while not stop.wait(pause):
            began = time.thread_time()
            try:
                status = self._read()
                if status is not None:
                    for one in [event("hello")] if before is None else news(before, status):
                        publish(one)
                    before, trouble = status, ""
            except StokerError as error:
                if error.message != trouble:
                    before, trouble = None, error.message
                    publish(event("trouble", error_body(error)))
            pause = max(POLL_SECONDS, SHARE * (time.thread_time() - began))


def event(name: str, value: object = None) -> ServerSentEvent:
    return ServerSentEvent(msgspec.json.encode(value or {}).decode(), event=name)


def news(before: Status, after: Status) -> Iterator[ServerSentEvent]:
    """The event that leads from one status to the next; none if nothing changed."""
    found = changes(before, after)
    if found != Changes(SCHEMA, after.at):
        yield event("changes", found)


def changes(before: Status, after: Status) -> Changes:
    known = {line.label: comparable(line) for line in before.jobs}
    labels = {line.label for line in after.jobs}
    devices = {device.id: device for device in before.devices}
    counted = (before.counts, before.hidden, _rounded(before.expected_empty)) != (
        after.counts,
        after.hidden,
        _rounded(after.expected_empty),
    )
    engine_before, engine = replace(before.engine, seen=None), replace(after.engine, seen=None)
    return Changes(
        SCHEMA,
        after.at,
        jobs=[line for line in after.jobs if comparable(line) != known.get(line.label)],
        gone=[label for label in known if label not in labels],
        counts=after.counts if counted else None,
        hidden=after.hidden if counted else None,
        expected_empty=after.expected_empty if counted else None,
        today=after.today if after.today != before.today else None,
        devices=[device for device in after.devices if device != devices.get(device.id)],
        engine=after.engine if engine != engine_before else None,
        notes=after.notes if after.notes != before.notes else None,
        interrupted=after.interrupted if after.interrupted != before.interrupted else None,
        failures=after.failures if after.failures != before.failures else None,
    )


def comparable(line: JobLine) -> JobLine:
    """A line without what changes with every look: the browser itself knows how time passes."""
    return replace(
        line,
        seconds=None,
        waited_ratio=None,
        expected_start=_rounded(line.expected_start),
        expected_end=_rounded(line.expected_end),
    )


def _rounded(at: datetime | None) -> datetime | None:
    if at is None:
        return None
    seconds = at.timestamp() // SAME_SECONDS * SAME_SECONDS
    return datetime.fromtimestamp(seconds, at.tzinfo)
