"""File systems that are full, or read-only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.optional import refuse
from support.wait import PATIENCE_SECONDS


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[Path]:
    """A file system of its own at the path, made with tmpfs mount options such as `size=1m`."""
    path.mkdir()
    if os.geteuid() != 0:
        refuse("only root can mount a small disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True, timeout=PATIENCE_SECONDS)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True, timeout=PATIENCE_SECONDS)


def fill(disk: Path, spare: int = 0) -> Path:
    """Leave so many bytes free, or none; returns the file to remove when there is to be space again."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            file.truncate(file.tell() - spare)
            return ballast
