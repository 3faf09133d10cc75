"""Older code of the program from its own history, run by the same interpreter with the same packages."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Any

from support.wait import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
FILTER: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Python before 3.11.4 has no filters, and warns of nothing."""
BEFORE_SCHEMA_4 = "846a79c13cab1d8caf374aee5b13025c3121a572"
"""The last revision whose queues have schema 3."""


def missing_history(revision: str = BEFORE_SCHEMA_4) -> str:
    """Why the code of a revision cannot be had; empty where it can."""
    try:
        found = _git("cat-file", "-e", f"{revision}^{{tree}}")
    except FileNotFoundError:
        return "git is missing"
    return "" if found.returncode == 0 else f"revision {revision[:7]} is not in this clone"


def code_of(revision: str, directory: Path) -> Path:
    """The sources of a revision below a directory, to be put on PYTHONPATH."""
    archive = _git("archive", revision, "src")
    assert archive.returncode == 0, archive.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tree:
        tree.extractall(directory, **FILTER)
    return directory / "src"


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", ROOT, *words], check=False, capture_output=True, timeout=PATIENCE_SECONDS)
