"""Change one table, such as `[cluster.NAME]`, in the user's configuration file; all other text stays as it is."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.app.jobs.config import Ignored, checked_tables, read_settings, user_file
from stoker.app.jobs.config_tables import check_cluster_name
from stoker.core.errors import StokerError, UsageError
from stoker.store.paths import replace_file


def own_file(environment: Mapping[str, str]) -> Path:
    """The file of the user, which may not exist yet."""
    path = user_file(environment)
    if path is None:
        raise UsageError("there is no home directory with a configuration file", "set HOME or XDG_CONFIG_HOME")
    return path


def table_in(path: Path, section: str, name: str) -> dict[str, Any] | None:
    """The table `[section.name]`; None if the file has none."""
    table: dict[str, Any] | None = _tables(_text(path), path).get(section, {}).get(name)
    return table


def write_table(path: Path, section: str, name: str, table: Mapping[str, Any]) -> None:
    """Add a table, or replace what the file says in it."""
    check_cluster_name(name)
    checked_tables(section, {name: dict(table)}, str(path))
    lines = "\n".join(f"{key} = {_toml(value)}" for key, value in table.items())
    _change(path, (section, name), f"[{section}.{name}]\n{lines}\n", dict(table))


def remove_table(path: Path, section: str, name: str) -> None:
    _change(path, (section, name), "", None)


def _change(path: Path, place: tuple[str, str], block: str, table: dict[str, Any] | None) -> None:
    """Replace the text of the table, and write only what reads as intended."""
    section, name = place
    real = Path(os.path.realpath(path))  # a link into a directory of dotfiles stays a link
    with _locked(real.parent):
        before = _text(path)
        text = _replaced(before, place, block)
        wanted = _tables(before, path)
        named = {key: value for key, value in wanted.pop(section, {}).items() if key != name}
        named |= {} if table is None else {name: table}
        tables = _tables(text, path)
        if (tables.pop(section, {}), tables) != (json.loads(json.dumps(named)), wanted):
            raise StokerError(
                f"{section}.{name} in {path} has a form that this command cannot change",
                f"change it with an editor, as a table [{section}.{name}]",
            )
        mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else 0o600
        replace_file(real, text.encode(), mode)


def _replaced(text: str, place: tuple[str, str], block: str) -> str:
    """The text with the table at its old place, else at the end."""
    section, name = place
    header = re.compile(rf"[ \t]*\[[ \t]*{section}[ \t]*\.[ \t]*[\"']?{re.escape(name)}[\"']?[ \t]*\][ \t]*(#.*)?")
    lines = text.splitlines(keepends=True)
    first = next((number for number, line in enumerate(lines) if header.fullmatch(line.rstrip("\r\n"))), None)
    if first is None:
        gap = "" if not text.strip() or text.endswith("\n\n") else "\n" if text.endswith("\n") else "\n\n"
        return f"{text}{gap}{block}" if block else text
    rest = range(first + 1, len(lines))
    last = next((number for number in rest if lines[number].lstrip().startswith("[")), len(lines))
    while last > first + 1 and re.match(r"\s*(#|$)", lines[last - 1]):
        last -= 1  # comments and blank lines before the next table belong to that
    return "".join([*lines[:first], block, *lines[last:]])


def _text(path: Path) -> str:
    for settings in read_settings(path):
        if isinstance(settings, Ignored):
            raise UsageError(settings.warning, "fix that first")
    return path.read_bytes().decode() if path.exists() else ""


def _tables(text: str, path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} would not be TOML: {error}", "change it with an editor") from None


def _toml(value: object) -> str:
    """A value as TOML; its strings are those of JSON, but for DEL."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Two commands at the same time change the file one after the other."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
