"""Nothing is served to those who do not know the token, nor to pages of other sites."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from stoker.store.web_server import entry_code
from stoker.web.api import ServedQueue
from stoker.web.guard import is_loopback
from support.past import PastQueue
from support.web import ADDRESS, TOKEN, Browser

API = "/api/v1/status"
ACTION = {"action": "cancel", "jobs": ["1"]}


@pytest.mark.parametrize("path", ["/", "/index.html", "/assets/x.js", API, "/api/v1/events", "/metrics", "/nothing"])
def test_nothing_without_the_token(stranger: Browser, path: str) -> None:
    """Neither data nor files nor what exists; the answer says what to do."""
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert "stoker web" in answer.text
    assert TOKEN not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer "},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer \u00e4"},
        {"Cookie": f"stoker={TOKEN}"},
        {"Cookie": f"token={TOKEN}; stoker-000000000000={TOKEN}"},
        {"Cookie": '"; broken=; ;;='},
    ],
)
def test_a_wrong_token(stranger: Browser, headers: dict[str, str]) -> None:
    """It is as good as none."""
    assert stranger.get(API, headers={name: value.encode() for name, value in headers.items()}).status_code == 401


def open_link(browser: Browser, made: float | None = None) -> httpx.Response:
    """Open a link of the server, made now or at another time."""
    return browser.get("/", params={"code": entry_code(TOKEN, time.time() if made is None else made)})


def test_the_link(stranger: Browser) -> None:
    """It is exchanged for a cookie that no script and no other site can use; the token is nowhere in it."""
    assert stranger.get("/?code=wrong").status_code == 401
    assert stranger.get("/", params={"code": entry_code("another token", time.time())}).status_code == 401
    assert not stranger.cookies
    entrance = open_link(stranger)
    assert entrance.status_code == 200
    assert TOKEN not in entrance.text
    cookie = entrance.headers["set-cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert TOKEN not in cookie
    assert stranger.get(API).status_code == 200
    assert stranger.get("/api/v1/session", params={"token": "wrong"}).status_code == 200


def test_a_link_works_once(stranger: Browser) -> None:
    """It stays in the history of the browser: there it opens nothing any more, unless the browser is admitted."""
    code = entry_code(TOKEN, time.time())
    assert stranger.get("/", params={"code": code}).status_code == 200
    assert stranger.get("/", params={"code": code}).status_code == 200
    stranger.cookies.clear()
    again = stranger.get("/", params={"code": code})
    assert (again.status_code, "stoker web" in again.text) == (401, True)


def test_an_old_link(queue: PastQueue, stranger: Browser) -> None:
    """It is valid for ten minutes, and not from before the server's start: that one knew which links were used."""
    assert open_link(stranger, time.time() - 601).status_code == 401
    assert open_link(stranger, time.time() + 60).status_code == 401
    later = Browser(ServedQueue(queue.paths, "tester", started=time.time() - 60))
    assert open_link(later, time.time() - 90).status_code == 401
    assert open_link(later, time.time() - 30).status_code == 200


def test_cookies_of_other_servers(stranger: Browser) -> None:
    """A browser sends them too, whatever they look like."""
    open_link(stranger)
    ((name, value),) = stranger.cookies.items()
    stranger.cookies.clear()
    odd = f'_xsrf=2|ab|c; list=[1, "2"]; =; {name}=wrong; bad name=1; {name}={value}; last'
    assert stranger.get(API, headers={"Cookie": odd}).status_code == 200


@pytest.mark.parametrize("name", ["token", "code"])
@pytest.mark.parametrize("path", ["/", API])
def test_the_token_is_in_no_address(stranger: Browser, name: str, path: str) -> None:
    """It would stay in the history of the browser."""
    assert stranger.get(path, params={name: TOKEN}).status_code == 401


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("127.0.0.1:7717", True),
        ("localhost:8888", True),  # a tunnel may have another port
        ("[::1]:7717", True),
        ("queue.localhost", True),
        ("LOCALHOST", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:7717", False),
        ("notlocalhost", False),
        ("127.0.0.2", False),
        ("localhost:99999", False),
        ("user@localhost", False),
        ("localhost/evil", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_names_of_this_machine(host: str, served: bool) -> None:
    """Any other name could lead a browser here on behalf of somebody else's page."""
    assert is_loopback(host) is served


def test_a_foreign_host(client: Browser) -> None:
    """It is refused although the token is right."""
    assert client.get(API, headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Origin": ADDRESS}, 404),  # the job does not exist
        ({"Sec-Fetch-Site": "same-origin", "Origin": ADDRESS}, 404),
        ({"Origin": "http://127.0.0.1:9999"}, 403),  # another port is the same site to a browser
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ADDRESS, "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": ADDRESS, "Sec-Fetch-Site": "same-site"}, 403),
        ({}, 403),  # a browser always names the origin of a POST
    ],
)
def test_actions_of_other_origins(stranger: Browser, headers: dict[str, str], code: int) -> None:
    """A page can act only from its own origin, with the cookie."""
    open_link(stranger)
    assert stranger.post("/api/v1/actions", json=ACTION, headers=headers).status_code == code


def test_a_program_acts(client: Browser) -> None:
    """With the token it needs no origin; a form of a page cannot send its kind of body."""
    assert client.post("/api/v1/actions", json=ACTION).status_code == 404
    answer = client.post("/api/v1/actions", content=json.dumps(ACTION), headers={"Content-Type": "text/plain"})
    assert answer.status_code == 400


def test_reads_by_other_sites(client: Browser) -> None:
    """A link from elsewhere may be opened; scripts, frames and requests of other pages get nothing."""
    visit = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/", headers=visit).status_code == 200
    assert client.get("/", headers={**visit, "Sec-Fetch-Dest": "iframe"}).status_code == 403
    assert client.get(API, headers={"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}).status_code == 403
    assert client.get(API, headers={"Origin": "http://127.0.0.1:9999"}).status_code == 403


def test_readonly(queue: PastQueue) -> None:
    """It refuses every action, and says so to the page."""
    service = ServedQueue(queue.paths, "tester", readonly=True)
    client = Browser(service, Authorization=f"Bearer {TOKEN}")
    answer = client.post("/api/v1/actions", json=ACTION)
    assert (answer.status_code, answer.json()["error"]["hint"]) == (403, "start it without --readonly")
    assert client.get("/api/v1/session").json()["readonly"] is True


@pytest.mark.parametrize("path", ["/", API, "/nothing", "/metrics"])
def test_headers_restrict_the_browser(client: Browser, path: str) -> None:
    """On every answer, also errors; answers of the API are kept nowhere."""
    headers: Any = client.get(path).headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))
    assert (policy["default-src"], policy["script-src"], policy["style-src"]) == ("'none'", "'self'", "'self'")
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["cache-control"] == ("no-cache" if path == "/" and "script" in client.get("/").text else "no-store")
    assert "access-control-allow-origin" not in headers


def test_a_bug(client: Browser, queue: PastQueue) -> None:
    """The browser learns that there is one, and no more; the answer is as restricted as all others."""
    queue.ran("job", "0", -60, -30)
    with queue.store.writing() as connection:
        connection.execute("UPDATE events SET body = x'ff'")
    answer = client.get("/api/v1/jobs/1")
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "the server failed")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-security-policy" in answer.headers
