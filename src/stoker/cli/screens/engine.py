"""Text of `stoker engine status`, `config` and `check`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from stoker import __version__
from stoker.app.jobs.config import SYSTEM_FILE, Config, SettingRow, user_file
from stoker.app.service.engine_status import EngineDevice, EngineOverview
from stoker.cli.console import print_line, tell
from stoker.cli.options import write_json, write_plain
from stoker.cli.screens.plain import tab_line
from stoker.core.units import count_text, duration_text, size_text

if TYPE_CHECKING:
    from stoker.app.service.doctor import Verdict


class ConfigShown(Struct, frozen=True):
    """All settings: `stoker engine config --json`."""

    schema: str
    files: list[str]
    """Those that were read, the weakest first."""
    settings: list[SettingRow]


def config_shown(config: Config) -> ConfigShown:
    return ConfigShown("stoker.engine-config/1", [str(path) for path in config.files], config.origins())


def print_config(config: Config) -> None:
    """A table on a terminal; for programs, columns between tabs."""
    rows = [(row.key, row.value, row.origin) for row in config.origins()]
    if not sys.stdout.isatty():
        write_plain(tab_line(row) for row in [("KEY", "VALUE", "ORIGIN"), *rows])
        return
    key, value = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, text, origin in rows:
        print_line(f"{name:{key}}  {text:{min(value, 40)}}  {origin}")
    tell("")
    tell(f"put your settings in {user_file(os.environ) or SYSTEM_FILE}")


def print_status(found: EngineOverview) -> None:
    for name, value in _status_lines(found):
        print_line(f"{name + ':':10}{value}")


def _status_lines(found: EngineOverview) -> Iterator[tuple[str, str]]:
    yield "engine", _engine(found)
    if found.since:
        since = datetime.fromisoformat(found.since)
        up = duration_text((datetime.now(UTC) - since).total_seconds())
        yield "since", f"{since.astimezone():%Y-%m-%d %H:%M:%S} ({up} ago)"
    if found.running:
        yield "devices", found.devices_note or count_text(len(found.devices), "device")
    for device in found.devices:
        yield f"  {device.label}", _device(device)
    yield "jobs", f"{found.active} running, {found.waiting} waiting, {found.parked} blocked"
    optional = {"queue": found.paused, "problem": found.trouble, "settings": found.not_in_force}
    yield from ((name, text) for name, text in optional.items() if text)
    yield "state", found.state
    yield "log", found.log


def _engine(found: EngineOverview) -> str:
    if not found.running:
        return "not running (starts automatically on submit; or run: stoker engine start)"
    version = f", version {found.version}" if found.version not in ("", __version__) else f", {__version__}"
    how = ", draining: starts no more jobs" if found.draining else ""
    fix = "see problem" if found.trouble else "see its log, then: stoker engine stop --force (jobs continue)"
    silence = "" if found.answers else f", but does not answer: {fix}"
    return f"running (process {found.pid}{version}{how}){silence}"


def _device(device: EngineDevice) -> str:
    memory = size_text(device.memory_bytes) if device.memory_bytes is not None else ""
    return " ".join(filter(None, (device.model, memory, device.problem and f"({device.problem})"))) or device.id


def report_check(findings: Iterable[Verdict], schema: str, *, as_json: bool) -> int:
    """Print all findings, each as soon as it is known: a driver may take its time. Returns the number of problems."""
    from stoker.app.service.doctor import Check

    lines = []
    for verdict in findings:
        lines.append(verdict)
        if not as_json:
            print_line(f"{verdict.level:8} {verdict.topic:10} {verdict.text}")
        if not as_json and verdict.advice:
            print_line(f"{'':19} → {verdict.advice}")
    problems = sum(verdict.level == "problem" for verdict in lines)
    if as_json:
        write_json(Check(schema, problems, lines))
    elif problems:
        tell(f"{count_text(problems, 'problem')} found")
    return problems
