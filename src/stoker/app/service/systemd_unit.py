"""The systemd units that keep the engine and the web server of one user running."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.core.errors import UsageError

NAME = "stoker.service"
WEB_NAME = "stoker-web.service"
MARK = "# Written by `stoker engine install`."
"""The first line of every unit that Stoker writes; a unit without it belongs to the user."""
_PASSED_ON = ("STOKER_STATE", "STOKER_LEDGER", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
"""Variables that must be the same for the engine and for front ends."""

_UNIT = """\
{mark}
[Unit]
Description=Stoker, a GPU job queue
Documentation=man:stoker(1)
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
{environment}\
# Jobs run under their own workers, which must survive a stop or restart of the engine.
KillMode=process
Restart=on-failure
RestartSec=10
# A job that uses too much memory must not stop the other jobs.
OOMPolicy=continue
TasksMax=infinity
UMask=0077
WorkingDirectory=/

[Install]
WantedBy=default.target
"""


_WEB_UNIT = """\
{mark}
[Unit]
Description=Stoker's web page
Documentation=man:stoker-web(1)
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
{environment}\
# An action may start the engine, which must survive a stop or restart of the server.
KillMode=process
# A link is for the user alone: stoker web prints one.
StandardOutput=null
Restart=on-failure
RestartSec=10
UMask=0077
WorkingDirectory=/

[Install]
WantedBy=default.target
"""


def unit_path(environment: Mapping[str, str], name: str = NAME) -> Path:
    home = environment.get("XDG_CONFIG_HOME", "")
    configured = Path(home) if home.startswith("/") else Path(os.path.expanduser("~")) / ".config"
    return configured / "systemd/user" / name


def unit_text(program: Sequence[str], environment: Mapping[str, str]) -> str:
    """The unit of the engine; `program` are the words that start Stoker."""
    return _filled(_UNIT, (*program, "engine", "run", "--stay"), environment)


def web_unit_text(program: Sequence[str], environment: Mapping[str, str]) -> str:
    """The unit of the web server."""
    return _filled(_WEB_UNIT, (*program, "web"), environment)


def _filled(unit: str, words: Sequence[str], environment: Mapping[str, str]) -> str:
    command = " ".join(map(_quoted, words))
    given = {name: environment[name] for name in _PASSED_ON if environment.get(name)}
    lines = "".join(f"Environment={_quoted(f'{name}={value}', variable=True)}\n" for name, value in given.items())
    return unit.format(mark=MARK, command=command, environment=lines)


def write_unit(path: Path, text: str) -> None:
    """Write the unit, unless one that Stoker did not write is there."""
    if not path.is_absolute():
        raise UsageError("there is no home directory to write the unit to", "set HOME")
    if not _is_ours(path):
        raise UsageError(
            f"{path} was not written by Stoker and was not changed",
            "move it away, or print the unit: stoker engine install --print",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".new")
    made.write_text(text)
    made.replace(path)


def missing_program(path: Path) -> str:
    """The program that Stoker's unit starts, if it no longer exists; else empty."""
    if not path.is_file() or not _is_ours(path):
        return ""
    (command,) = re.findall(r"^ExecStart=(.*)$", path.read_text(), re.MULTILINE) or [""]
    quoted = re.match(r'"((?:[^"\\]|\\.)*)"', command)
    word = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else command.partition(" ")[0]
    program = word.replace("%%", "%").replace("$$", "$")
    return "" if os.access(program, os.X_OK) else program


def _is_ours(path: Path) -> bool:
    """Whether there is no unit, or one that Stoker wrote."""
    if not os.path.lexists(path):
        return True
    return path.is_file() and MARK in path.read_text(errors="replace")


def _quoted(word: str, *, variable: bool = False) -> str:
    """A word quoted for systemd: specifiers, variables and escapes doubled."""
    if any(ord(character) < 32 or ord(character) == 127 for character in word):
        raise UsageError(f"{word!r} has characters that a unit cannot contain", "install Stoker under another path")
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if not variable:
        plain = plain.replace("$", "$$")
    return f'"{plain}"' if plain != word or not word or any(sign in word for sign in " ';") else plain
