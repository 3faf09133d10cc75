"""The line that tells why a job failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.app.views.failure import failure_text
from stoker.core.job import Assigned, Ended, Job
from stoker.core.outcomes import Result
from stoker.store.logs import LONGEST_SAID
from stoker.store.schema import Change
from stoker.store.writer import Store
from support.store import added


def ended_with(store: Store, log: Path, result: Result = "failed", note: str = "") -> Job:
    """A job whose only attempt wrote to the log."""
    (job,) = added(store)
    event = Assigned("w1 - 0", (), str(log), 1.0)
    ended = replace(job, state=Ended(result, 2.0, 1, 0, note), attempts=1)
    store.record([Change(ended, [(1, event)])])
    return ended


def test_a_traceback_is_explained_by_its_exception(store: Store, tmp_path: Path) -> None:
    """A program that raises is explained by what it raised, even with an open file of binary data around it."""
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.write(b"\xff\x00\x1b[31m\n")
        file.flush()
        subprocess.run(
            [sys.executable, "-c", "raise RuntimeError('loss is nan')"], stderr=file, timeout=60, check=False
        )
    assert failure_text(store, ended_with(store, log)) == "RuntimeError: loss is nan"


@pytest.mark.parametrize(
    ("result", "note", "said"),
    [
        ("failed", "no such directory", "no such directory"),
        ("oom", "CUDA out of memory", "CUDA out of memory"),
        ("timeout", "", "the last line"),
        ("cancelled", "", ""),
        ("done", "", ""),
    ],
)
def test_a_note_counts_more_than_the_log(store: Store, tmp_path: Path, result: Result, note: str, said: str) -> None:
    """A job that did not fail is not explained."""
    log = tmp_path / "log"
    log.write_text("the last line\n")
    assert failure_text(store, ended_with(store, log, result, note)) == said


def test_a_log_that_is_gone_or_hostile(store: Store, tmp_path: Path) -> None:
    """A missing log explains nothing; a huge line is cut, and nothing in it can move the cursor."""
    assert failure_text(store, ended_with(store, tmp_path / "gone")) == ""
    log = tmp_path / "log"
    log.write_bytes(b"a\x07\xe2\x80\xae" + b"b" * 10_000)
    said = failure_text(store, ended_with(store, log))
    assert len(said) == LONGEST_SAID
    assert said.isprintable()
