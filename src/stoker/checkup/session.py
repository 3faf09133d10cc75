"""Whether jobs outlive the user's logout."""

from __future__ import annotations

import configparser
import contextlib
import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from stoker.checkup.verdict import Subject, Verdict, note, ok, output_of, problem
from stoker.unit import missing_program, unit_path

ROOT = Path("/")
_FOLDERS = ("usr/lib/systemd", "run/systemd", "etc/systemd")
"""Where the login manager is configured, the weakest first."""
_ASK = "busctl --timeout=3 get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"
_LINGER = "loginctl enable-linger"


def look_at_unit(subject: Subject) -> Iterator[Verdict]:
    """Whether the unit, where there is one, still starts something."""
    path = unit_path(subject.environment)
    if program := missing_program(path):
        yield problem("unit", f"{path} starts {program}, which is not there any more", "stoker engine install")
    elif path.exists():
        yield ok("unit", f"systemd starts the engine by {path}")


def look_at_session(subject: Subject, root: Path = ROOT) -> Iterator[Verdict]:
    """What happens to processes at the end of the user's last session."""
    if not (root / "run/systemd/system").is_dir():
        yield ok("logout", "no systemd runs here that could end jobs at logout")
        return
    yield _judged(
        kills=_asked("KillUserProcesses") if root == ROOT else None,
        configured=kills_user_processes(_logind_files(root)),
        lingers=lingers(root),
        unit=has_unit(subject.environment),
    )


def _judged(*, kills: bool | None, configured: bool | None, lingers: bool, unit: bool) -> Verdict:
    """Without a word of the login manager and its files, it is as distributions build it: nothing is killed."""
    if (kills if kills is not None else configured) and not (lingers and unit):
        needed = [*([] if lingers else [_LINGER]), *([] if unit else ["stoker engine install"])]
        text = "systemd ends all your processes at logout (KillUserProcesses=yes), the engine and jobs too"
        return problem("logout", text, " && ".join(needed))
    if unit and not lingers:
        text = "the engine's unit ends at your last logout, with all jobs, since your user does not linger"
        return problem("logout", text, _LINGER)
    if not lingers:
        return note("logout", "jobs outlive your logout, but nothing starts the engine after a boot", _for_boots())
    return ok("logout", "jobs outlive your logout")


def _for_boots() -> str:
    return f"if that matters: stoker engine install, and {_LINGER}"


def has_unit(environment: Mapping[str, str]) -> bool:
    """Whether systemd starts the engine."""
    return unit_path(environment).exists()


def lingers(root: Path = ROOT) -> bool:
    """Whether the user's services go on without a session."""
    with contextlib.suppress(KeyError):
        return (root / "var/lib/systemd/linger" / pwd.getpwuid(os.getuid()).pw_name).exists()
    return False


def kills_user_processes(texts: Iterable[str]) -> bool | None:
    """What configuration files say, the weakest first; None where none says anything."""
    found: bool | None = None
    for text in texts:
        parser = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True)
        with contextlib.suppress(configparser.Error):
            parser.read_string(text)
            value = parser.get("Login", "KillUserProcesses", fallback="") or ""
            found = value.strip().lower() in ("yes", "true", "on", "1") if value.strip() else found
    return found


def _logind_files(root: Path) -> Iterator[str]:
    """The main file of the strongest folder, then all pieces by name; a stronger folder replaces namesakes."""
    folders = [root / folder for folder in _FOLDERS]
    mains = [path for folder in folders if (path := folder / "logind.conf").is_file()]
    pieces = {path.name: path for folder in folders for path in (folder / "logind.conf.d").glob("*.conf")}
    for path in [*mains[-1:], *(pieces[name] for name in sorted(pieces))]:
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


def _asked(name: str) -> bool | None:
    """What the login manager itself says, where it can be asked."""
    answer = output_of([*_ASK.split(), name])
    return None if answer is None else answer.split() == ["b", "true"]
