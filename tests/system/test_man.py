"""The manual pages: one for every verb, made from its own help, and such that groff has nothing to say."""

from __future__ import annotations

import re
import runpy
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from stoker.cli.commands.engine import COMMANDS as ENGINE_COMMANDS
from stoker.cli.main import COMMANDS, LazyGroup
from stoker.features import feature_commands, load
from support.cli import Stoker
from support.optional import require
from support.wait import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    """The script that writes the pages."""
    return runpy.run_path(str(ROOT / "docs/make_man.py"))


@pytest.fixture(scope="module")
def pages(generator: dict[str, Any]) -> dict[str, str]:
    """The text of every page by its name."""
    return dict(generator["pages"]())


def test_every_verb_has_its_page(pages: dict[str, str]) -> None:
    """The commands below the engine and below those of features too, but no hidden one."""
    below = {"engine": ENGINE_COMMANDS, **_below_features()}
    expected = {"stoker", *(f"stoker-{verb}" for verb in COMMANDS)}
    expected |= {f"stoker-{verb}-{name}" for verb, names in below.items() for name in names}
    assert set(pages) == expected


def _below_features() -> dict[str, Iterable[str]]:
    commands = {verb: load(f"{command.module}:command") for verb, command in feature_commands().items()}
    return {verb: group.sentences for verb, group in commands.items() if isinstance(group, LazyGroup)}


def test_pages_have_the_sections_that_readers_look_for(pages: dict[str, str]) -> None:
    """In their order, with the name in the form that `apropos` reads."""
    for name, text in pages.items():
        sections = re.findall(r"^\.SH (.*)$", text, re.MULTILINE)
        assert sections[:3] == ["NAME", "SYNOPSIS", "DESCRIPTION"], name
        assert sections[-1] == "SEE ALSO", name
        assert re.search(rf"^{re.escape(name.replace('-', chr(92) + '-'))} \\- \S", text, re.MULTILINE), name
    assert "EXIT STATUS" in pages["stoker"]
    assert ".B \\-\\-drain\n" in pages["stoker-engine-stop"]


def test_no_text_is_taken_for_a_request(generator: dict[str, Any]) -> None:
    """Points and quotes at the start of a line, backslashes and hyphens are shown as they are."""
    assert generator["escaped"](".start 'x' \\n --all") == "\\&.start 'x' \\en \\-\\-all"
    assert generator["escaped"]("'quoted'") == "\\&'quoted'"


def test_groff_has_nothing_to_say(generator: dict[str, Any], tmp_path: Path) -> None:
    """With all its warnings switched on; and what it shows contains the options as one types them."""
    written = generator["write_pages"](tmp_path)
    require("groff")
    for page in written:
        command = ["groff", "-man", "-Tutf8", "-K", "utf8", "-P-cbou", "-ww", str(page)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
        assert shown.stderr == "", page.name
        if page.name == "stoker-engine-stop.1":
            assert "--drain" in shown.stdout
            assert "stoker engine stop --jobs    stop the jobs too" in shown.stdout


def test_the_wheel_is_told_to_carry_them() -> None:
    """By a hook that makes them from the very sources of the wheel."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    assert (ROOT / hook.get("path", "hatch_build.py")).is_file()
    assert hook["require-runtime-dependencies"]
    assert "docs" in settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]


@pytest.mark.parametrize("words", [["submit"], ["engine"], ["engine", "check"]])
def test_help_says_what_the_option_says(stoker: Stoker, words: list[str]) -> None:
    """`stoker help VERB` is `stoker VERB --help`."""
    outcome = stoker("help", *words)
    assert outcome.code == 0
    assert outcome.out == stoker(*words, "--help").out
    assert outcome.out.startswith(f"Usage: stoker {' '.join(words)}")


def test_a_mistyped_verb_of_the_machine_room(stoker: Stoker) -> None:
    """It is answered with a near one."""
    outcome = stoker("engine", "chek")
    assert outcome.code == 2
    assert "did you mean check?" in outcome.err
