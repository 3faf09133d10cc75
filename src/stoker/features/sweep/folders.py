"""Folders of trials (`sweep --results`): their names, collisions between them, and how they are made."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from stoker.core.errors import UsageError
from stoker.core.spec import NewJob
from stoker.features.sweep.model.record import SweepSpec, read_params, results_of
from stoker.features.sweep.model.space import Texts

PARAMS = "params.json"
"""File in each folder with the parameters of the trial."""


def _folder(sweep: SweepSpec, texts: Texts, job: NewJob) -> Path:
    assert job.member is not None
    names = texts.of(read_params(job.member.params))
    return Path(job.spec.cwd, results_of(sweep, job.member.number, names))


def planned_folders(sweep: SweepSpec, jobs: Sequence[NewJob], *, reuse: bool) -> dict[Path, str]:
    """The folder of each trial, and its parameters as JSON; refuses one that two trials share, or that exists."""
    if not sweep.results:
        return {}
    folders: dict[Path, str] = {}
    texts = Texts(sweep.space)
    for job in jobs:
        path = _folder(sweep, texts, job)
        assert job.member is not None
        if path in folders:
            raise UsageError(
                f"--results: two trials would use the folder {path}: {folders[path]} and {job.member.params}",
                "put a placeholder for each parameter into it, or {trial}",
            )
        if not reuse and os.path.lexists(path):
            raise UsageError(
                f"--results: the folder {path} exists already", "choose another, or use it again with --force"
            )
        folders[path] = job.member.params
    return folders


def make_folders(folders: dict[Path, str]) -> Callable[[], None]:
    """Make the folders, and return how to remove those that are new."""
    made: list[Path] = []

    def undo() -> None:
        for path in reversed(made):
            with contextlib.suppress(OSError):
                (path / PARAMS).unlink()
                path.rmdir()

    for path, params in folders.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_new = not path.is_dir()
            path.mkdir(exist_ok=True)
            made += [path] if is_new else []
            (path / PARAMS).write_text(params + "\n")
        except OSError as error:
            undo()
            raise UsageError(f"--results: cannot make {path}: {error.strerror}", "choose another folder") from error
    return undo


def make_folder(sweep: SweepSpec, job: NewJob) -> None:
    """Make the folder of a trial that was chosen after the submit; it may exist from an interrupted attempt."""
    if sweep.results:
        assert job.member is not None
        make_folders({_folder(sweep, Texts(sweep.space), job): job.member.params})
