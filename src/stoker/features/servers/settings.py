"""The servers of the configuration, and those that ssh knows by a name."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from stoker.app.jobs.config import load_config
from stoker.core.errors import UsageError, did_you_mean

SECTION = "servers"
ANY = "any"
_KEYS = {"ssh": str, "local": bool, "before": str}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", re.ASCII)
_ADD = "stoker servers add NAME"


class SshServer(Struct, frozen=True):
    """A machine with a queue of its own."""

    name: str
    ssh: tuple[str, ...]
    """The words that reach it, the host last; none if it is this machine."""
    before: str = ""
    """A line for sh that runs there before every command."""

    @property
    def host(self) -> str:
        """The words to type after `ssh`."""
        return shlex.join(self.ssh[1:])


def checked_servers(tables: object, place: str) -> dict[str, dict[str, Any]]:
    """The `[servers.NAME]` tables of a file, every value checked."""
    if not isinstance(tables, dict):
        raise UsageError(f"{place}: servers is not a table", f"add servers with: {_ADD}")
    return {name: _checked(name, table, f"{place}: [servers.{name}]") for name, table in tables.items()}


def _checked(name: str, table: object, place: str) -> dict[str, Any]:
    check_name(name)
    if not isinstance(table, dict):
        raise UsageError(f"{place} is not a table", f"write [servers.{name}] above its settings")
    for key, value in table.items():
        if key not in _KEYS:
            raise UsageError(f"{place}: unknown key {key!r}", did_you_mean(key, _KEYS, f"known: {', '.join(_KEYS)}"))
        if type(value) is not _KEYS[key]:
            raise UsageError(f"{place}: {key} is {value!r}", 'write ssh = "ssh HOST", local = true or before = "LINE"')
    words = _split(table.get("ssh", f"ssh {name}"), place)
    return {"ssh": shlex.join(words), **table}  # so that a table without keys is one all the same


def _split(text: str, place: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{place}: ssh is {text!r}: {error}", "write it as 'ssh -J gate gpu2'") from None
    if len(words) < 2 or words[-1].startswith("-"):
        raise UsageError(f"{place}: ssh is {text!r}, which names no host", "write it as 'ssh -J gate gpu2'")
    return words


def check_name(name: str) -> None:
    if name == ANY:
        raise UsageError("'any' means whichever server is free first", "choose another name")
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name of a server", "letters, digits, - and _ make one, at most 40 of them")


def server_of(name: str, table: Mapping[str, Any]) -> SshServer:
    """The server that a table describes."""
    words = () if table.get("local") else tuple(_split(table.get("ssh", f"ssh {name}"), name))
    home = os.path.expanduser("~")
    return SshServer(
        name, tuple(f"{home}{word[1:]}" if word.startswith("~/") else word for word in words), table.get("before", "")
    )


def servers() -> dict[str, SshServer]:
    """Those of the configuration, by their names."""
    tables = load_config(os.environ, None).tables[SECTION]
    return {name: server_of(name, table) for name, table in tables.items()}


def server_named(name: str) -> SshServer:
    """A server of the configuration, or a host that ssh knows by this name."""
    listed = servers()
    if name in listed:
        return listed[name]
    if name in (hosts := ssh_names()):
        return server_of(name, {})
    check_name(name)
    raise UsageError(
        f"there is no server {name!r}", did_you_mean(name, [*listed, *hosts], f"add it: stoker servers add {name}")
    )


def ssh_names() -> list[str]:
    """The names in the user's configuration of ssh, without patterns."""
    try:
        text = Path("~/.ssh/config").expanduser().read_text(errors="replace")
    except (OSError, RuntimeError):
        return []
    lines = re.findall(r"(?im)^[ \t]*Host[ \t=]+(.+)$", text)
    return [name for line in lines for name in line.split("#")[0].split() if _NAME.fullmatch(name)]
