"""Chromium without a screen, and `stoker web` beside a queue, for tests of the page."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from stoker.store.web_server import entry_code, web_token
from stoker.web.page import is_built
from support.background import Background
from support.optional import refuse, require
from support.wait import PATIENCE_SECONDS, line_from

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE, NARROW = (1280, 800), (390, 844)
AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
_WATCH_POLICY = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; where it or the built page is missing, tests are skipped, in CI they fail."""
    program = require("chromium")
    if not is_built():
        refuse("the page is not built: make web")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Server:
    """A `stoker web` of a queue, which can be killed and started again on the same port."""

    def __init__(self, queue: Background, port: int, *options: str) -> None:
        self._queue = queue
        self._options = ("--port", str(port), *options)
        self._process: subprocess.Popen[bytes] | None = None
        self.root = f"http://127.0.0.1:{port}/"

    def link(self) -> str:
        """A new link, as `stoker web` prints one beside a running server."""
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            _, said = self._process.communicate(timeout=PATIENCE_SECONDS)
            pytest.fail(f"the server ended with {code}: {said.decode()}")
        return f"{self.root}?code={entry_code(web_token(self._queue.paths), time.time())}"

    def start(self) -> None:
        self._process = self._queue.start("web", *self._options)
        assert line_from(self._process.stdout).decode().startswith(self.root)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)


class View:
    """A page in a browser; it notes all that the browser complains about."""

    def __init__(self, page: Page, server: Server) -> None:
        self.page = page
        self.complaints: list[str] = []
        self._server = server
        page.set_default_timeout(1000 * PATIENCE_SECONDS)
        page.add_init_script(_WATCH_POLICY)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def enter(self) -> None:
        """Load the page by a new link of the server."""
        self.complaints.clear()
        self.page.goto(self._server.link())
        self.page.wait_for_selector("header.top")

    def open(self, route: str) -> None:
        self.page.goto(f"{self._server.root}#/{route}")

    def wait(self, text: str) -> None:
        """Wait until a text can be seen."""
        self.page.get_by_text(text).first.wait_for()

    def wait_gone(self, text: str) -> None:
        self.page.get_by_text(text).first.wait_for(state="hidden")

    def wait_charts(self, count: int) -> None:
        """Wait until so many charts are drawn."""
        self.page.wait_for_function("count => document.querySelectorAll('.chart canvas').length >= count", arg=count)

    def assert_accessible(self) -> None:
        """Axe finds no violation of its rules: names, contrast, order of headings and more."""
        if not AXE.is_file():
            refuse("axe-core is not installed: make web")
        self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = self.page.evaluate("axe.run()")["violations"]
        assert not found, [(rule["id"], [node["target"] for node in rule["nodes"]]) for rule in found]

    def assert_fits(self) -> None:
        """Nothing is wider than the window."""
        wide = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0, f"{wide} pixels too wide"

    def assert_no_complaints(self) -> None:
        found = [*self.page.evaluate("window.violations"), *self.complaints]
        assert not found, f"the browser complains: {found}"


@contextmanager
def opened(
    browser: Browser,
    server: Server,
    size: tuple[int, int] = WIDE,
    scheme: Literal["light", "dark"] = "light",
) -> Iterator[View]:
    """A new page with the cookie of the server."""
    width, height = size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    try:
        view = View(context.new_page(), server)
        view.enter()
        yield view
    finally:
        context.close()
