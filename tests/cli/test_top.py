"""The live view: what it shows and what its keys do."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from stoker.cli.top.app import Top
from stoker.cli.top.source import QueueReader, tail_lines
from stoker.cli.top.widgets import KEYS
from stoker.core.errors import StokerError
from stoker.core.requests import Cancel
from stoker.core.spec import NewJob
from stoker.core.units import LAST_GPUS
from stoker.store.engine_lock import QUEUE, EngineLock
from stoker.store.paths import paths_for
from support.past import PastQueue
from support.textual_screen import wait_for_screen, wait_for_text, without_times

DATA = Path(__file__).parents[1] / "data"
Steps = Callable[[Pilot[Any]], Awaitable[None]]


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PastQueue]:
    """Two GPUs, two jobs that run, three that wait, one that failed; the engine seems to live."""
    monkeypatch.setenv("TZ", f"NOON{time.gmtime().tm_hour - 12:+}")  # so that no time shown is on another day
    time.tzset()
    for name, value in (("STATE", str(tmp_path / "state")), ("SIM", "2x24G")):
        monkeypatch.setenv(f"STOKER_{name}", value)
    (tmp_path / "log").write_text("epoch 1\nloss \x1b[31m0.5\x1b[0m\r loss 0.4\n<script>\n")
    made = PastQueue(paths_for(LAST_GPUS).state, time.time())
    made.ran("vit-b lr=3e-4", "0", -100, None, gib=8, log=str(tmp_path / "log"))
    made.ran("probe", "0", -60, None, gib=6, group="nlp")
    made.ran("broken", "1", -500, -400, code=1, log=str(tmp_path / "log"))
    for name in ("vit-l", "resnet", "evil [b]name[/b]"):
        made.submit(name, at=-50)
    made.paths.engines.mkdir(exist_ok=True)
    starts = {4: made.now + 500, 5: made.now + 900}
    with closing(EngineLock(made.paths, QUEUE)):
        made.write_status(
            at=made.now, waiting=3, starts=starts, ends={1: made.now + 500}, places={4: ("0",), 5: ("1",)}
        )
        yield made
    made.close()
    monkeypatch.undo()
    time.tzset()


def follow(queue: PastQueue, steps: Steps, *, size: tuple[int, int] = (80, 24), readonly: bool = False) -> None:
    """Open the view, and let a test press keys in it."""

    async def run() -> None:
        with closing(QueueReader(queue.paths)) as source:
            source.start()
            app = Top(source, readonly=readonly)
            async with app.run_test(size=size) as pilot:
                await steps(pilot)

    asyncio.run(run())


@pytest.mark.parametrize(("key", "name", "width", "awaited"), [
    ("1", "jobs", 80, "evil [b]name"),
    ("3", "history", 120, "epoch 1"),
])  # fmt: skip
def test_the_screens(queue: PastQueue, key: str, name: str, width: int, awaited: str) -> None:
    """They look as they did when they were last checked by eye; UPDATE_SNAPSHOTS=1 writes them anew."""
    kept = DATA / f"top-{name}.txt"

    def lasting(screen: str) -> str:
        """Without the line that names the host, and without what depends on the minute."""
        return without_times(f"{screen}\n").replace("▅", " ").split("\n", 1)[1]

    async def steps(pilot: Pilot[Any]) -> None:
        await pilot.press(key)
        screen = await wait_for_text(pilot, awaited, "50%")
        if os.environ.get("UPDATE_SNAPSHOTS"):
            kept.write_text(lasting(screen))
        await wait_for_screen(pilot, lambda screen: lasting(screen) == kept.read_text(), kept.read_text())

    follow(queue, steps, size=(width, 24))


def test_the_timeline_has_past_and_forecast(queue: PastQueue) -> None:
    """It begins with a period that the jobs fill; + and - change it, and the arrows go back in time."""

    async def steps(pilot: Pilot[Any]) -> None:
        await pilot.press("2")
        screen = await wait_for_text(pilot, "last 10m", "▐3", "✗", "░", "now")
        assert "│" in screen
        await pilot.press("minus", "left")
        await wait_for_text(pilot, "last 30m, until")
        await pilot.press("home")
        await wait_for_text(pilot, "last 30m ")

    follow(queue, steps)


def test_enter_follows_the_log(queue: PastQueue, tmp_path: Path) -> None:
    """Colours and overwritten bars are left out, markup is text, and new lines come by themselves."""

    async def steps(pilot: Pilot[Any]) -> None:
        await wait_for_text(pilot, "vit-b")
        await pilot.press("enter")
        screen = await wait_for_text(pilot, "log (following)", "<script>")
        assert " loss 0.4" in screen
        assert "0.5" not in screen
        with (tmp_path / "log").open("a") as log:
            log.write("epoch 2\n")
        await wait_for_text(pilot, "epoch 2")

    follow(queue, steps)


def test_filter_sort_and_tags(queue: PastQueue) -> None:
    """The filter works while it is typed, Esc removes it; o sorts; Space tags and moves on.

    The head still counts all jobs.
    """

    def totals(screen: str) -> list[str]:
        return re.findall(r"\d+ (?:running|waiting|held)", screen)

    async def steps(pilot: Pilot[Any]) -> None:
        before = totals(await wait_for_text(pilot, "resnet"))
        await pilot.press("slash", *"vit")
        await wait_for_text(pilot, "filter: vit")
        screen = await wait_for_screen(pilot, lambda screen: "resnet" not in screen, "a table without resnet")
        assert "vit-l" in screen
        assert before
        assert totals(screen) == before
        assert re.search(r"filter: vit \(\d+ of \d+\)", screen)
        await pilot.press("escape")
        await wait_for_text(pilot, "resnet")
        await pilot.press("o", "o", "space", "space")
        screen = await wait_for_text(pilot, "sort: name", "2 jobs tagged")
        assert screen.index("probe") < screen.index("resnet") < screen.index("vit-b")

    follow(queue, steps)


def test_no_key_acts_on_a_list_that_did_not_follow_the_filter(queue: PastQueue) -> None:
    """Until the new list is read, the cursor is on a job of the old one."""

    async def run() -> None:
        with closing(QueueReader(queue.paths)) as source:
            source.start()
            async with Top(source, readonly=False).run_test(size=(80, 24)) as pilot:
                await wait_for_text(pilot, "resnet")
                read = threading.Event()
                reading = asyncio.ensure_future(source.call(read.wait, 60))
                await pilot.press("slash", *"vit", "enter")
                await wait_for_text(pilot, "filter: vit")
                await wait_for_screen(
                    pilot, lambda _: not isinstance(pilot.app.focused, Input), "the table has the focus"
                )
                await pilot.press("p")
                await wait_for_text(pilot, "the list does not show the filter yet")
                read.set()
                await reading

    asyncio.run(run())
    assert queue.store.requests(QUEUE) == []


def test_a_look_may_end_after_the_screen_is_gone(queue: PastQueue) -> None:
    """A thread reads the queue while the view is left; what it brings is then drawn nowhere."""

    async def run() -> None:
        with closing(QueueReader(queue.paths)) as source:
            source.start()
            view = Top(source, readonly=False)
            async with view.run_test(size=(80, 24)) as pilot:
                await wait_for_text(pilot, "resnet")
            queue.submit("another")
            with view._context():  # as in a worker
                await view._look()
                view._tick()

    asyncio.run(run())


def test_a_cancel_asks_and_names_the_job(queue: PastQueue) -> None:
    """Only y does it; the request is then in the store."""

    async def steps(pilot: Pilot[Any]) -> None:
        await wait_for_text(pilot, "vit-b")
        await pilot.press("c")
        await wait_for_text(pilot, "cancel 1 vit-b lr=3e-4 (running)?")
        await pilot.press("n")
        await pilot.pause()
        assert queue.store.requests(QUEUE) == []
        await pilot.press("down", "c")
        await wait_for_text(pilot, "cancel 2 probe (running)?")
        await pilot.press("y")
        await wait_for_text(pilot, "your request is recorded")
        assert [request for _, request in queue.store.requests(QUEUE)] == [Cancel(2, "cancelled by you")]

    follow(queue, steps)


def test_what_cannot_be_done_is_not_asked(queue: PastQueue) -> None:
    """A job that runs cannot be retried, and one that has ended cannot be cancelled."""

    async def steps(pilot: Pilot[Any]) -> None:
        await wait_for_text(pilot, "vit-b")
        await pilot.press("r")
        await wait_for_text(pilot, "1 has not finished")
        await pilot.press("3")
        await wait_for_text(pilot, "broken")
        await pilot.press("c")
        await wait_for_text(pilot, "3 has already finished (failed)")
        await pilot.press("r")
        await wait_for_text(pilot, "retry 3 broken (failed)?")

    follow(queue, steps)


def test_readonly_changes_nothing(queue: PastQueue) -> None:
    """Keys that change jobs say so."""

    async def steps(pilot: Pilot[Any]) -> None:
        await wait_for_text(pilot, "read-only")
        for key in ("c", "r", "p", "plus", "minus"):
            await pilot.press(key, "y")
        await wait_for_text(pilot, "started with --readonly")
        assert queue.store.requests(QUEUE) == []

    follow(queue, steps, readonly=True)


def test_an_engine_stops_and_the_state_directory_goes(queue: PastQueue) -> None:
    """Both are told; the view goes on, and shows the next queue at the same place."""

    async def steps(pilot: Pilot[Any]) -> None:
        await wait_for_text(pilot, "vit-b")
        queue.paths.status_file(QUEUE).unlink()
        (queue.paths.engines / "queue.lock").unlink()
        await wait_for_text(pilot, "the engine is stopped")
        shutil.rmtree(queue.paths.state)
        await wait_for_text(pilot, "is gone")
        queue.paths.state.mkdir()
        again = PastQueue(queue.paths.state, time.time())
        again.submit("after the flood")
        again.close()
        await wait_for_text(pilot, "after the flood")

    follow(queue, steps, size=(100, 30))


def test_an_empty_queue_says_what_to_type(queue: PastQueue) -> None:
    """Also while no GPU is known."""
    with queue.store.writing() as connection:
        connection.execute("DELETE FROM jobs")

    async def steps(pilot: Pilot[Any]) -> None:
        await wait_for_text(pilot, "no jobs; add one: stoker submit")
        await pilot.press("3")
        await wait_for_text(pilot, "no job has ended yet")

    follow(queue, steps)


def test_a_queue_of_a_newer_version_is_refused(queue: PastQueue) -> None:
    """Before the screen is taken."""
    queue.close()
    with closing(sqlite3.connect(queue.paths.database)) as database:
        database.execute("PRAGMA user_version = 99")
    with closing(QueueReader(queue.paths)) as source, pytest.raises(StokerError, match="newer Stoker"):
        source.start()


def test_a_hundred_thousand_jobs(queue: PastQueue) -> None:
    """The first are listed, and more when the user goes down; the rest is counted."""
    job = queue.submit("many")
    batch = queue.store.add_batch("many", queue.now)
    queue.store.add_jobs(batch, QUEUE, [NewJob(job.command, job.spec, "many")] * 100_000, queue.now)

    def at_end_of_more(screen: str) -> bool:
        place = re.search(r"(\d+) of 100006", screen)
        return place is not None and int(place[1]) > 150  # 62 are listed at first, 60 more each time the end is reached

    async def steps(pilot: Pilot[Any]) -> None:
        await wait_for_text(pilot, "100004 waiting")
        await wait_for_screen(pilot, at_end_of_more, "job 151 or a later one", "end")

    follow(queue, steps)


def test_a_log_tail_begins_with_a_whole_line() -> None:
    """Its first line is left out where the log is longer, and control characters are shown as escapes."""
    assert tail_lines("cut\nwhole\tline\n\x07bell", cut=True) == ["whole    line", "\\x07bell"]
    assert tail_lines("10%\r20%\r30%\n") == ["30%"]


def test_every_key_has_an_action_and_a_line_in_the_help_or_below() -> None:
    actions = [action.partition("(")[0] for key in KEYS for action in key.actions.values()]
    assert [action for action in actions if not hasattr(Top, f"action_{action}")] == []
    assert [key for key in KEYS if not (key.word or key.sentence)] == []
