"""`stoker web`: a live page of the queue for browsers."""

from __future__ import annotations

import os
import time

import click

from stoker.cli.console import say, tell
from stoker.cli.options import StokerCommand, sim_option
from stoker.cli.shared_page import PageSharing, extra_needed, reach, share, sharing_options
from stoker.core.errors import StokerError, UsageError
from stoker.devices.interface import user_name
from stoker.store.paths import Paths, replace_file
from stoker.store.web_server import WebLock, WebServer, entry_code, running_web_server, web_token


@click.command(name="web", cls=StokerCommand)
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Port, default 7717 or the next free one.")
@click.option("--socket", "path", metavar="PATH", help="Listen on a Unix socket (mode 0600) instead of a port.")
@click.option("--readonly", is_flag=True, help="Refuse all actions: the page only shows.")
@click.option("--open", "opens", is_flag=True, help="Open the page in your browser.")
@click.option("--new-token", is_flag=True, help="Make a new token; links and open pages of the old one stop working.")
@sharing_options
@sim_option
def command(
    *,
    port: int | None,
    path: str | None,
    readonly: bool,
    opens: bool,
    new_token: bool,
    sharing: PageSharing | None,
    paths: Paths,
) -> int:
    """Serve a live page of the queue: GPUs, timeline, jobs, logs and history; Ctrl-C ends it.

    It prints a link that works once, within ten minutes; the browser then stays admitted for 30 days. Only programs on
    this machine can connect, and nothing is served without such a link or the token. From another computer, open a
    tunnel with the ssh command that it prints, and use the same link. If a server of this queue runs already, a new
    link to it is printed.

    \b
      stoker web                  print the link, and serve
      stoker web --open           open it in your browser
      stoker web --readonly       for a screen on the wall
      stoker web --socket ~/web   no port: ssh -L 7717:/home/you/web SERVER
      stoker web --lab --link 7d  the page of all users, for those who get the link
    """
    if port is not None and path is not None:
        raise UsageError("--port and --socket cannot be combined", "give one of them")
    if sharing is not None:
        if readonly or opens or new_token:
            raise UsageError(
                f"--{sharing.page} only reads, and has links of its own", "leave out --readonly, --open and --new-token"
            )
        return share(paths, sharing, port, path)
    if (running := running_web_server(paths)) is not None:
        return _show_running(paths, running, new_token=new_token, opens=opens)
    with extra_needed():
        from stoker.web import page, server
        from stoker.web.api import ServedQueue
    from contextlib import closing

    from stoker.store.writer import open_store

    open_store(paths).close()  # a queue that cannot be read is reported here
    with closing(WebLock(paths)) as lock, server.listening(paths, port, path) as (listener, address):
        started, token = int(time.time()), web_token(paths, new=new_token)
        if not page.is_built():
            say(f"the page is missing, only the API is served; {page.BUILD}")
        _announce(paths, WebServer(os.getpid(), address, readonly), token, opens=opens)
        tell("the link works once, within ten minutes; stoker web prints another")
        tell("Ctrl-C ends the server; jobs are not affected")
        service = ServedQueue(paths, user_name(os.geteuid()), readonly, started)
        server.serve(service, token, listener, address, lock)
    return 0


def _show_running(paths: Paths, running: WebServer, *, new_token: bool, opens: bool) -> int:
    if new_token:
        raise StokerError(
            f"a server with the old token runs (process {running.pid})", f"end it first: kill {running.pid}"
        )
    say(f"a server of this queue runs already (process {running.pid})")
    _announce(paths, running, web_token(paths), opens=opens)
    return 0


def _announce(paths: Paths, running: WebServer, token: str, *, opens: bool) -> None:
    """Print the link, and how to reach it from another computer."""
    address, tunnel = reach(running.address)
    link = f"{address}?code={entry_code(token, time.time())}"
    print(link, flush=True)
    tell(f"from another computer: {tunnel}")
    if opens and running.address.startswith("http://"):
        _open(paths, link)
    elif opens:
        say("a browser cannot open a Unix socket; use the tunnel above")


def _open(paths: Paths, link: str) -> None:
    """Open the link through a private file: other users see the arguments of the browser, and could be first."""
    import webbrowser

    text = f'<!doctype html><meta http-equiv="refresh" content="0; url={link}"><a href="{link}">Stoker</a>\n'
    replace_file(paths.web_entrance, text.encode())
    if not webbrowser.open(paths.web_entrance.as_uri()):
        say("no browser found; open the link above")
