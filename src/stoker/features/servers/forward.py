"""Run a command on the server that it names, as it was typed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from stoker.cli.options import SERVER, CommandElsewhere
from stoker.core.errors import UsageError
from stoker.features.servers.connection import run_attached
from stoker.features.servers.settings import ANY, SshServer, server_named, servers, ssh_names


def forward(line: CommandElsewhere) -> int | None:
    """The exit code of the command there; None if its ids are of this machine after all."""
    place = _place(line)
    if place is None:
        return None
    words = [_plain(word, place.name) if word in line.ids else word for word in _without_server(line.words)]
    terminal = os.isatty(0) and os.isatty(1)
    if line.command in ("shell", "top") and not terminal:
        raise UsageError(f"stoker {line.command} needs a terminal", "type it in one")
    sys.stdout.flush()
    return run_attached(place, [line.command, *words], terminal=terminal)


def _place(line: CommandElsewhere) -> SshServer | None:
    """The one server that option and ids name."""
    names = {*servers(), *ssh_names()}
    prefixes = [word.partition(":")[0] if ":" in word else "" for word in line.ids]
    named = {prefix for prefix in prefixes if prefix in names}
    if not line.server and not named:
        return None
    if line.server == ANY:
        raise UsageError("-S any is for new jobs", f"name the server: stoker {line.command} -S NAME")
    every = named | ({line.server} if line.server else set())
    if len(every) > 1 or (not line.server and not all(prefix in named for prefix in prefixes)):
        raise UsageError("the jobs are on several machines", "name jobs of one machine at a time")
    return server_named(every.pop())


def _plain(word: str, name: str) -> str:
    """An id as it is on its own server, also in a list such as `gpu2:3,gpu2:7`."""
    return ",".join(part.removeprefix(f"{name}:") for part in word.split(","))


def _without_server(words: Sequence[str]) -> list[str]:
    """The words without the option that names the server, which click has found before."""
    short, long = SERVER
    for place, word in enumerate(words):
        if word in SERVER:
            return [*words[:place], *words[place + 2 :]]
        if word.startswith(f"{long}=") or (word.startswith(short) and not word.startswith("--")):
            return [*words[:place], *words[place + 1 :]]
    return list(words)
