"""`stoker engine config`: every setting with its value and its origin."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
import msgspec
from msgspec import Struct

from stoker.cli.commands.engine_status import ANSWER_SECONDS, ask_for_news, not_in_force
from stoker.cli.output_options import wants_json
from stoker.core.text import printable, text_for_json
from stoker.queue.config import SYSTEM_FILE, Config, Row, load_config, user_file
from stoker.store.engine_lock import QUEUE, process_of
from stoker.store.paths import paths_for
from stoker.store.status_file import read_status


class ConfigShown(Struct, frozen=True):
    """All settings: `stoker engine config --json`."""

    schema: str
    files: list[str]
    """Those that were read, the weakest first."""
    settings: list[Row]


@click.command(name="config")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead.")
def command(as_json: bool) -> int:
    """Show every setting with its value and its origin.

    What a flag says goes before STOKER_* variables, those before stoker.toml or [tool.stoker] in pyproject.toml of the
    nearest directory, that before your own file, and that before the machine's. Values that look secret are not shown.
    An engine that runs reads changed files again, but keeps its devices, and what it was started with.
    """
    config = load_config(os.environ, Path.cwd())
    for warning in config.warnings:
        print(f"stoker: {printable(warning)}", file=sys.stderr)
    if wants_json(as_json):
        sys.stdout.write(msgspec.json.encode(_value(config)).decode() + "\n")
    else:
        _show(config)
    if notice := _not_in_force(config):
        print(f"stoker: {notice}", file=sys.stderr)
    return 0


def _not_in_force(config: Config) -> str:
    """What a living engine goes by in place of this; it is asked, since it may not have read what was just written."""
    paths = paths_for(simulated=False)
    pid = process_of(paths, QUEUE)
    if pid is None or not ask_for_news(paths, ANSWER_SECONDS):
        return ""
    view = read_status(paths.status_file(QUEUE))
    return not_in_force(config.engine, view if view and view.pid == pid else None)


def _show(config: Config) -> None:
    """A table for people on a terminal; for programs, columns between tabs."""
    rows = [(printable(row.key), printable(row.value), printable(row.origin)) for row in config.origins()]
    if not sys.stdout.isatty():
        print("\n".join("\t".join(row) for row in [("KEY", "VALUE", "ORIGIN"), *rows]))
        return
    key, value = (max(len(row[column]) for row in rows) for column in (0, 1))
    for name, text, origin in rows:
        print(f"{name:{key}}  {text:{min(value, 40)}}  {origin}")
    print(f"\nsettings of yours belong into {printable(str(user_file(os.environ) or SYSTEM_FILE))}", file=sys.stderr)


def _value(config: Config) -> ConfigShown:
    rows = [Row(*map(text_for_json, (row.key, row.value, row.origin))) for row in config.origins()]
    return ConfigShown("stoker.engine-config/1", [text_for_json(str(path)) for path in config.files], rows)
