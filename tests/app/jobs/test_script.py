"""What a file is: a script, a program or a job list."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import pytest

from stoker.app.jobs.script import INTERPRETERS, SHELLS, CommandLine, Kind, Script, find_script, kind_of
from stoker.core.errors import StokerError, UsageError
from stoker.core.spec import Command
from stoker.store.paths import Paths

TEXT = b"echo one\necho two\n"


@pytest.mark.parametrize(
    ("name", "head", "executable", "kind"),
    [
        ("jobs.txt", TEXT, False, "list"),
        ("jobs", TEXT, False, "list"),
        ("jobs", b"", False, "list"),
        ("jobs", b"\xef\xbb\xbf" + TEXT, False, "list"),
        ("jobs", b" #!/bin/sh\n", False, "list"),
        ("jobs.txt", TEXT, True, "unclear"),
        ("jobs", b"", True, "unclear"),
        ("jobs.csv", b"command\ntrue\n", True, "list"),
        ("jobs.csv", b"#!/bin/sh\n", False, "script"),
        ("jobs.txt", b"#!/bin/sh\n", False, "script"),
        ("jobs", b"\xef\xbb\xbf#!/bin/sh\n", False, "script"),
        ("train.py", b"#!/usr/bin/env python\n", False, "script"),
        ("train.py", TEXT, True, "interpreted"),
        ("job.sh", TEXT, False, "shell script"),
        ("JOB.SH", TEXT, True, "shell script"),
        ("prog", b"\x7fELF\x02", True, "program"),
        ("prog", b"\x7fELF\x02", False, "dead program"),
        ("prog", b"MZ\x00\x01", True, "program"),
        ("jobs", b"e\x00c\x00", False, "list"),
    ],
)
def test_kinds(name: str, head: bytes, executable: bool, kind: Kind) -> None:
    """The first bytes say most, then the suffix, then the mode."""
    assert kind_of((name, name), head, executable=executable) == kind


@pytest.mark.parametrize("suffix", [*SHELLS, *INTERPRETERS])
def test_no_suffix_of_a_script_is_a_list(suffix: str) -> None:
    """Whatever the mode, and also where only the target of a link has it."""
    for executable in (False, True):
        assert kind_of((f"job{suffix}", "job"), TEXT, executable=executable) != "list"
        assert kind_of(("job", f"job{suffix}"), TEXT, executable=executable) != "list"


def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody open a file, not even root."""

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may be executed all the same; else the answer says how to make it readable."""
    path = tmp_path / "job.sh"
    path.write_bytes(TEXT)
    line = CommandLine("run", (), (str(path), "a"))
    unreadable(monkeypatch)
    with pytest.raises(UsageError, match=r"cannot read .*: Permission denied") as caught:
        find_script(line)
    assert caught.value.hint == f"type: chmod u+r {path}"
    path.chmod(0o111)
    found = find_script(line)
    assert found is not None
    assert (found.command, found.script) == (Command((str(path), "a")), None)


@pytest.mark.parametrize("word", ["-", "a\0b", "x" * 5000, "/dev/null", "no such file"])
def test_words_that_are_no_files(word: str) -> None:
    """They mean what they always meant."""
    assert find_script(CommandLine("run", (), (word,))) is None


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    """What comes through it is a list, and must not be lost."""
    os.mkfifo(tmp_path / "pipe.txt")
    assert find_script(CommandLine("run", (), (str(tmp_path / "pipe.txt"),))) is None


def test_a_copy_that_cannot_be_made(tmp_path: Path) -> None:
    """The error says where, and nothing is left."""
    paths = Paths(tmp_path)
    paths.scripts.write_text("in the way")
    script = Script("/x/job.sh", b"#!/bin/sh\n", ("/x/job.sh",))
    with pytest.raises(StokerError, match=r"cannot copy /x/job.sh"):
        script.keep(paths)
    assert os.listdir(tmp_path) == ["scripts"]


def test_a_copy_is_shown_under_its_name(tmp_path: Path) -> None:
    """Also behind a shell; all other words are shown as they are."""
    script = Script("/x/my job.sh", b"true", ("sh", "/x/my job.sh", "/x/my job.sh"))
    copied = script.copied(Paths(tmp_path))
    assert copied.words[1].startswith(str(tmp_path / "scripts"))
    assert copied.text == "sh 'my job.sh' '/x/my job.sh'"
    assert Command(("/x/scripts/job.sh",)).text == "/x/scripts/job.sh"
