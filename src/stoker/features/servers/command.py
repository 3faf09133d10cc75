"""`stoker servers`: the list of servers; each command imports what it needs late."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from stoker.cli.console import print_line, say, tell
from stoker.cli.main import LazyGroup
from stoker.cli.options import json_option, wants_json
from stoker.core.errors import StokerError, UsageError

if TYPE_CHECKING:
    from stoker.app.service.doctor import Verdict
    from stoker.features.servers.protocol import AboutReply
    from stoker.features.servers.settings import SshServer

COMMANDS = {
    "add": "Add a server to your configuration.",
    "list": "List the servers.",
    "check": "Tell whether servers can be used, and what to do if they cannot.",
    "remove": "Take a server out of your configuration.",
}
_OFF_SECONDS = 60
"""Seconds by which the clocks of two machines may differ without a note."""


@click.group(name="servers", cls=LazyGroup, sentences=COMMANDS)
def command() -> None:
    """Use the queues of other servers through ssh. Each server has Stoker and a queue of its own; nothing else runs.

    \b
      stoker servers add gpu2                            reached by: ssh gpu2
      stoker servers add gpu3 --ssh 'ssh -J gate gpu3'
      stoker status --servers                            all of them
      stoker submit -S gpu2 -- python3 train.py          prints gpu2:12
      stoker logs -f gpu2:12
    """


@command.command(name="add")
@click.argument("name")
@click.option("--ssh", metavar="COMMAND", help="How to reach it, for example 'ssh -J gate gpu2'; else: ssh NAME.")
@click.option("--local", is_flag=True, help="It is this machine.")
@click.option("--before", metavar="LINE", help="Line for sh that runs there first: '. ~/venv/bin/activate'.")
def add(name: str, **given: Any) -> int:
    """Add a server to your configuration, or replace what it says of that server. It must answer.

    \b
      stoker servers add gpu2
      stoker servers add gpu3 --ssh 'ssh -p 2222 -J gate me@gpu3.lab.org'
    """
    from stoker.app.jobs.config_file import own_file, write_table
    from stoker.features.servers.protocol import AboutQuestion, AboutReply, ask
    from stoker.features.servers.settings import SECTION, checked_servers, server_of, servers

    if given["ssh"] and given["local"]:
        raise UsageError("--local is this machine, which needs no ssh", "leave one of them out")
    table = {key: value for key, value in given.items() if value}
    checked_servers({name: table}, "here")
    server = server_of(name, table)
    reply = ask(server, AboutQuestion(), AboutReply)
    _refuse_twice(server, reply, [other for other in servers().values() if other.name != name])
    path = own_file(os.environ)
    write_table(path, SECTION, name, table or {"ssh": f"ssh {name}"})
    say(f"{name} is in {path}: stoker {reply.version} of {reply.user} on {reply.host}")
    return 0


def _refuse_twice(server: SshServer, reply: AboutReply, others: list[SshServer]) -> None:
    """Refuse a queue that has a name already; servers that cannot be asked now are compared by `check`."""
    from stoker.features.servers.state import on_all
    from stoker.store.paths import identity_of, paths_for

    if server.ssh and reply.queue == identity_of(paths_for()):
        raise UsageError(f"{server.name} is this machine", f"type: stoker servers add {server.name} --local")
    for other, about in zip(others, on_all(others, _about), strict=True):
        if not isinstance(about, StokerError) and about.queue == reply.queue:
            raise UsageError(f"{server.name} is the same queue as {other.name}", f"use the name {other.name}")


def _about(server: SshServer) -> AboutReply | StokerError:
    from stoker.features.servers.protocol import AboutQuestion, AboutReply, ask

    try:
        return ask(server, AboutQuestion(), AboutReply)
    except StokerError as error:
        return error


@command.command(name="list")
def list_servers() -> int:
    """List the servers, and the names of ssh that can be added."""
    from stoker.features.servers.settings import servers, ssh_names

    listed = servers()
    for server in listed.values():
        print_line(f"{server.name:16} {'this machine' if not server.ssh else ' '.join(server.ssh)}")
    if more := [name for name in ssh_names() if name not in listed]:
        tell(f"ssh also knows {', '.join(more)}; add one: stoker servers add {more[0]}")
    elif not listed:
        tell("there are no servers; add one: stoker servers add NAME")
    return 0


@command.command(name="check")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@json_option
def check(names: tuple[str, ...], as_json: bool) -> int:
    """Tell whether servers can be used, by default all. Exit code 1 if there is a problem."""
    from stoker.cli.screens.engine import report_check
    from stoker.features.servers.settings import server_named, servers

    chosen = [server_named(name) for name in names] if names else list(servers().values())
    if not chosen:
        raise UsageError("there are no servers", "add one: stoker servers add NAME")
    return 1 if report_check(_verdicts(chosen), "stoker.servers-check/1", as_json=wants_json(as_json)) else 0


def _verdicts(chosen: list[SshServer]) -> Iterator[Verdict]:
    from stoker import __version__
    from stoker.app.service.doctor import Verdict
    from stoker.features.servers.state import on_all

    queues: dict[str, str] = {}
    for server, (about, off) in zip(chosen, on_all(chosen, _timed_about), strict=True):
        if isinstance(about, StokerError):
            yield Verdict(server.name, "problem", about.message, about.hint)
            continue
        yield Verdict(server.name, "ok", f"stoker {about.version} of {about.user} on {about.host}")
        if about.version != __version__:
            yield Verdict(server.name, "note", f"this machine has stoker {__version__}", "install the same on both")
        if about.queue in queues:
            same = f"it is the same queue as {queues[about.queue]}"
            yield Verdict(server.name, "problem", same, f"type: stoker servers remove {server.name}")
        if off > _OFF_SECONDS:
            yield Verdict(server.name, "note", f"its clock differs by {off:.0f} s", "times on screens are its own")
        queues.setdefault(about.queue, server.name)


def _timed_about(server: SshServer) -> tuple[AboutReply | StokerError, float]:
    """The reply, and by how many seconds the clock of the server is off at least."""
    import time

    before = time.time()
    about = _about(server)
    if isinstance(about, StokerError):
        return about, 0.0
    return about, max(before - about.now, about.now - time.time(), 0.0)


@command.command(name="remove")
@click.argument("name")
def remove(name: str) -> int:
    """Take a server out of your configuration. Its jobs stay in its queue."""
    from stoker.app.jobs.config_file import own_file, remove_table, table_in
    from stoker.features.servers.connection import close
    from stoker.features.servers.settings import SECTION, server_named
    from stoker.features.servers.state import forget
    from stoker.store.paths import paths_for

    path = own_file(os.environ)
    if table_in(path, SECTION, name) is None:
        raise UsageError(f"{name} is not in {path}", "see: stoker servers list")
    close(server_named(name))
    remove_table(path, SECTION, name)
    forget(name, paths_for())
    say(f"{name} is no longer in {path}; its jobs stay in its queue")
    return 0


@command.command(name="answer", hidden=True)
@json_option
def answer_question(as_json: bool) -> int:
    """Answer a question of another machine; for Stoker itself."""
    from stoker.features.servers.answer import answer

    assert as_json, "the other machine reads JSON"
    return answer(sys.stdin.buffer)
