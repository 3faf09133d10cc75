"""`stoker web --PAGE`: share a page of a feature with others, who may read it; and its links."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from stoker.app.jobs.installation import how_to_add_extra
from stoker.app.jobs.local_time import LocalZone
from stoker.cli.console import say, tell
from stoker.core.errors import StokerError, UsageError
from stoker.core.units import count_text, parse_duration
from stoker.devices.interface import user_name
from stoker.features import shared_pages
from stoker.store.paths import Paths, host_name
from stoker.store.web_passes import make_pass, read_passes, revoke_pass
from stoker.store.web_server import WebLock, WebServer, running_web_server

MISSING = ("anyio", "prometheus_client", "sse_starlette", "starlette", "uvicorn")
"""Libraries of the extra `web`."""
PORT = 7717
"""Of this machine, and of another computer that uses a tunnel to a Unix socket."""
USUAL_SECONDS = 7 * 86400.0


class PageSharing(Struct, frozen=True):
    """A page to share, and what the user wants of its links."""

    page: str
    link: str | None
    """How long a new link is valid."""
    lists: bool
    revokes: int | None


def sharing_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add an option for each page that a feature shares, and those of links, passed to the command as `sharing`."""
    pages = shared_pages()

    @wraps(function)
    def wrapped(
        *,
        page: str | None = None,
        link: str | None = None,
        lists: bool = False,
        revokes: int | None = None,
        **given: Any,
    ) -> int:
        if page is None and (link is not None or lists or revokes is not None):
            raise UsageError("only a page for others has such links", f"stoker web --{next(iter(pages))} --link 7d")
        return function(sharing=page and PageSharing(page, link, lists, revokes), **given)

    if not pages:
        return wrapped
    decorated: Callable[..., int] = wrapped
    for option in (
        click.option("--revoke", "revokes", type=int, metavar="N", help="End link N of the page before its time."),
        click.option("--links", "lists", is_flag=True, help="List the links of the page that are valid."),
        click.option("--link", metavar="TIME", help="Make a link to the page that only reads, valid for this long: 7d"),
        *(click.option(f"--{name}", "page", flag_value=name, help=page.sentence) for name, page in pages.items()),
    ):
        decorated = option(decorated)
    return decorated


def share(paths: Paths, wanted: PageSharing, port: int | None, path: str | None) -> int:
    now = time.time()
    if wanted.link is not None:
        parse_duration(wanted.link)
    if wanted.revokes is not None:
        revoke_pass(paths, wanted.page, wanted.revokes, now)
        tell(f"revoked link {wanted.revokes}; open pages of it stop working")
    elif wanted.lists:
        _list_links(paths, wanted.page, now)
    elif (running := running_web_server(paths, wanted.page)) is not None:
        if port is not None or path is not None:
            where = f"a server of this page runs already at {running.address} (process {running.pid})"
            raise StokerError(where, f"end it first: kill {running.pid}")
        say(f"a server of this page runs already (process {running.pid})")
        _announce(paths, wanted, running.address)
    else:
        _serve(paths, wanted, port, path)
    return 0


def _serve(paths: Paths, wanted: PageSharing, port: int | None, path: str | None) -> None:
    with extra_needed():
        from stoker.web import page, server
        from stoker.web.api import ServedQueue
        from stoker.web.guard import OpenDoor, PassDoor
    from stoker.store.writer import open_store

    open_store(paths).close()  # a queue that cannot be read is reported here
    if not page.is_built(f"{wanted.page}.html"):
        say(f"the page is missing, only the API is served; {page.BUILD}")
    with (
        closing(WebLock(paths, wanted.page)) as lock,
        server.listening(paths, port, path, wanted.page) as (listener, address),
    ):
        _announce(paths, wanted, address)
        tell("Ctrl-C ends the server; jobs are not affected")
        service = ServedQueue(paths, user_name(os.geteuid()), readonly=True, started=time.time())
        door = OpenDoor() if path is not None else PassDoor(paths, wanted.page)
        app = server.shared_application(service, wanted.page, door)
        server.serve_application(app, listener, WebServer(os.getpid(), address, readonly=True), lock)


def _announce(paths: Paths, wanted: PageSharing, address: str) -> None:
    """Print the link, and a new pass if one is wanted or none is valid."""
    link, tunnel = reach(address)
    now = time.time()
    if not address.startswith("http://"):
        if wanted.link is not None:
            raise UsageError(f"all users may read {address} without a link", "leave out --link")
        print(link, flush=True)
        _check_reach(Path(address))
        tell(f"each user of this machine may read it through a tunnel: {tunnel}")
        return
    seconds = None if wanted.link is None else parse_duration(wanted.link)
    if seconds is None and not read_passes(paths, wanted.page, now):
        seconds = USUAL_SECONDS
    print(link, flush=True)
    if seconds is not None:
        made, text = make_pass(paths, wanted.page, seconds, now)
        print(text, flush=True)
        tell(f"the page asks each browser once for this pass; it only reads, until {_moment(made.until)}")
        tell(f"to end it before: stoker web --{wanted.page} --revoke {made.number}")
    else:
        tell(f"its passes stay valid; a new one: stoker web --{wanted.page} --link 7d")
    tell(f"from another computer: {tunnel}")


@contextmanager
def extra_needed() -> Iterator[None]:
    """Tell how to get a library of the extra `web` that cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in MISSING:
            raise
        raise StokerError(f"stoker web needs the package {error.name}", how_to_add_extra("web")) from error


def reach(address: str) -> tuple[str, str]:
    """The link to a server, and the command that leads to it from another computer."""
    at_port = address.startswith("http://")
    port = address.rpartition(":")[2] if at_port else str(PORT)
    end = f"127.0.0.1:{port}" if at_port else shlex.quote(address)
    tunnel = f"ssh -L {port}:{end} {user_name(os.geteuid())}@{host_name()}"
    return f"http://127.0.0.1:{port}/", tunnel


def _list_links(paths: Paths, page: str, now: float) -> None:
    passes = read_passes(paths, page, now)
    for link in passes:
        print(f"{link.number}\tmade {_moment(link.made)}\tvalid until {_moment(link.until)}")
    if passes:
        tell(f"{count_text(len(passes), 'link')}; to end one: stoker web --{page} --revoke N")
    else:
        tell(f"no link is valid; make one: stoker web --{page} --link 7d")


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, LocalZone()).strftime("%Y-%m-%d %H:%M")


def _check_reach(path: Path) -> None:
    """Say which directory keeps other users from the socket."""
    for folder in path.parents:
        if not folder.stat().st_mode & 0o001:
            say(f"other users cannot reach it: {shlex.quote(str(folder))} is private; give a path elsewhere")
            return
