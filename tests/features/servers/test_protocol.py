"""Replies of servers: whole, refused, cut, or of another version."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from stoker.app.jobs.job_files import ParsedJob
from stoker.app.jobs.options import JobOptions
from stoker.core.errors import StokerError, UsageError
from stoker.core.spec import Command
from stoker.features.servers.connection import Answer, ConnectionLost, Unreachable, call, quoted_for_any_shell
from stoker.features.servers.protocol import (
    AboutQuestion,
    AboutReply,
    Lacking,
    RefusedThere,
    SubmitQuestion,
    ask,
    decoded,
    encoded,
)
from stoker.features.servers.settings import SshServer
from support.cli import PROGRAM
from support.wait import PATIENCE_SECONDS

SERVER = SshServer("gpu2", ("ssh", "gpu2"))
REFUSED = json.dumps({"error": {"code": 5, "message": "needs 9 GPUs", "hint": "request less"}}).encode() + b"\n"
OLD = json.dumps({"error": {"code": 2, "message": "no such command: 'servers'", "hint": ""}}).encode() + b"\n"


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (Answer(5, REFUSED, ""), RefusedThere, "gpu2: needs 9 GPUs"),
        (Answer(2, OLD, ""), Unreachable, "too old"),
        (Answer(137, b'{"lacking": ["a', ""), ConnectionLost, "was cut"),
        (Answer(1, b"", "Traceback\nModuleNotFoundError: no msgspec"), Unreachable, "no msgspec"),
    ],
)
def test_no_reply(answer: Answer, error: type[StokerError], said: str) -> None:
    """Only a reply that was cut may mean that the server did what it was asked."""
    with pytest.raises(error, match=said) as caught:
        decoded(SERVER, answer, Lacking)
    assert isinstance(caught.value, ConnectionLost) == (error is ConnectionLost)


def test_the_exit_code_of_a_refusal() -> None:
    with pytest.raises(RefusedThere) as caught:
        decoded(SERVER, Answer(5, REFUSED, ""), Lacking)
    assert (caught.value.exit_code, caught.value.hint) == (5, "request less")


def test_words_that_are_not_text() -> None:
    """They cannot travel as JSON, and are refused before anything is sent."""
    item = ParsedJob(Command(("echo", "\udcff")), "command line")
    with pytest.raises(UsageError, match="not UTF-8"):
        encoded(SubmitQuestion("k", "~/", JobOptions(), [item], "", []))


def test_another_protocol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both versions are named; a program that is no Stoker at all is not taken for one."""
    monkeypatch.setenv("STOKER_STATE", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(PROGRAM).parent), prepend=":")
    here = SshServer("here", ())
    assert ask(here, AboutQuestion(), AboutReply).queue
    answer = call(here, ("servers", "answer", "--json"), b'{"protocol": 99, "question": {"type": "about"}}\n')
    with pytest.raises(RefusedThere, match="has protocol 1, and the question protocol 99"):
        decoded(here, answer, msgspec.Raw)


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "csh", "tcsh", "fish"])
def test_any_login_shell(shell: str) -> None:
    """A script means the same to each shell that is here."""
    if shutil.which(shell) is None:
        shell = "sh"
    line = quoted_for_any_shell("printf '%s\\n' \"a'b\" 'c\"d' '$HOME' '!x' '\\\\' 'e\nf'")
    done = subprocess.run([shell, "-c", line], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert done.stdout == "a'b\nc\"d\n$HOME\n!x\n\\\\\ne\nf\n"
