"""One feed of changes for all browsers: read once in a thread, and not at all while no browser listens."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable

from sse_starlette import ServerSentEvent

from stoker.app.views.feed import Feed
from stoker.core.errors import StokerError
from stoker.core.text import to_json
from stoker.store.paths import Paths
from stoker.web.answers import error_body

POLL_SECONDS = 0.2
"""Seconds between two looks for changes while a browser listens."""
SHARE = 10
"""The feed looks less often if looks would take more than this part (1/N) of a core."""
ASK_SECONDS = 2.0
"""How often the engine is asked for new readings of the GPUs."""
BEHIND = 16
"""Events that a browser may be behind; one that reads more slowly is told to load everything again."""


class Broadcast:
    """Sends the changes of a queue to all browsers.

    At each `hello` a browser loads everything; the event `changes` tells what is new since then, and `trouble` why the
    queue cannot be read.
    """

    def __init__(self, paths: Paths) -> None:
        self._paths = paths
        self._browsers: set[asyncio.Queue[ServerSentEvent | None]] = set()
        self._stop: threading.Event | None = None
        self._greeting: ServerSentEvent | None = None
        """The event for a browser that joins; None before the first look."""

    async def events(self) -> AsyncIterator[ServerSentEvent]:
        """The events for one browser."""
        queue: asyncio.Queue[ServerSentEvent | None] = asyncio.Queue()
        self._browsers.add(queue)
        if self._stop is None:
            self._start()
        elif self._greeting is not None:
            queue.put_nowait(self._greeting)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._browsers.discard(queue)
            if not self._browsers:
                self.close()

    def close(self) -> None:
        """End the feed, and the events of all browsers."""
        if self._stop is not None:
            self._stop.set()
            self._stop = self._greeting = None
        for queue in self._browsers:
            _empty(queue)
            queue.put_nowait(None)

    def _start(self) -> None:
        stop = self._stop = threading.Event()
        loop = asyncio.get_running_loop()

        def publish(event: ServerSentEvent) -> None:
            with contextlib.suppress(RuntimeError):  # the server is ending
                loop.call_soon_threadsafe(self._publish, stop, event)

        threading.Thread(target=self._watch, args=(stop, publish), name="feed", daemon=True).start()

    def _publish(self, stop: threading.Event, event: ServerSentEvent) -> None:
        if stop is not self._stop:
            return  # of a thread that was told to end
        if event.event != "changes":
            self._greeting = event
        for queue in self._browsers:
            if queue.qsize() >= BEHIND:  # changes would be missing, so that all of it has to be loaded again
                _empty(queue)
                queue.put_nowait(HELLO)
            else:
                queue.put_nowait(event)

    def _watch(self, stop: threading.Event, publish: Callable[[ServerSentEvent], None]) -> None:
        with contextlib.closing(Feed(self._paths)) as feed:
            watch = _Watch(feed)
            pause = 0.0
            while not stop.wait(pause):
                began = time.thread_time()
                if (event := watch.look()) is not None:
                    publish(event)
                pause = max(POLL_SECONDS, SHARE * (time.thread_time() - began))


class _Watch:
    """Turns the changes of a queue into events."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._greeted = False
        self._trouble = ""
        self._ask_at = 0.0

    def look(self) -> ServerSentEvent | None:
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + ASK_SECONDS
            self._feed.expire()
        try:
            changes = self._feed.changes()
        except StokerError as error:
            return self._explain(error)
        if changes is None:
            return None
        greeted, self._greeted, self._trouble = self._greeted, True, ""
        if not greeted:
            return HELLO
        return event("changes", changes) if self._feed.has_news else None

    def _explain(self, error: StokerError) -> ServerSentEvent | None:
        if error.message == self._trouble:
            return None
        self._greeted, self._trouble = False, error.message
        return event("trouble", error_body(error))


def event(name: str, value: object) -> ServerSentEvent:
    return ServerSentEvent(to_json(value).decode(), event=name, sep="\n")


HELLO = event("hello", {})


def _empty(queue: asyncio.Queue[ServerSentEvent | None]) -> None:
    while not queue.empty():
        queue.get_nowait()
