"""Text of `stoker engine status`, `config` and `check`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from stoker import __version__
from stoker.app.jobs.config import SYSTEM_FILE, Config, Row, user_file
from stoker.app.service.engine_status import EngineDevice, EngineStatus
from stoker.cli.output_options import write_json
from stoker.core.text import printable, text_for_json
from stoker.core.units import count_text, duration_text, size_text

if TYPE_CHECKING:
    from stoker.app.service.doctor import Verdict


class ConfigShown(Struct, frozen=True):
    """All settings: `stoker engine config --json`."""

    schema: str
    files: list[str]
    """Those that were read, the weakest first."""
    settings: list[Row]


def config_shown(config: Config) -> ConfigShown:
    rows = [Row(*map(text_for_json, (row.key, row.value, row.origin))) for row in config.origins()]
    return ConfigShown("stoker.engine-config/1", [text_for_json(str(path)) for path in config.files], rows)


def print_config(config: Config) -> None:
    """A table on a terminal; for programs, columns between tabs."""
    rows = [(printable(row.key), printable(row.value), printable(row.origin)) for row in config.origins()]
    if not sys.stdout.isatty():
        print("\n".join("\t".join(row) for row in [("KEY", "VALUE", "ORIGIN"), *rows]))
        return
    key, value = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, text, origin in rows:
        print(f"{name:{key}}  {text:{min(value, 40)}}  {origin}")
    print(f"\nput your settings in {printable(str(user_file(os.environ) or SYSTEM_FILE))}", file=sys.stderr)


def print_status(found: EngineStatus) -> None:
    for name, value in _status_lines(found):
        print(f"{name + ':':10}{printable(value)}")


def _status_lines(found: EngineStatus) -> Iterator[tuple[str, str]]:
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


def _engine(found: EngineStatus) -> str:
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

    found = []
    for verdict in findings:
        text, advice = text_for_json(verdict.text), text_for_json(verdict.advice)
        found.append(replace(verdict, text=text, advice=advice))
        if not as_json:
            print(f"{verdict.level:8} {verdict.topic:10} {printable(verdict.text)}", flush=True)
        if not as_json and verdict.advice:
            print(f"{'':19} → {printable(verdict.advice)}", flush=True)
    problems = sum(verdict.level == "problem" for verdict in found)
    if as_json:
        write_json(Check(schema, problems, found))
    elif problems:
        print(f"{count_text(problems, 'problem')} found", file=sys.stderr)
    return problems
