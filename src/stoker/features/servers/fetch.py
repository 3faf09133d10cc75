"""`stoker fetch`: copy files of a job from its server, each whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import click

from stoker.cli.console import say
from stoker.cli.options import StokerCommand, sim_option
from stoker.core.errors import StokerError, UsageError
from stoker.core.units import LAST_GPUS, count_text, size_text
from stoker.features.servers.connection import ConnectionLost, streamed
from stoker.features.servers.protocol import COMMAND, FetchQuestion, encoded, refused
from stoker.features.servers.settings import SshServer, server_named
from stoker.store.paths import UNFINISHED, Paths

_TAR = b"\x1f\x8b"
"""Begins a compressed file."""


@click.command(name="fetch", cls=StokerCommand)
@click.argument("job", metavar="SERVER:ID")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@click.option("-o", "--output", metavar="DIR", default=".", help="Write into this directory; default: the current one.")
@sim_option
def command(*, job: str, files: tuple[str, ...], output: str, paths: Paths) -> int:
    """Copy files of a job from its server, by default its logs. FILE is relative to the directory of the job.

    Directories are copied with all that is in them, and patterns are for the server. A file that is newer here stays.

    \b
      stoker fetch gpu2:12                      its logs
      stoker fetch gpu2:12 runs/a 'plots/*.png'
      stoker fetch gpu2:12 -o results runs
    """
    name, colon, job_id = job.partition(":")
    if not colon or not job_id:
        raise UsageError(f"{job!r} names no job of a server", "write it as gpu2:12")
    server, folder = server_named(name), Path(output)
    simulated = (paths.gpus or LAST_GPUS) if paths.is_simulated and not os.environ.get("STOKER_SIM") else None
    question = encoded(FetchQuestion(job_id, list(files), simulated))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with streamed(server, COMMAND, question) as (beginning, source):
            if not beginning.startswith(_TAR):
                raise refused(server, beginning + source.read())
            written, size = _unpack(server, _Joined(beginning, source), folder)
    except OSError as error:
        raise StokerError(f"cannot write {error.filename or folder}: {error.strerror}", "free some space") from error
    say(f"{count_text(written, 'file')} ({size_text(size)}B) of {job} in {folder}")
    return 0


class _Joined:
    """A stream whose beginning was read before."""

    def __init__(self, beginning: bytes, source: object) -> None:
        self._beginning = beginning
        self._source = source

    def read(self, size: int) -> bytes:
        if self._beginning:
            data, self._beginning = self._beginning[:size], self._beginning[size:]
            return data
        data = self._source.read(size)  # type: ignore[attr-defined]
        return bytes(data)


def _unpack(server: SshServer, stream: _Joined, folder: Path) -> tuple[int, int]:
    """Write the files; how many, and their bytes."""
    written, size, ended = 0, 0, False
    try:
        with tarfile.open(fileobj=stream, mode="r|gz") as archive:  # type: ignore[call-overload]
            for member in archive:
                if member.name == END:
                    ended = True
                    continue
                place = _place(folder, member.name)
                if place.exists() and place.stat().st_mtime > member.mtime + 1:
                    say(f"{place} stays: it is newer here")
                    continue
                with _whole_file(place, member) as draft:
                    source = archive.extractfile(member)
                    assert source is not None, "only plain files are sent"
                    with open(draft, "wb") as target:
                        shutil.copyfileobj(source, target)
                written, size = written + 1, size + member.size
    except (EOFError, tarfile.TarError):
        pass
    if not ended:
        raise ConnectionLost(
            f"the connection to {server.name} was lost after {count_text(written, 'file')}", "type it again"
        )
    return written, size


def _place(folder: Path, name: str) -> Path:
    """Where a file goes; a server cannot choose a place outside of the directory."""
    if name.startswith("/") or ".." in name.split("/"):
        raise StokerError(f"the server sent a file named {name!r}", "its stoker was changed: do not use it")
    return folder / name


@contextlib.contextmanager
def _whole_file(place: Path, member: tarfile.TarInfo) -> Iterator[Path]:
    """A draft that gets the name when all of it is there."""
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(f"{UNFINISHED}{secrets.token_hex(6)}")
    try:
        yield draft
        if draft.stat().st_size < member.size:
            raise EOFError
        draft.chmod(member.mode & 0o777 | 0o600)
        os.utime(draft, (member.mtime, member.mtime))
        draft.replace(place)
    finally:
        draft.unlink(missing_ok=True)


END = "end-of-files"
"""The last member: without it the files did not all arrive."""
