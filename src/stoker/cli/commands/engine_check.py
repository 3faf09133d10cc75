"""`stoker engine check`: what is wrong with this machine, and what to do."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import click
import msgspec
from msgspec import Struct

from stoker.cli.commands.engine import of_simulated
from stoker.cli.commands.engine_status import ANSWER_SECONDS, ask_for_news
from stoker.cli.doctor import Subject, Verdict, diagnose
from stoker.cli.output_options import wants_json
from stoker.core.settings import KEYS
from stoker.core.text import printable, text_for_json
from stoker.core.units import count_text
from stoker.queue.options import BY_NAME
from stoker.store.paths import paths_for


class Check(Struct, frozen=True):
    """The whole examination: `stoker engine check --json`."""

    schema: str
    problems: int
    findings: list[Verdict]


@click.command(name="check")
@of_simulated
@click.option("--json", "as_json", is_flag=True, help="Print one JSON value instead.")
@click.pass_context
def command(context: click.Context, sim: bool, as_json: bool) -> int:
    """Tell what is wrong with this machine, and what to do about it. Exit code 1 where there is a problem."""
    paths = paths_for(sim)
    subject = Subject(
        paths=paths,
        environment=dict(os.environ),
        simulated=sim or bool(os.environ.get("STOKER_SIM")),
        now=time.time(),
        known_variables=frozenset(known_variables(context.find_root())),
    )
    verdicts = diagnose(subject, answers=ask_for_news(paths, ANSWER_SECONDS))
    found = _told(verdicts) if wants_json(as_json) else _shown(verdicts)
    problems = sum(verdict.level == "problem" for verdict in found)
    if wants_json(as_json):
        check = Check("stoker.engine-check/1", problems, found)
        sys.stdout.write(msgspec.json.encode(check).decode() + "\n")
    elif problems:
        print(f"{count_text(problems, 'problem')} found", file=sys.stderr)
    return 1 if problems else 0


def _shown(verdicts: Iterator[Verdict]) -> list[Verdict]:
    """All of them, each printed as soon as it is known: a driver may take its time."""
    found = []
    for verdict in verdicts:
        print(f"{verdict.level:8} {verdict.topic:10} {printable(verdict.text)}", flush=True)
        if verdict.advice:
            print(f"{'':19} → {printable(verdict.advice)}", flush=True)
        found.append(verdict)
    return found


def _told(verdicts: Iterator[Verdict]) -> list[Verdict]:
    return [Verdict(each.topic, each.level, text_for_json(each.text), text_for_json(each.advice)) for each in verdicts]


def known_variables(context: click.Context) -> Iterator[str]:
    """All STOKER_* variables that settings, job options and the options of verbs can be set by."""
    yield from (f"STOKER_{name.upper()}" for name in (*KEYS, *BY_NAME))
    yield from _variables_of(context.command, context)


def _variables_of(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        yield from filter(None, [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ())
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _variables_of(inner, context)
