"""Configuration files: where they are, and whether what stands in them can be trusted."""

from __future__ import annotations

import codecs
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from stoker.core.errors import UsageError

_MENTIONED = re.compile(rb"""tool['"\s]*\.[\s'"]*stoker""")


class Settings(Struct, frozen=True):
    """What a file says."""

    path: Path
    table: dict[str, Any]
    project: bool = False
    """Whether it belongs to a directory of jobs rather than to a user or a machine."""


class Ignored(Struct, frozen=True):
    """A file that is there and must not be believed, or cannot be read."""

    path: Path
    why: str

    @property
    def warning(self) -> str:
        """A sentence for the user."""
        return f"{self.path} is ignored: {self.why}"


def user_file(environment: Mapping[str, str]) -> Path | None:
    """The user's own file; as the XDG rules have it, a relative path counts as none."""
    chosen, home = (Path(environment.get(name, "")) for name in ("XDG_CONFIG_HOME", "HOME"))
    if chosen.is_absolute():
        return chosen / "stoker/config.toml"
    return home / ".config/stoker/config.toml" if home.is_absolute() else None


def read_settings(path: Path) -> Iterator[Settings | Ignored]:
    """What the file says, or why it is ignored; nothing where there is none."""
    data = _read_trusted(path)
    if isinstance(data, Ignored):
        yield data
    elif data is not None:
        yield Settings(path, _parsed(data, path))


def read_project(directory: Path) -> Iterator[Settings | Ignored]:
    """The nearest stoker.toml or [tool.stoker] from the directory upwards, and what had to be ignored on the way."""
    start = directory.absolute()
    for above in (start, *start.parents):
        for found in (*_stoker_toml(above / "stoker.toml"), *_pyproject(above / "pyproject.toml")):
            yield found
            if isinstance(found, Settings):
                return


def _stoker_toml(path: Path) -> Iterator[Settings | Ignored]:
    for found in read_settings(path):
        yield Settings(path, found.table, project=True) if isinstance(found, Settings) else found


def _pyproject(path: Path) -> Iterator[Settings | Ignored]:
    """Most of these files are not about us, whoever they belong to and whatever is wrong with them."""
    data = _read_trusted(path, _MENTIONED)
    if isinstance(data, Ignored):
        yield data
    elif data is not None and b"stoker" in data:
        table = _tool_table(data, path)
        if table is not None:
            yield Settings(path, table, project=True)


def _tool_table(data: bytes, path: Path) -> dict[str, Any] | None:
    try:
        tools = _parsed(data, path).get("tool")
    except UsageError:
        if _MENTIONED.search(data):
            raise
        return None
    table = tools.get("stoker") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise UsageError(f"{path}: tool.stoker is not a table", "write [tool.stoker.defaults] above the options")
    return table


def _parsed(data: bytes, path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(data.removeprefix(codecs.BOM_UTF8).decode())
    except (ValueError, RecursionError) as error:
        hint = 'write lines such as reserve = "512M", and job options under [defaults]'
        raise UsageError(f"{path} is not TOML: {error}", hint) from None


def _read_trusted(path: Path, only_with: re.Pattern[bytes] | None = None) -> bytes | Ignored | None:
    """The contents, if nobody but this user and root could have written them; None where there is no such file.

    With a pattern, a file that cannot be trusted is told of only if its contents match.
    """
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            found = os.fstat(file.fileno())
            data = file.read() if stat.S_ISREG(found.st_mode) else b""
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return Ignored(path, f"it cannot be read ({error.strerror})") if _is_there(path) and not only_with else None
    why = _distrust(found)
    if not why:
        return data
    return Ignored(path, why) if only_with is None or only_with.search(data) else None


def _open_at_once(path: str, flags: int) -> int:
    """Somebody may have put a pipe there, on which opening would wait for ever."""
    return os.open(path, flags | os.O_NONBLOCK)


def _distrust(found: os.stat_result) -> str:
    """Why the file might say what somebody else wants; empty where it cannot."""
    if not stat.S_ISREG(found.st_mode):
        return "it is not a file"
    if found.st_uid not in (0, os.geteuid()):
        return f"it belongs to {_user_name(found.st_uid)}, who could have your jobs run anything"
    if found.st_mode & stat.S_IWOTH:
        return "everybody may write to it (chmod o-w would help)"
    return ""


def _is_there(path: Path) -> bool:
    """False also in a directory that cannot be entered, where nobody can tell."""
    try:
        path.lstat()
    except OSError:
        return False
    return True


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
