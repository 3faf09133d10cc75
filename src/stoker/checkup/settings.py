"""Whether files and variables set what they are meant to."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from stoker.checkup.verdict import Subject, Verdict, note, ok, problem
from stoker.config import load_config
from stoker.core.errors import StokerError

_PREFIX = "STOKER_"
OF_THE_PROGRAM = frozenset({"STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM", "STOKER_OUTPUT"})


def look_at_config(subject: Subject) -> Iterator[Verdict]:
    """The files that hold for the engine, and in this directory."""
    try:
        config = load_config(subject.environment, Path.cwd())
    except StokerError as error:
        yield problem("config", error.message, error.hint)
        return
    yield from (note("config", warning) for warning in config.warnings)
    files = ", ".join(map(str, config.files))
    yield ok("config", f"read from {files}" if files else "all as built in")


def look_at_variables(subject: Subject) -> Iterator[Verdict]:
    """STOKER_* variables that nobody reads, and those that a job was given."""
    given = sorted(name for name in subject.environment if name.startswith(_PREFIX))
    if "STOKER_JOB_ID" in given:
        yield note("variables", f"this runs inside job {subject.environment['STOKER_JOB_ID']}")
        given = [name for name in given if name not in _OF_A_JOB]
    known = subject.known_variables | OF_THE_PROGRAM
    unknown = [name for name in given if name not in known]
    for name in unknown:
        near = difflib.get_close_matches(name, known, 1, 0.75)
        yield note("variables", f"{name} means nothing to Stoker", f"did you mean {near[0]}?" if near else "")
    if not unknown:
        yield ok("variables", f"set are {', '.join(given)}" if given else "none is set")


_OF_A_JOB = frozenset(
    f"{_PREFIX}{name}"
    for name in (
        *("JOB_ID", "JOB_NAME", "ATTEMPT", "GPU_IDS", "GROUP", "VRAM", "ARRAY_ID", "ARRAY_INDEX"),
        *("WORK_DIR", "REPORT", "PARAMS", "KEEPER"),
    )
)
