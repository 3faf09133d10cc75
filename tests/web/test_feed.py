"""Browsers are told what changed: all by one feed, which rests while none listens."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec
from sse_starlette import ServerSentEvent

from stoker.web.feed import BEHIND, Broadcast
from support.past import PastQueue
from support.wait import PATIENCE_SECONDS

Events = AsyncIterator[ServerSentEvent]


def look(queue: PastQueue, scenario: Callable[[Broadcast], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        broadcast = Broadcast(queue.paths)
        try:
            await asyncio.wait_for(scenario(broadcast), PATIENCE_SECONDS)
        finally:
            broadcast.close()

    asyncio.run(run())


async def following(events: Events) -> tuple[str | None, Any]:
    event = await anext(events)
    return event.event, msgspec.json.decode(event.data or "")


@contextlib.asynccontextmanager
async def listening(broadcast: Broadcast, count: int = 1) -> AsyncIterator[list[Events]]:
    """Browsers that have been greeted."""
    browsers = [broadcast.events() for _ in range(count)]
    for browser in browsers:
        assert (await following(browser))[0] == "hello"
    yield browsers
    for browser in browsers:
        await browser.aclose()  # type: ignore[attr-defined]


def feeds() -> int:
    return sum(thread.name == "feed" for thread in threading.enumerate())


def test_all_browsers_are_told_by_one_feed(queue: PastQueue) -> None:
    """Each gets what changed and nothing else; the feed ends with the last of them, and begins again with the next."""

    async def scenario(broadcast: Broadcast) -> None:
        before = feeds()
        for _ in range(2):
            async with listening(broadcast, 3) as browsers:
                assert feeds() == before + 1
                job = queue.submit("new")
                for browser in browsers:
                    name, changes = await following(browser)
                    assert (name, [line["label"] for line in changes["jobs"]]) == ("changes", [str(job.id)])
                queue.attempt(job, "0", -1, 0)
                for browser in browsers:
                    name, changes = await following(browser)
                    assert (changes["gone"], changes["changed"], changes["jobs"]) == ([str(job.id)], [str(job.id)], [])
            while feeds() > before:
                await asyncio.sleep(0.01)

    look(queue, scenario)


def test_what_is_the_same_is_not_sent(queue: PastQueue) -> None:
    """A new report of the engine without news is no event."""

    async def scenario(broadcast: Broadcast) -> None:
        async with listening(broadcast) as (browser,):
            queue.write_status(at=queue.now + 1)
            queue.submit("news")
            _, changes = await following(browser)
            assert [line["name"] for line in changes["jobs"]] == ["news"]
            assert changes["devices"] == []

    look(queue, scenario)


def test_a_slow_browser(queue: PastQueue) -> None:
    """One that does not read is told to load everything again, and holds up no other."""

    async def scenario(broadcast: Broadcast) -> None:
        async with listening(broadcast, 2) as (slow, quick):
            for number in range(BEHIND + 1):
                queue.submit(str(number))
                await following(quick)
            assert (await following(slow))[0] == "hello"

    look(queue, scenario)


def test_trouble(queue: PastQueue) -> None:
    """A queue that cannot be read is reported once; a browser that comes later is told too; then all load again."""

    async def scenario(broadcast: Broadcast) -> None:
        async with listening(broadcast) as (browser,):
            moved = queue.paths.state.with_name("moved")
            shutil.move(queue.paths.state, moved)
            name, trouble = await following(browser)
            assert (name, "is gone" in trouble["error"]["message"]) == ("trouble", True)
            late = broadcast.events()
            assert (await following(late))[0] == "trouble"
            shutil.move(moved, queue.paths.state)
            assert [(await following(one))[0] for one in (browser, late)] == ["hello", "hello"]
            await late.aclose()  # type: ignore[attr-defined]

    look(queue, scenario)
