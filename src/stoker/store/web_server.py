"""The running web servers of a queue, known by their locked files, and the token of the links of its own page."""

from __future__ import annotations

import contextlib
import os
import re

import msgspec
from msgspec import Struct

from stoker.core.errors import StokerError
from stoker.store.paths import UNREADABLE, Paths, replace_file, try_lock

OWN_PAGE = "web"
"""The page of the queue itself; the names of others are those of shared pages."""
_TOKEN_BYTES = 24
CODE_SECONDS = 600.0
"""How long the code of a link is valid."""
_LEAST = 20
"""Characters; a shorter token was not made here."""


class WebServer(Struct, frozen=True):
    """A web server, as it says of itself."""

    pid: int
    address: str
    """`http://127.0.0.1:7717`, or the path of its socket."""
    readonly: bool = False


class WebLock:
    """Proves that the web server of a page is alive; the kernel releases it however the server ends."""

    def __init__(self, paths: Paths, page: str = OWN_PAGE) -> None:
        self._descriptor = os.open(paths.page_server(page), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not try_lock(self._descriptor):
            os.close(self._descriptor)
            raise StokerError("a web server of this queue runs already", "stop it first, or use its address")

    def announce(self, server: WebServer) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.json.encode(server), 0)

    def close(self) -> None:
        """Release the lock; the file stays, so that the next server takes the same port."""
        os.close(self._descriptor)


def running_web_server(paths: Paths, page: str = OWN_PAGE) -> WebServer | None:
    """The web server of a page of this queue; None if none runs."""
    try:
        descriptor = os.open(paths.page_server(page), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if try_lock(descriptor):
            return None
        with contextlib.suppress(*UNREADABLE):
            return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=WebServer)
        return None
    finally:
        os.close(descriptor)


def web_address(paths: Paths) -> str:
    """The address of the running web server, without its token; empty if none runs."""
    running = running_web_server(paths)
    return "" if running is None else running.address


def last_address(paths: Paths, page: str = OWN_PAGE) -> str:
    """The address of the server that ran last; empty if unknown."""
    with contextlib.suppress(*UNREADABLE):
        return msgspec.json.decode(paths.page_server(page).read_bytes(), type=WebServer).address
    return ""


def web_token(paths: Paths, *, new: bool = False) -> str:
    """The token of this queue, made on first use and kept, so that links and open pages survive a restart."""
    if not new:
        with contextlib.suppress(OSError, ValueError):
            if len(kept := paths.web_token.read_text(encoding="ascii").strip()) >= _LEAST:
                return kept
    token = os.urandom(_TOKEN_BYTES).hex()
    replace_file(paths.web_token, f"{token}\n".encode())
    return token


def entry_code(token: str, now: float) -> str:
    """A code for a link, which is valid once and not for long; any process that knows the token can make one."""
    told = f"{int(1000 * now):x}-{os.urandom(8).hex()}"
    return f"{told}-{_signature(token, told)}"


def time_of_code(token: str, code: str) -> float | None:
    """When a code was made; None if it was not made with this token."""
    told, _, signature = code.rpartition("-")
    if not re.fullmatch(r"(?a)[0-9a-f]{1,16}-[0-9a-f]{16}", told):
        return None
    import hmac  # its library is slow to load, and other commands only need the address

    if not hmac.compare_digest(signature.encode(), _signature(token, told).encode()):
        return None
    return int(told.partition("-")[0], 16) / 1000


def _signature(token: str, told: str) -> str:
    import hmac

    return hmac.new(token.encode(), f"code {told}".encode(), "sha256").hexdigest()[:32]
