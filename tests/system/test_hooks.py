"""The hook that `make hooks` installs, in a repository of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.optional import require
from support.wait import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with our hook and our virtual environment."""
    git = require("git")
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    subprocess.run([git, "init", "-q", tmp_path], check=True, timeout=PATIENCE_SECONDS)
    for setting in (f"core.hooksPath={ROOT}/.githooks", "user.name=test", "user.email=test@example.org"):
        subprocess.run([git, "-C", tmp_path, "config", *setting.split("=", 1)], check=True, timeout=PATIENCE_SECONDS)
    return tmp_path


def commit(repository: Path, name: str, text: str) -> subprocess.CompletedProcess[str]:
    (repository / name).write_text(text)
    subprocess.run(["git", "-C", repository, "add", name], check=True, timeout=PATIENCE_SECONDS)
    command = ["git", "-C", str(repository), "commit", "-qm", f"Add {name}"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


@pytest.mark.parametrize("text", ["x = {  }\n", "import os\n"], ids=["layout", "lint"])
def test_hook_refuses(text: str, repository: Path) -> None:
    """A staged file with wrong layout or an unused import is not committed, and the message says what to type."""
    done = commit(repository, "a name.py", text)
    assert done.returncode == 1
    assert "make format" in done.stderr


def test_hook_accepts(repository: Path) -> None:
    """A clean file is committed; files that are not Python, or not staged, are not looked at."""
    (repository / "unfinished.py").write_text("x = {  }\n")
    assert commit(repository, "clean.py", "x = 1\n").returncode == 0
    assert commit(repository, "notes.txt", "x = {  }\n").returncode == 0
