"""The side of the server of `stoker fetch`: the files of a job as a compressed tar."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stoker.app.control.requests import opened
from stoker.app.jobs.select import find, jobs_in_order
from stoker.app.views.log import run_of, streams_of
from stoker.core.errors import NoSuchJob, UsageError
from stoker.core.job import Job, id_text
from stoker.features.servers.fetch import END
from stoker.features.servers.protocol import FetchQuestion
from stoker.store.paths import paths_for


def send_files(question: FetchQuestion, target: BinaryIO) -> int:
    """Write the files; their names are relative to the directory of the job."""
    with opened(paths_for(question.simulated)) as control:
        jobs = jobs_in_order(control.store, find(control.store, [question.job]))
        if len(jobs) != 1 or jobs[0].count != 1:
            raise UsageError(f"{question.job} is several jobs", "name one job, or one task as 12.3")
        [job] = jobs
        named = _named(job, question.files)
        if not question.files:
            _, run = run_of(job, control.store.runs(job.id), None)
            named = {os.path.basename(path): path for path in streams_of(run).values()}
    with (
        gzip.GzipFile(fileobj=target, mode="wb", compresslevel=1) as packed,
        tarfile.open(None, "w|", packed) as archive,
    ):
        for name, path in named.items():
            _add(archive, name, path)
        archive.addfile(tarfile.TarInfo(END), io.BytesIO())
    target.flush()
    return 0


def _add(archive: tarfile.TarFile, name: str, path: str) -> None:
    """Add a file as long as it is now: a job may still write to it."""
    with open(path, "rb") as file:
        member = archive.gettarinfo(arcname=name, fileobj=file)
        archive.addfile(member, file)


def _named(job: Job, patterns: list[str]) -> dict[str, str]:
    """The plain files that patterns mean, and those in the directories that they mean."""
    cwd = job.spec.cwd
    paths_by_name: dict[str, str] = {}
    for pattern in patterns:
        plain = os.path.join(cwd, pattern)
        matches = [plain] if os.path.exists(plain) else _matches(cwd, pattern)
        files = {os.path.relpath(path, cwd): path for match in matches for path in _files(match)}
        if not files:
            raise NoSuchJob(f"job {id_text(job)} has no file {pattern!r} in {cwd}", "name files of that directory")
        paths_by_name |= {name.replace("../", "").lstrip("/"): path for name, path in files.items()}
    return paths_by_name


def _matches(cwd: str, pattern: str) -> list[str]:
    whole = os.path.normpath(os.path.join(cwd, pattern))
    paths = Path("/").glob(whole[1:])
    return sorted(str(path) for path in paths if not (path.is_symlink() and path.is_dir()))


def _files(path: str) -> Iterator[str]:
    if os.path.isfile(path):
        yield path
    for folder, _, names in os.walk(path):
        yield from (os.path.join(folder, name) for name in names if os.path.isfile(os.path.join(folder, name)))
