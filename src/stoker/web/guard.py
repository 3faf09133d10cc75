"""Who may use the server: tokens, passes, cookies, Host and Origin of a request, headers that restrict the browser."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.core.errors import StokerError
from stoker.store.paths import Paths
from stoker.store.web_passes import cookie_value, pass_of, read_passes
from stoker.store.web_server import CODE_SECONDS, time_of_code
from stoker.web.answers import answer, failure

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
SAFE = ("GET", "HEAD")
LOOPBACK = ("127.0.0.1", "::1", "localhost")

_ENTRANCE = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url=./">
<link rel="icon" href="data:,"><title>Stoker</title><p><a href="./">Stoker</a></p>
"""
"""Leads to the page by a navigation of its own: after a redirect, a browser that came by a link of another site would
not send a cookie with SameSite=Strict."""
_LOCKED = """<!doctype html><meta charset="utf-8"><title>Stoker</title>
<h1>This page needs a new link</h1>
<p>Type <code>stoker web</code> on the server, and open the link that it prints.
A link works once, within ten minutes.</p>
"""
COOKIE_SECONDS = 30 * 86400
ENTRANCE = "/api/v1/pass"
"""Where the script of a shared page sends the pass that a visitor typed, to get a cookie: it is in no address."""


class Door(Protocol):
    """Decides who is admitted."""

    def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to a request of a stranger, or to a visit that asks to be admitted; None if it may pass."""


class Guard:
    """Lets only those requests through that come from this machine or a tunnel, and whom the door admits."""

    def __init__(self, app: ASGIApp, door: Door, *, readonly: bool) -> None:
        self._app = app
        self._door = door
        self._readonly = readonly

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refused = self._refusal(scope)
            await (refused or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that must not be served; None if it may."""
        headers = Headers(scope=scope)
        host = _single(headers, "host")
        if not is_loopback(host):
            return failure(StokerError("this host name is not served", "use the address that stoker web printed"), 421)
        if not _comes_from_here(headers, host, scope["method"]):
            return failure(StokerError("requests from other sites are not served", "use the page itself"), 403)
        if (refused := self._door.refusal(scope, headers)) is not None:
            return refused
        if self._readonly and scope["method"] not in SAFE:
            return failure(StokerError("this server is read-only", "start it without --readonly"), 403)
        return None


class TokenDoor:
    """Admits those who know the token of the queue, and browsers that opened a link."""

    def __init__(self, token: str, started: float) -> None:
        """Take no link from before `started`, when the server began: it does not know which of those were used."""
        self._token = token.encode()
        self._started = started
        self._used: dict[str, float] = {}
        """Codes of links that were opened, and when they expire."""
        # A browser sends cookies to all ports of a host, so the name must differ between the servers of one machine.
        self._cookie = f"stoker-{hashlib.sha256(self._token).hexdigest()[:12]}"
        self._value = hmac.new(self._token, b"cookie", "sha256").hexdigest()

    def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if (
            scope["path"] == "/"
            and scope["method"] == "GET"
            and (code := QueryParams(scope["query_string"]).get("code"))
        ):
            return self._entrance(code, headers, time.time())
        knows = hmac.compare_digest(bearer(headers).encode(), self._token)
        return None if knows or self._has_cookie(headers) else _locked(scope["path"])

    def _entrance(self, code: str, headers: Headers, now: float) -> Response:
        if not self._take(code, now):
            return HTMLResponse(_ENTRANCE) if self._has_cookie(headers) else HTMLResponse(_LOCKED, 401)
        return with_cookie(HTMLResponse(_ENTRANCE), self._cookie, self._value, COOKIE_SECONDS)

    def _take(self, code: str, now: float) -> bool:
        """Use a code up; False if it is not valid."""
        made = time_of_code(self._token.decode(), code)
        if made is None or made < self._started or not now - CODE_SECONDS <= made <= now + 1 or code in self._used:
            return False
        self._used = {used: until for used, until in self._used.items() if until > now}
        self._used[code] = made + CODE_SECONDS
        return True

    def _has_cookie(self, headers: Headers) -> bool:
        return has_cookie(headers, self._cookie, [self._value])


