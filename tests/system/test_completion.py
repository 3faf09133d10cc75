"""Completion in a real bash: verbs, options, ids and names, and how little it costs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stoker.cli.commands.engine import SHELLS
from stoker.cli.completion import script_path
from support.background import Background
from support.cli import PROGRAM, Stoker
from support.wait import PATIENCE_SECONDS

_TAB = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"
_stoker_completion stoker 2>&1
printf '%s\n' "${COMPREPLY[@]}"
"""
"""What bash does when the user presses Tab at the end of the last word."""


@pytest.fixture
def tab(background: Background) -> Tab:
    """A shell with the script that `engine completion` wrote."""
    background.environment["XDG_DATA_HOME"] = str(background.home / "data")
    outcome = background("engine", "completion", "bash", "--install")
    assert outcome.code == 0
    assert "source " in outcome.err
    return Tab(background, background.home / "data/bash-completion/completions/stoker")


class Tab:
    """Presses the tabulator."""

    def __init__(self, stoker: Stoker, script: Path) -> None:
        self._stoker = stoker
        self._script = script

    def __call__(self, *words: str) -> list[str]:
        """What is offered for the last word."""
        command = ["bash", "--norc", "-c", _TAB, "bash", str(self._script), "stoker", *words]
        done = subprocess.run(
            command,
            env=self._stoker.environment,
            cwd=self._stoker.cwd,
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_SECONDS,
        )
        assert done.stderr == ""
        return done.stdout.split()


class TestBash:
    """The script in a real shell."""

    def test_verbs(self, tab: Tab) -> None:
        """All of them, or those that begin so; also those of `engine`."""
        assert {"run", "submit", "cancel", "engine"} <= set(tab(""))
        assert tab("eng") == ["engine"]
        assert tab("engine", "st") == ["start", "stop", "status"]

    def test_options(self, tab: Tab) -> None:
        """Those of the verb."""
        assert {"--drain", "--jobs"} <= set(tab("engine", "stop", "--"))
        assert "--dry-run" in tab("cancel", "--d")
        assert tab("engine", "completion", "f") == ["fish"]

    def test_ids_and_names_of_jobs(self, background: Background, tab: Tab) -> None:
        """The newest first; names and words once something is typed; an array is one until a dot is typed."""
        assert tab("cancel", "") == []
        background.submit("true", "true", names=["train-a", "train b"], held="held by you", start=False)
        background.submit("true", "true", array=True, held="held by you", start=False)
        assert tab("cancel", "") == ["3", "2", "1"]
        assert tab("cancel", "3") == ["3"]
        assert tab("cancel", "3.") == ["3.1", "3.0"]
        assert tab("cancel", "3.0") == ["3.0"]
        assert tab("cancel", "tr") == ["train-a"]
        assert tab("cancel", "la") == ["last"]
        assert tab("cancel", "1", "2") == ["2"]
        assert tab("cancel", "1,2") == ["1,2"]
        assert tab("cancel", "--dry-run", "1") == ["1"]

    def test_what_is_over_is_offered_where_it_makes_sense(self, background: Background, tab: Tab) -> None:
        """Logs of it can be read; it cannot be cancelled."""
        (over,) = background.submit("true")
        background.wait_over(over)
        assert tab("cancel", "") == []
        assert tab("logs", "") == ["1"]
        assert tab("kill", "") == []
        assert tab("follow", "") == ["1"]

    def test_names_that_could_harm_are_not_offered(self, background: Background, tab: Tab) -> None:
        """Whatever a job is called, the shell gets nothing to run, and no line of its own."""
        names = ["x$(touch harm)", "x;y", "x y", "x\ny", "x\x1b[2J", "xok"]
        background.submit(*["true"] * len(names), names=names, held="held by you", start=False)
        assert tab("cancel", "x") == ["xok"]
        assert not (background.cwd / "harm").exists()

    def test_without_a_queue_nothing_is_offered(self, background: Background, tab: Tab) -> None:
        """A damaged one is no error for a shell either."""
        background.paths.database.write_text("no database")
        assert tab("cancel", "") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell(stoker: Stoker, shell: str) -> None:
    """It can be printed, is written where the shell looks, and says what is left to type."""
    stoker.environment |= {"XDG_DATA_HOME": str(stoker.home / "data"), "XDG_CONFIG_HOME": str(stoker.home / "config")}
    printed = stoker("engine", "completion", shell, "--print").out
    assert f"_STOKER_COMPLETE={shell}_complete" in printed
    assert stoker("engine", "completion", shell).out == printed  # for eval
    outcome = stoker("engine", "completion", shell, "--install")
    path = script_path(shell, stoker.environment)
    assert path.is_relative_to(stoker.home)
    assert path.read_text() == printed
    assert str(path) in outcome.err


@pytest.mark.parametrize(("shell", "code"), [("/bin/bash", 0), ("/usr/bin/fish", 0), ("/bin/tcsh", 2), ("", 2)])
def test_the_shell_that_is_used(stoker: Stoker, shell: str, code: int) -> None:
    """Where none is named it is the user's; of others there is none."""
    assert stoker("engine", "completion", "--print", SHELL=shell).code == code


@pytest.mark.parametrize(
    ("shell", "words", "place", "expected"),
    [
        ("zsh", "stoker cancel ", "2", "plain\n1\nheld train\n"),
        ("zsh", "stoker cancel tr", "2", "plain\ntrain\n_\n"),
        ("fish", "stoker cancel ", "", "plain,1\theld train\n"),
        ("fish", "stoker cancel tr", "tr", "plain,train\n"),
    ],
)
def test_other_shells(background: Background, shell: str, words: str, place: str, expected: str) -> None:
    """The same answer in the form that click's scripts for them read."""
    background.submit("true", names=["train"], held="held by you", start=False)
    asked = {"_STOKER_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": place}
    background.environment |= asked
    assert background().out == expected


def test_ids_come_fast(background: Background) -> None:
    """A shell waits for them: neither the screens nor the driver are loaded, nor what the verb itself needs."""
    background.submit(*["true"] * 1000, held="held by you", start=False)
    background.environment |= {"_STOKER_COMPLETE": "bash_complete", "COMP_WORDS": "stoker cancel 9", "COMP_CWORD": "2"}
    loud = {**background.environment, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run([PROGRAM], env=loud, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {"rich", "pynvml", "click", "asyncio", "socket"}
    assert len(done.stdout.split()) == 60


def test_the_variable_alone_means_nothing(stoker: Stoker) -> None:
    """A shell that asks for something unknown gets no ids."""
    environment = {**os.environ, **stoker.environment, "_STOKER_COMPLETE": "csh_complete"}
    done = subprocess.run(
        [PROGRAM, "cancel"], env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert done.stdout == ""
