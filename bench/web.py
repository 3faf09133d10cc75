"""Measure the web server: the first table of a long queue, delay of events, idle cost, size of the page."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from statistics import median
from typing import Any

from bars import Bar, bars_shown, table
from cost import cpu_seconds, memory_of
from machine import exit_code, parser, say, workshop
from programs import HERE, OURS
from rounds import Incomplete
from servers import StokerServer, stoker
from stoker.store.web_server import web_token
from submit_jobs import NOTHING, submit_all
from waiting import wait_until_accepted

TABLES = (
    "/api/v1/jobs",
    "/api/v1/status",
    "/api/v1/jobs?page=2",
    "/api/v1/jobs?search=nothing",
    "/api/v1/jobs?sort=-priority",
)
FIRST = TABLES[0]
KILOBYTES, CPU_MILLISECONDS = 100.0, 50.0
SEEN_SECONDS = 1.0
IDLE_PERCENT, WATCHED_PERCENT = 0.3, 3.0
PAGE_KILOBYTES = 400.0
PAGE = HERE.parent / "src/stoker/web/page"
LIMIT_SECONDS = 60.0
SETTLE_SECONDS = 5.0
"""After the last event, which do not count."""


@dataclass(frozen=True)
class Page:
    """A running `stoker web`."""

    process: subprocess.Popen[str]
    port: int
    token: str

    def get(self, path: str, *, compressed: bool = False) -> HTTPResponse:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_SECONDS)
        headers = {"Authorization": f"Bearer {self.token}", "Accept-Encoding": "gzip" if compressed else "identity"}
        headers["Connection"] = "close"  # then the answer owns the connection
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise Incomplete(f"{path}: {answer.status} {answer.read()!r}")
        return answer

    @property
    def cpu(self) -> float:
        """CPU seconds so far."""
        return cpu_seconds([self.process.pid])


@dataclass(frozen=True)
class Look:
    """What one table costs."""

    size: int
    compressed: int
    cpu: float
    seconds: float

    @property
    def cells(self) -> list[str]:
        figures = (self.size / 1e3, self.compressed / 1e3, 1000 * self.cpu, 1000 * self.seconds)
        return [f"{value:.1f}" for value in figures]


def main() -> None:
    """Measure and print; raises Incomplete where a program failed."""
    options = _options()
    with workshop(options.directory) as directory, stoker(directory / "stoker") as queue:
        _fill(queue, options.jobs)
        with serving(queue) as page:
            looks = {path: look(page, path, options.rounds) for path in TABLES}
            delays = [_delay(queue, page) for _ in range(options.rounds)]
            idle, watched = _idle(page, options.seconds)
            memory = memory_of([page.process.pid], page.process.pid).engine
        _print(looks, delays, (idle, watched), memory, options)


def _options() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--jobs", type=int, default=100_000, help="jobs that wait, default %(default)s")
    options.add_argument("--rounds", type=int, default=20, help="looks of each kind, default %(default)s")
    options.add_argument("--seconds", type=float, default=20.0, help="how long the idle server is watched")
    return options.parse_args()


def _fill(queue: StokerServer, jobs: int) -> None:
    say(f"{jobs:,} jobs into the queue")
    queue.occupy()
    submit_all(queue.paths, [NOTHING] * jobs, queue.environment, str(queue.directory))
    wait_until_accepted(queue, jobs)


@contextlib.contextmanager
def serving(queue: StokerServer) -> Iterator[Page]:
    """The page of a queue."""
    command = [str(OURS / "stoker"), "web"]
    with subprocess.Popen(
        command,
        cwd=queue.directory,
        env=dict(queue.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address, _, code = process.stdout.readline().strip().partition("/?code=")
            if not code:
                raise Incomplete("stoker web printed no link")
            page = Page(process, int(address.rpartition(":")[2]), web_token(queue.paths))
            _wait_until_answers(page)
            yield page
        finally:
            process.kill()


def _wait_until_answers(page: Page) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            page.get("/api/v1/session").read()
            return
        time.sleep(0.05)
    raise Incomplete("stoker web does not answer")


def look(page: Page, path: str, rounds: int) -> Look:
    """The mean CPU time of many looks: the kernel counts it in hundredths of a second."""
    size = len(page.get(path).read())
    compressed = len(page.get(path, compressed=True).read())
    before, started = page.cpu, time.perf_counter()
    for _ in range(rounds):
        page.get(path, compressed=True).read()
    return Look(size, compressed, (page.cpu - before) / rounds, (time.perf_counter() - started) / rounds)


def _delay(queue: StokerServer, page: Page) -> float:
    """Seconds from the last act of a job to the event that tells its end."""
    mark = queue.directory / "ended"
    mark.unlink(missing_ok=True)
    script = f"sleep 0.5; date +%s.%N > {mark}.new; mv {mark}.new {mark}"
    with contextlib.closing(page.get("/api/v1/events")) as events:
        _next_event(events)
        queue.run(*queue.submit[:-1], "-G", "0", "--", "sh", "-c", script)
        while True:
            changes = _next_event(events)
            if mark.exists() and sum(changes.get("today", {}).values()) and changes["gone"]:
                return time.time() - float(mark.read_text())


def _next_event(events: HTTPResponse) -> dict[str, Any]:
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        line = events.readline().decode()
        if line.startswith("data: "):
            value: dict[str, Any] = json.loads(line.removeprefix("data: "))
            return value
    raise Incomplete("no event came")


def _idle(page: Page, seconds: float) -> tuple[float, float]:
    """Percent of a core while no browser looks, and while one does."""
    say(f"watching the idle server for {seconds:g} s, and again with a browser")
    time.sleep(min(SETTLE_SECONDS, seconds))
    before = page.cpu
    time.sleep(seconds)
    alone = page.cpu - before
    with contextlib.closing(page.get("/api/v1/events")) as events:
        _next_event(events)
        before = page.cpu
        time.sleep(seconds)
        watched = page.cpu - before
    return 100 * alone / seconds, 100 * watched / seconds


def _page_size() -> tuple[int, int]:
    """Bytes of all files of the page as they are, and compressed as the server sends them."""
    files = [path.read_bytes() for path in PAGE.rglob("*") if path.is_file()]
    return sum(map(len, files)), sum(len(gzip.compress(data, 5)) for data in files)


def _print(
    looks: dict[str, Look], delays: list[float], idle: tuple[float, float], memory: int, options: argparse.Namespace
) -> None:
    print(f"\none look with {options.jobs:,} jobs waiting, mean of {options.rounds}")
    rows = [[path, *look.cells] for path, look in looks.items()]
    print(table(["request", "KB of JSON", "KB compressed", "ms of server CPU", "ms"], rows))
    print(f"\nend of a job to the event: median {median(delays):.2f} s, longest {max(delays):.2f} s")
    print(f"idle: {idle[0]:.2f} % of a core without a browser, {idle[1]:.2f} % with one; memory {memory / 1e6:.0f} MB")
    plain, compressed = _page_size()
    print(f"the page: {plain / 1e3:.0f} KB, compressed {compressed / 1e3:.0f} KB" if plain else "the page is not built")
    first = looks[FIRST]
    bars = [
        Bar("first table, KB of JSON", first.size / 1e3, KILOBYTES, at_most=True),
        Bar("first table, ms of server CPU", 1000 * first.cpu, CPU_MILLISECONDS, at_most=True),
        Bar("end of a job seen, longest, s", max(delays), SEEN_SECONDS, at_most=True),
        Bar("idle server, % of a core", idle[0], IDLE_PERCENT, at_most=True),
        Bar("with a browser, % of a core", idle[1], WATCHED_PERCENT, at_most=True),
    ]
    if plain:
        bars.append(Bar("page, KB compressed", compressed / 1e3, PAGE_KILOBYTES, at_most=True))
    print("\nbars\n" + bars_shown(bars))


if __name__ == "__main__":
    sys.exit(exit_code(main))