class PassDoor:
    """Admits to a shared page: those with a pass, and browsers that exchanged one for a cookie.

    The files of the page are the same in each installation, and are served to all.
    """

    def __init__(self, paths: Paths, page: str) -> None:
        self._paths = paths
        self._page = page
        name = hashlib.sha256(str(paths.page_passes(page)).encode()).hexdigest()[:12]
        self._cookie = f"stoker-{page}-{name}"

    def refusal(self, scope: Scope, headers: Headers) -> Response | None:
        if not scope["path"].startswith("/api/"):
            return None
        passes = read_passes(self._paths, self._page, now := time.time())  # at each request: one may be revoked
        given = pass_of(passes, bearer(headers))
        if given is not None and scope["path"] == ENTRANCE:
            return with_cookie(answer({}), self._cookie, cookie_value(given), int(given.until - now))
        if given is not None or has_cookie(headers, self._cookie, [*map(cookie_value, passes)]):
            return None
        error = StokerError("the pass is missing, not valid any more, or wrong", "ask the person who runs this page")
        return failure(error, 401, {"WWW-Authenticate": "Bearer"})


class OpenDoor:
    """Admits all: users of this machine who connected to the socket of a shared page."""

    def refusal(self, _scope: Scope, _headers: Headers) -> Response | None:
        return None


def bearer(headers: Headers) -> str:
    """The token or pass of the request; empty if it has none."""
    kind, _, given = _single(headers, "authorization").partition(" ")
    return given.strip() if kind.lower() == "bearer" else ""


def has_cookie(headers: Headers, name: str, values: Sequence[str]) -> bool:
    """Whether one of the cookies is ours; those of other servers of this host may be anything."""
    pairs = (cookie.strip().partition("=") for line in headers.getlist("cookie") for cookie in line.split(";"))
    given = [value.encode() for of, _, value in pairs if of == name]
    return any(hmac.compare_digest(value, expected.encode()) for value in given for expected in values)


def with_cookie(response: Response, name: str, value: str, seconds: int) -> Response:
    response.set_cookie(name, value, seconds, path="/", httponly=True, samesite="strict")
    return response


def is_loopback(host: str) -> bool:
    """Whether a Host header names this machine itself; through a tunnel it has another port.

    Any other name could be of an attacker's page that lets it lead here (DNS rebinding).
    """
    try:
        parts = urlsplit(f"//{host}")
        name, _ = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return False
    plain = not (parts.path or parts.query or parts.fragment or parts.username)
    return plain and (name in LOOPBACK or name.endswith(".localhost"))


def _comes_from_here(headers: Headers, host: str, method: str) -> bool:
    """Whether a request comes from the page itself, the address bar or a program, and not from another site.

    Pages on other ports of this machine are the same site to a browser, so that SameSite does not stop them.
    """
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not _is_visit(headers, method):
        return False
    origin = headers.get("origin")
    if origin is not None:
        return origin in (f"http://{host}", f"https://{host}")
    return method in SAFE or "authorization" in headers or headers.get("sec-fetch-site") == "same-origin"


def _is_visit(headers: Headers, method: str) -> bool:
    """Whether a browser opens a link, as one of another program or page; the answer is not shown to that page."""
    return (
        method == "GET" and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )


def _single(headers: Headers, name: str) -> str:
    """A header that may be given once."""
    values = headers.getlist(name)
    return values[0] if len(values) == 1 else ""


def _locked(path: str) -> Response:
    if path.startswith("/api/") or path == "/metrics":
        error = StokerError(
            "the token is missing or wrong", "open the link that stoker web prints, or send it as a Bearer token"
        )
        return failure(error, 401, {"WWW-Authenticate": "Bearer"})
    return HTMLResponse(_LOCKED, 401)


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return sending
