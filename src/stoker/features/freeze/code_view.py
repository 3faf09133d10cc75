"""The code of a job for screens, the page and programs: what it runs, and how that differs from other code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path

from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.facts import QueueFacts
from stoker.app.views.job_details import CodeState, selected_ids
from stoker.core.errors import NoSuchJob, StokerError, UsageError
from stoker.core.job import Job, id_text
from stoker.features.freeze.code import code_of
from stoker.features.freeze.compare import CodeVersion, FileChange, changes_between, diff_lines
from stoker.features.freeze.listing import MOST
from stoker.features.freeze.snapshots import LINK, CodeSnapshot, FrozenFile, SnapshotStore
from stoker.features.freeze.take import take
from stoker.store.paths import Paths

SCHEMA = "stoker.code-diff/1"
MOST_LINES = 20_000
"""Lines of a file that JSON and the page show."""


class CodeLine(Struct, frozen=True):
    """A line of a unified diff."""

    kind: str
    """file, place, same, old, new or note."""
    text: str
    """With its mark."""


class FileDiff(Struct, frozen=True):
    """A file that differs."""

    path: str
    kind: str
    """added, removed, changed, renamed or mode (only its permission to be executed)."""
    old_path: str
    """Another path before, if it was renamed; else empty."""
    lines: list[CodeLine]
    lines_left_out: bool


class CodeDiff(Struct, frozen=True):
    """How the code of a job differs from that of another job, or from the present one: `stoker diff --json`."""

    schema: str
    at: datetime
    simulated: bool
    job: str
    other: str | None
    """The other job; null for the code that is there now."""
    root: str
    """The directory that the code was taken of."""
    commit: str
    """The commit there at submit, with a `*` where files differed from it."""
    other_commit: str
    files: list[FileDiff]


class Comparison(Struct, frozen=True):
    """Two versions of code, and the files that differ."""

    job: Job
    other: Job | None
    root: str
    before: CodeVersion
    after: CodeVersion
    changes: list[FileChange]


def store_of(paths: Paths, job: Job) -> SnapshotStore:
    """The store that has the snapshot of a job."""
    return SnapshotStore(paths.on(job.spec.cluster).code)


def frozen_version(paths: Paths, job: Job) -> tuple[CodeSnapshot, CodeVersion]:
    """The frozen code of a job."""
    code = code_of(job.spec.code)
    if not code.snapshot:
        why = f": {code.reason}" if code.reason else ""
        raise UsageError(f"the code of job {id_text(job)} is not frozen{why}", "see docs/frozen-code.md")
    store = store_of(paths, job)
    snapshot = store.snapshot(code.snapshot)
    return snapshot, CodeVersion({file.path: file for file in snapshot.files}, lambda file: store.read(file.blob))


def present_version(paths: Paths, root: str, environment: Mapping[str, str]) -> CodeVersion:
    """The code that is in a directory now."""
    if not os.path.isdir(root):
        return CodeVersion({}, lambda _: b"")
    taken = take(root, SnapshotStore(paths.code), environment, MOST, keep=False)
    return CodeVersion({file.path: file for file in taken.snapshot.files}, partial(_read_present, root))


def _read_present(root: str, file: FrozenFile) -> bytes:
    path = Path(root, file.path)
    return os.fsencode(path.readlink()) if file.mode == LINK else path.read_bytes()


def compared(paths: Paths, job: Job, other: Job | None, environment: Mapping[str, str]) -> Comparison:
    """The code of a job beside that of another one, or the present code of its directory."""
    snapshot, before = frozen_version(paths, job)
    after = present_version(paths, snapshot.root, environment) if other is None else frozen_version(paths, other)[1]
    return Comparison(job, other, snapshot.root, before, after, changes_between(before, after))


def job_named(facts: QueueFacts, word: str) -> Job:
    """The job that a word means; of an array its first task, as all tasks have the same code."""
    ids = selected_ids(facts, [word])
    job = facts.store.job(ids[0]) if ids else None
    if job is None:
        raise NoSuchJob(f"no job {word}", "list jobs with: stoker history")
    return job


def code_diff(comparison: Comparison, now: float, *, simulated: bool) -> CodeDiff:
    return CodeDiff(
        SCHEMA,
        to_datetime(now),
        simulated,
        id_text(comparison.job),
        None if comparison.other is None else id_text(comparison.other),
        comparison.root,
        comparison.job.spec.commit,
        "" if comparison.other is None else comparison.other.spec.commit,
        [_file_diff(change, comparison) for change in comparison.changes],
    )


def _file_diff(change: FileChange, comparison: Comparison) -> FileDiff:
    lines = diff_lines(change, comparison.before, comparison.after)
    shown = [CodeLine(line.kind, line.text) for line in islice(lines, MOST_LINES)]
    renamed = change.before.path if change.kind == "renamed" else ""
    return FileDiff(change.path, change.kind, renamed, shown, next(lines, None) is not None)


# -- states ----------------------------------------------------------------------------------------


def code_state(paths: Paths, job: Job, *, compared: bool) -> CodeState | None:
    """The code of a job in a few words."""
    code = code_of(job.spec.code)
    if not code.snapshot:
        return CodeState(frozen=False, reason=code.reason) if code.reason else None
    return CodeState(frozen=True, reason="", changed=_changed_paths(paths, job) if compared else None)


def _changed_paths(paths: Paths, job: Job) -> list[str] | None:
    """Paths of files that differ now; None if they cannot be compared."""
    with contextlib.suppress(StokerError, OSError):
        snapshot, before = frozen_version(paths, job)
        present = present_version(paths, snapshot.root, os.environ).files
        paths_of_both = sorted(before.files.keys() | present.keys())
        return [path for path in paths_of_both if before.files.get(path) != present.get(path)]
    return None
