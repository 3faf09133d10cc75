"""`--sim` with and without a value, in every command and before it."""

from __future__ import annotations

import click
import pytest

from stoker.app.jobs.options import OPTIONS
from stoker.cli.commands.engine import command as engine
from stoker.cli.main import COMMANDS, _with_command, stoker
from stoker.cli.options import ALONE, SIM

WITHOUT = {"message", "simulate", "cluster", "servers", "config", "install", "completion", "pilot"}
"""Commands that have no queue."""


def parsed(name: str, *words: str) -> click.Context:
    """A command line as the command reads it."""
    command = stoker.get_command(click.Context(stoker), name)
    assert command
    return command.make_context(name, list(words))


@pytest.mark.parametrize(
    ("name", "words", "sim", "rest"),
    [
        ("submit", ["--sim", "python", "train.py"], "last", ("python", "train.py")),
        ("submit", ["--sim", "4x24G", "python"], "4x24G", ("python",)),
        ("submit", ["--sim=2x8G", "--", "python", "--sim"], "2x8G", ("python", "--sim")),
        ("submit", ["-J", "--sim", "python", "--sim"], None, ("python", "--sim")),
        ("run", ["--sim", "-G", "2", "job"], "last", ("job",)),
        ("wait", ["--sim", "12"], "last", ("12",)),
        ("wait", ["12", "--sim", "4x24G", "13"], "4x24G", ("12", "13")),
        ("wait", ["12"], None, ("12",)),
    ],
)
def test_only_a_value_is_taken(name: str, words: list[str], sim: str | None, rest: tuple[str, ...]) -> None:
    """A command, an id or another option after it keeps its meaning."""
    values = parsed(name, *words).params
    simulated = None if sim is None else sim.replace("last", "")
    found = values["paths"].gpus if values["paths"].is_simulated else None
    assert (found, values.get("words", values.get("ids"))) == (simulated, rest)


def test_every_command_with_a_queue_takes_it() -> None:
    """In the same form."""
    for name in COMMANDS:
        if name not in WITHOUT | {"engine"}:
            command = stoker.get_command(click.Context(stoker), name)
            assert command is not None
            assert [one.metavar for one in command.params if SIM in one.opts] == ["[SPEC]"], name
    for name, command in engine.commands.items():
        assert name in WITHOUT or any(SIM in one.opts for one in command.params), name


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("", "status"),
        ("--sim", "status --sim"),
        ("--sim 4x24G -a", "status --sim 4x24G -a"),
        ("--json", "status --json"),
        ("--sim wait 12", "wait --sim 12"),
        ("--sim 4x24G submit -- true", "submit --sim 4x24G -- true"),
        ("--sim engine stop", "engine stop --sim"),
        ("--help", "--help"),
        ("help run", "run --help"),
        ("cancel 3", "cancel 3"),
    ],
)
def test_stoker_alone_is_status(typed: str, meant: str) -> None:
    """With its options too, and `--sim` may come before any command."""
    assert _with_command(typed.split()) == meant.split()


@pytest.mark.parametrize(
    ("words", "value", "rest"),
    [
        (["--preemptible", "python", "train.py"], "save", ("python", "train.py")),
        (["--preemptible", "restart", "python"], "restart", ("python",)),
        (["--preemptible=save", "save.py"], "save", ("save.py",)),
        (["--preemptible", "--", "save"], "save", ("save",)),
        (["--preemptible", "save.py"], "save", ("save.py",)),
    ],
)
def test_how_a_job_gives_way(words: list[str], value: str, rest: tuple[str, ...]) -> None:
    """The way may be left out, follow the flag, or stand behind `=`; a command is not taken for it."""
    values = parsed("submit", *words).params
    assert (values["preemptible"], values["words"]) == (value, rest)


def test_job_options_that_may_stand_alone() -> None:
    """The command line knows them without reading the table of options."""
    assert {(row.flag, row.alone) for row in OPTIONS if row.alone} <= ALONE.items()
