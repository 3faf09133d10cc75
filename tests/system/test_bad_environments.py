"""Mistakes in command lines and odd environments: no traceback, the documented exit code, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from support.background import Background
from support.cli import Outcome

STATUS, SUBMIT, HISTORY = "stoker status --table", "stoker submit --hold -G 0 -- true", "stoker history --table"
COMMANDS = (STATUS, SUBMIT, HISTORY)
"""What people type first."""


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    """One queue for all mistakes, with a held job, a failed one, and an array."""
    with closing(Background(tmp_path_factory.mktemp("mistakes"))) as background:
        background("submit", "-J", "held", "--hold", "--", "true")
        background("submit", "-J", "bad", "-G", "0", "--", "false")
        background("submit", "-J", "many", "--hold", "-a", "0-9", "--", "true")
        background("wait", "bad")
        yield background


def check(outcome: Outcome, code: int, *said: str) -> None:
    """Assert that a mistake got a sentence."""
    text = outcome.out + outcome.err
    assert "Traceback" not in text, text
    assert outcome.code == code, text
    for words in said:
        assert words in text


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        # Commands and options
        ("stoker 12", 2, "type: stoker status 12"),
        ("stoker ps", 2, "type: stoker"),
        ("stoker squeue", 2, "type: stoker"),
        ("stoker statsu", 2, "did you mean status?"),
        ("stoker xyzzy", 2, "commands: run, shell"),
        ("stoker engine", 2, "Usage: stoker engine"),
        ("stoker cluster", 2, "Usage: stoker cluster"),
        ("stoker engine foo", 2, "commands: start"),
        ("stoker gpus --foo", 2, "see: stoker gpus --help"),
        ("stoker history --sinc 1d", 2, "did you mean --since?"),
        ("stoker edit", 2, "see: stoker edit --help"),
        ("stoker submit", 2, "put the command after --"),
        ("stoker submit -G", 2, "see: stoker submit --help"),
        # Values
        ("stoker submit -G two -- true", 2, "see: stoker submit --help"),
        ("stoker submit -G -1 -- true", 2, "-G"),
        ("stoker submit -G 99 -- true", 5, "GPU"),
        ("stoker submit -m 6X -- true", 2, "write it as"),
        ("stoker submit -m 900G -- true", 5, "G"),
        ("stoker submit -t soon -- true", 2, "write it as 90s"),
        ("stoker submit -a 9-0 -- true", 2, "write it as 0-9"),
        ("stoker submit -a x -- true", 2, "array"),
        ("stoker submit -b yesteryear -- true", 2, ""),
        ("stoker submit --env X -- true", 2, ""),
        ("stoker submit --tag = -- true", 2, "tag"),
        ("stoker submit --signal NOPE@9 -- true", 2, ""),
        ("stoker submit --notify nonsense -- true", 2, "write mail, or a URL"),
        ("stoker submit -D /no/such/place -- true", 2, "/no/such/place"),
        ("stoker submit -d 999999 -- true", 4, "999999"),
        ("stoker submit --on 77 -- true", 5, "known devices: 0, 1"),
        ("stoker submit ''", 2, ""),
        ("stoker submit -f missing.txt", 2, "missing.txt"),
        ("stoker submit -f /dev/null", 2, "write one command on each line"),
        ("stoker run missing.txt", 2, "missing.txt"),
        ("stoker run --sim 4x -- true", 2, "4x"),
        # Jobs
        ("stoker status 999999", 4, "999999"),
        ("stoker status 12..13", 2, ""),
        ("stoker status nobody", 4, "nobody"),
        ("stoker logs 999999", 4, "999999"),
        ("stoker wait nobody", 4, "nobody"),
        ("stoker wait held --timeout 0.1s", 124, ""),
        ("stoker cancel", 2, ""),
        ("stoker cancel nobody", 4, "nobody"),
        ("stoker cancel many.99", 4, "has no task"),
        ("stoker retry", 2, "name them, or use --failed"),
        ("stoker retry held", 2, ""),
        ("stoker edit held priority=5", 4, "--priority 5"),
        ("stoker pause --gpu 77", 5, "known devices: 0, 1"),
        ("stoker history --state nonsense", 2, "known states"),
        ("stoker history --since never", 2, ""),
        ("stoker report --html /no/such/place/x.html", 2, "name another file"),
        ("stoker web --port 0", 2, "--port"),
        ("stoker sweep lr -- true", 2, ""),
        ("stoker sweep lr=1,2 --method magic -- true", 2, "known: grid"),
        ("stoker sweep @missing.yaml", 2, "missing.yaml"),
        ("stoker simulate missing.csv", 2, "missing.csv"),
    ],
)
def test_a_mistake_in_a_command_line(queue: Background, line: str, code: int, said: str) -> None:
    """Each is refused with a second line that says what to do."""
    outcome = queue.typed(line)
    check(outcome, code, said)
    if code in (2, 4, 5) and "Usage:" not in outcome.err:
        first, *more = outcome.err.splitlines()
        assert first.startswith("stoker: ")
        assert more, outcome.err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "environment",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "xx_YY.nonsense"},
        {"PYTHONIOENCODING": "ascii"},
        {"COLUMNS": "20"},
        {"COLUMNS": "1", "LINES": "1"},
        {"COLUMNS": "wide"},
        {"TERM": ""},
        {"TERM": "no-such-terminal"},
        {"TERM": "dumb", "NO_COLOR": "1"},
        {"TZ": "Nowhere/Nothing"},
        {"PATH": ""},
    ],
    ids=lambda given: "-".join(f"{name}={value}" for name, value in given.items()),
)
def test_an_odd_environment(queue: Background, command: str, environment: dict[str, str]) -> None:
    """Screens and submits work as usual."""
    outcome = queue.finish(queue.start(*command.split()[1:], environment=environment))
    check(outcome, 0)
    assert outcome.out


@pytest.mark.parametrize("command", [STATUS, SUBMIT, HISTORY])
@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_closed_streams(queue: Background, command: str, closed: str) -> None:
    """A command does without what it does not need."""
    check(queue.typed(f"{command} {closed}"), 0)


@pytest.mark.parametrize("command", [STATUS, HISTORY, "stoker gpus --table", "stoker status --json", "stoker --help"])
def test_output_to_a_full_disk(queue: Background, command: str) -> None:
    """The reason is told, and the exit code is not that of success."""
    check(queue.typed(f"{command} > /dev/full"), 125, "No space left on device")


def a_file(folder: Path) -> str:
    (folder / "file").write_text("no directory\n")
    return str(folder / "file")


@pytest.mark.parametrize("command", [STATUS, SUBMIT, "stoker engine check"])
@pytest.mark.parametrize("variable", ["STOKER_STATE", "STOKER_LEDGER", "HOME"])
def test_a_variable_that_names_a_file(queue: Background, tmp_path: Path, command: str, variable: str) -> None:
    """A state directory that is none ends the command with the path; the others are not needed by these."""
    outcome = queue.finish(queue.start(*command.split()[1:], environment={variable: a_file(tmp_path)}))
    needed = variable == "STOKER_STATE" or (variable == "STOKER_LEDGER" and "check" in command)
    assert outcome.code in ((1, 3, 125) if needed else (0,)), outcome.err
    check(outcome, outcome.code, str(tmp_path) if variable == "STOKER_STATE" else "")


def test_a_ledger_without_an_absolute_path(queue: Background) -> None:
    """Such a place would depend on the directory in which a command is typed."""
    check(queue("run", "--", "true", STOKER_LEDGER="here"), 2, "STOKER_LEDGER is 'here'")


@pytest.mark.parametrize(("value", "right"), [("4x", "4x24G"), ("0x24G", "4x24G"), ("4x24Q", "write it as 24G")])
@pytest.mark.parametrize("command", ["stoker run -- true", SUBMIT, "stoker gpus --table"])
def test_simulated_gpus_that_cannot_be(queue: Background, command: str, value: str, right: str) -> None:
    """The message has a right value."""
    check(queue(*command.split()[1:], STOKER_SIM=value), 2, right)


def test_another_ledger_than_that_of_the_engine(queue: Background, tmp_path: Path) -> None:
    """The running engine goes on with its own, so a submit says so."""
    outcome = queue("submit", "--hold", "--", "true", STOKER_LEDGER=str(tmp_path))
    check(outcome, 0, f"not STOKER_LEDGER={tmp_path}; to change that: stoker engine restart")


def test_a_message_that_cannot_be_sent(queue: Background) -> None:
    """It is told at submit, and not hours later."""
    pytest.importorskip("apprise")
    outcome = queue("submit", "--hold", "--notify", "bogus://x", "--", "true")
    check(outcome, 0, "--notify will not work: apprise does not support bogus://…")


def test_failed_jobs_of_another_name(queue: Background) -> None:
    """There are failed jobs, but none that matches."""
    check(queue("retry", "--failed", "--name", "zz"), 0, "no failed job of the last 24 h matches")
