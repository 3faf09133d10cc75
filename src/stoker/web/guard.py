"""Who may use the server: token and cookie, the Host and Origin of a request, and headers that restrict the browser."""

from __future__ import annotations

import hashlib
import hmac
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stoker.core.errors import StokerError
from stoker.store.web_server import CODE_SECONDS, time_of_code
from stoker.web.answers import failure

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


class Guard:
    """Lets only those through who know the token."""

    def __init__(self, app: ASGIApp, token: str, *, readonly: bool, started: float) -> None:
        """Take no link from before `started`, when the server began: it does not know which of those were used."""
        self._app = app
        self._token = token.encode()
        self._readonly = readonly
        self._started = started
        self._used: dict[str, float] = {}
        """Codes of links that were opened, and when they expire."""
        # A browser sends cookies to all ports of a host, so the name must differ between the servers of one machine.
        self._cookie = f"stoker-{hashlib.sha256(self._token).hexdigest()[:12]}"
        self._value = hmac.new(self._token, b"cookie", "sha256").hexdigest().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            answer = self._refusal(scope)
            await (answer or self._app)(scope, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that must not be served; None if it may."""
        headers = Headers(scope=scope)
        host = _single(headers, "host")
        if not is_loopback(host):
            return failure(StokerError("this host name is not served", "use the address that stoker web printed"), 421)
        if not _comes_from_here(headers, host, scope["method"]):
            return failure(StokerError("requests from other sites are not served", "use the page itself"), 403)
        if (
            scope["path"] == "/"
            and scope["method"] == "GET"
            and (code := QueryParams(scope["query_string"]).get("code"))
        ):
            return self._entrance(code, headers, time.time())
        if not self._bearer(headers) and not self._has_cookie(headers):
            return _locked(scope["path"])
        if self._readonly and scope["method"] not in SAFE:
            return failure(StokerError("this server is read-only", "start it without --readonly"), 403)
        return None

    def _entrance(self, code: str, headers: Headers, now: float) -> Response:
        if not self._take(code, now):
            return HTMLResponse(_ENTRANCE) if self._has_cookie(headers) else HTMLResponse(_LOCKED, 401)
        answer = HTMLResponse(_ENTRANCE)
        value = self._value.decode()
        answer.set_cookie(self._cookie, value, COOKIE_SECONDS, path="/", httponly=True, samesite="strict")
        return answer

    def _take(self, code: str, now: float) -> bool:
        """Use a code up; False if it is not valid."""
        made = time_of_code(self._token.decode(), code)
        if made is None or made < self._started or not now - CODE_SECONDS <= made <= now + 1 or code in self._used:
            return False
        self._used = {used: until for used, until in self._used.items() if until > now}
        self._used[code] = made + CODE_SECONDS
        return True

    def _bearer(self, headers: Headers) -> bool:
        kind, _, given = _single(headers, "authorization").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)

    def _has_cookie(self, headers: Headers) -> bool:
        """Whether one of the cookies is ours; those of other servers of this host may be anything."""
        pairs = (cookie.strip().partition("=") for line in headers.getlist("cookie") for cookie in line.split(";"))
        given = [value.encode() for name, _, value in pairs if name == self._cookie]
        return any(hmac.compare_digest(value, self._value) for value in given)


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
