"""The page for the group in a real browser, and what another user of the machine can do with it."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401, loaded before the process of another user can no longer read it
import json
import sqlite3
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from playwright.sync_api import Browser, Page

from features.lab.people import people
from stoker.ledger import prepare_ledger
from support.background import Background
from support.browser import ARGUMENTS, NARROW, Server, View, chromium
from support.optional import require
from support.ports import reserved_port
from support.users import run_as
from support.wait import PATIENCE_SECONDS, line_from, wait_until

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e"
WALL = (1920, 1080)


class LabServer(Server):
    """A `stoker web --lab` with a pass."""

    def start(self) -> None:
        self._process = self._queue.start("web", "--lab", *self._options)
        assert line_from(self._process.stdout).decode().strip() == self.root
        self.text = line_from(self._process.stdout).decode().strip()


class Site(NamedTuple):
    browser: Browser
    queue: Background
    server: LabServer


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        browser, home = stack.enter_context(chromium()), tmp_path_factory.mktemp("lab")
        queue = stack.enter_context(contextlib.closing(Background(home, "4x24G")))
        (home / "config/stoker").mkdir(parents=True)
        (home / "config/stoker/config.toml").write_text('share = "names"\n')
        ledger = prepare_ledger(home / "ledger")
        queue.environment |= {"STOKER_LEDGER": str(ledger), "XDG_CONFIG_HOME": str(home / "config")}
        assert queue("submit", "-J", HOSTILE, "-m", "8G", "-t", "2h", "--", "sleep", "1000").code == 0
        assert queue("submit", "-G", "2", "-t", "4h", "--", "sleep", "1000").code == 0
        assert queue("submit", "-G", "4", "--", "sleep", "1000").code == 0
        assert queue("book", "1", "--from", "now+3h", "--for", "2h", "--why", f"deadline {HOSTILE}").code == 0
        queue.wait_word("running", 1, 2)
        server = LabServer(queue, stack.enter_context(reserved_port()))
        server.start()
        yield Site(browser, queue, server)


@contextlib.contextmanager
def opened(site: Site, size: tuple[int, int], scheme: str = "light") -> Iterator[View]:
    """The page after its pass was typed."""
    width, height = size
    context = site.browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    try:
        view = View(context.new_page(), site.server)
        view.page.goto(site.server.root)
        view.page.wait_for_selector("form")
        view.assert_accessible()
        type_pass(view.page, site.server.text)
        view.complaints.clear()  # the browser notes that a pass was missing
        yield view
        view.assert_no_complaints()
    finally:
        context.close()


def type_pass(page: Page, text: str) -> None:
    page.get_by_role("textbox").fill(text)
    page.get_by_role("button").click()
    page.wait_for_selector(".gpu")


@pytest.mark.parametrize(("size", "route"), [((1280, 800), ""), (NARROW, ""), (WALL, "wall")])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page(site: Site, size: tuple[int, int], route: str, scheme: str) -> None:
    """Who has which GPU until when, free GPUs, who waits; nothing is cut off, and axe finds nothing."""
    with opened(site, size, scheme) as view:
        view.open(route)
        view.wait("free")
        assert view.page.locator(".gpu").count() == 4
        assert view.page.locator(".gpu.free").count() == 1
        assert view.page.locator(".gpu.used .until").all_inner_texts()[0].startswith("by ")
        assert "1 of 4 GPUs free" in " ".join(view.page.locator(".sums").inner_text().split())
        assert view.page.locator(".bar.booking").count() == 1
        view.wait("deadline <img")
        view.assert_fits()
        view.assert_accessible()
        if route == "wall":
            assert view.page.evaluate("document.documentElement.scrollHeight <= innerHeight")
            assert not view.page.locator("select, a, button").locator("visible=true").count()


def test_when_is_mine_done(site: Site) -> None:
    """A visitor chooses a user; the address can be kept."""
    with opened(site, (1280, 800)) as view:
        user = view.page.locator("option").nth(1).inner_text()
        view.page.get_by_label("Show").select_option(user)
        view.wait("2 jobs run on GPU 0, 1, 2. The last one ends by")
        view.wait("1 wait, since")
        assert view.page.url.endswith(f"#/user/{user}")
        view.assert_accessible()


def test_hostile_text_stays_text(site: Site) -> None:
    """Markup, escape sequences and characters that turn text around in a name that another user publishes."""
    with opened(site, (1280, 800)) as view:
        wait_until(lambda: "<img" in (view.page.locator(".who li").first.get_attribute("title") or ""))
        title = view.page.locator(".who li").first.get_attribute("title") or ""
        assert not {"\x1b", "\u202e"} & {*title}
        assert view.page.locator("img").count() == 0


def test_the_history_has_no_key(site: Site, tmp_path: Path) -> None:
    """What the browser keeps on disk of the visit admits no other browser."""
    kind = site.browser.browser_type
    context = kind.launch_persistent_context(tmp_path / "profile", executable_path=require("chromium"), args=ARGUMENTS)
    with contextlib.closing(context):
        page = context.new_page()
        page.goto(site.server.root)
        type_pass(page, site.server.text)
    with contextlib.closing(sqlite3.connect(tmp_path / "profile/Default/History")) as history:
        addresses = [address for (address,) in history.execute("select url from urls")]
    assert site.server.root in addresses
    assert not any(site.server.text in address for address in addresses)
    for path in filter(Path.is_file, (tmp_path / "profile").rglob("*")):
        content = path.read_bytes().lower()
        assert site.server.text.encode() not in content
        assert site.server.text.replace("-", "").encode() not in content


def test_a_pass_that_ends_while_the_page_is_open(site: Site) -> None:
    """The page asks for another one."""
    text = site.queue("web", "--lab", "--link", "1h").out.split()[1]
    with opened(site, (1280, 800)) as view:
        view.page.context.clear_cookies()
        view.page.reload()
        type_pass(view.page, text)
        number = site.queue("web", "--lab", "--links").out.splitlines()[-1].split()[0]
        assert site.queue("web", "--lab", "--revoke", number).code == 0
        view.page.wait_for_selector("form")
        view.complaints.clear()


def attack(port: str, path: str) -> None:
    """What another user of the machine can reach, all that it needs is imported before."""
    requests = [("GET", f"/api/v1/{name}") for name in ("lab", "pass", "status", "jobs/1/log", "lab?pass=guess")]
    for method, address in [*requests, ("POST", "/api/v1/actions")]:
        with contextlib.closing(HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE_SECONDS)) as connection:
            connection.request(method, address, '{"action": "cancel", "jobs": ["1"]}')
            assert connection.getresponse().status in (401, 403), address
    with httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://127.0.0.1") as client:
        lab = client.get("/api/v1/lab")
        assert lab.status_code == 200
        assert "secret" not in lab.text
        for name in ("status", "jobs", "jobs/1/log", "jobs/1/log/download", "history", "events"):
            assert client.get(f"/api/v1/{name}").status_code == 404
        body = {"action": "cancel", "jobs": ["1"]}
        for headers in ({}, {"Authorization": "Bearer x"}, {"Sec-Fetch-Site": "same-origin"}):
            assert client.post("/api/v1/actions", json=body, headers=headers).status_code == 403
        print(json.dumps([job["user"] for job in lab.json()["jobs"]]))


def test_another_user() -> None:
    """They read the page at the socket without a pass, and at the port only with one; they can do nothing else."""
    with people(2) as (alice, other), reserved_port() as port:
        alice.do("submit", "--name", "secret", "--", "echo secret; sleep 1000")
        alice.wait_word("running", 1)
        path = alice.home.parent / "lab.sock"
        alice.home.parent.chmod(0o1777)
        first = alice.start("web", "--lab", "--socket", str(path))
        assert line_from(first.stdout)
        second = alice.start("web", "--lab", "--port", str(port), environment={"STOKER_STATE": str(alice.home / "s")})
        assert line_from(second.stdout)
        wait_until(lambda: path.stat().st_mode & 0o777 == 0o666)
        assert json.loads(run_as(other.user, attack, str(port), str(path))) == [alice.user.name]
        assert alice.word(1) == "running"


def test_bad_options(background: Background) -> None:
    """Each is refused with what to do."""
    for words, said in (
        (["--link", "1h"], "stoker web --lab"),
        (["--lab", "--link", "soon"], "not a duration"),
        (["--lab", "--link", "9999d"], "at most 366 days"),
        (["--lab", "--revoke", "7"], "stoker web --lab --links"),
        (["--lab", "--readonly"], "leave out"),
        (["--lab", "--link", "1h", "--socket", str(background.home / "x")], "without a link"),
    ):
        outcome = background("web", *words)
        assert outcome.code == 2, outcome.err
        assert said in outcome.err
    assert "make one" in background("web", "--lab", "--links").err


def test_a_socket_that_others_cannot_reach(background: Background) -> None:
    """The server says which directory keeps them away."""
    background.home.chmod(0o700)
    server = background.start("web", "--lab", "--socket", str(background.home / "lab.sock"))
    assert "other users cannot reach it" in line_from(server.stderr).decode()
