"""A git repository of a test, without the configuration of whoever runs it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from support.wait import PATIENCE_SECONDS


def git(folder: Path, *words: str) -> str:
    """Run git there."""
    own = ["-c", "user.name=test", "-c", "user.email=test@test", "-c", "init.defaultBranch=main"]
    own += ["-c", "protocol.file.allow=always", "-c", "commit.gpgsign=false"]
    words = ("git", *own, "-C", str(folder), *words)
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=plain(), timeout=PATIENCE_SECONDS)
    return done.stdout


def plain() -> dict[str, str]:
    """The environment without the user's configuration of git."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**others, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


def repository(folder: Path, files: Mapping[str, str]) -> Path:
    """A repository with these files, committed."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    write(folder, files)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
