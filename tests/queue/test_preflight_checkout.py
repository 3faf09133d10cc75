"""The commit of a directory, as Git tells it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from stoker.queue.preflight import Checkouts
from support.wait import PATIENCE_SECONDS

WHO = {f"GIT_{role}_{what}": "a@b" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(path: Path, *words: str) -> str:
    found = subprocess.run(
        ["git", *words], cwd=path, env={**os.environ, **WHO}, check=True, capture_output=True, timeout=PATIENCE_SECONDS
    )
    return found.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit of one file."""
    path = tmp_path / "a'; echo b"
    (path / "deep/inside").mkdir(parents=True)
    (path / "file").write_text("text")
    git(path, "init", "-q")
    git(path, "add", "file")
    git(path, "commit", "-q", "-m", "first")
    return path


def stand_in(home: Path, line: str) -> str:
    """A search path that begins with a Git which does something else."""
    program = home / "bin/git"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


def commit(path: Path) -> str:
    return Checkouts(os.environ).commit(str(path))


def test_a_clean_tree(repository: Path) -> None:
    """The first seven digits, from anywhere below; files that Git was not told of do not count."""
    (repository / "untracked").touch()
    expected = git(repository, "rev-parse", "HEAD")[:7]
    assert commit(repository) == expected
    assert commit(repository / "deep/inside") == expected


@pytest.mark.parametrize("staged", [False, True])
def test_a_tree_that_differs(repository: Path, staged: bool) -> None:
    """A star, whether the change is staged or not."""
    (repository / "file").write_text("other")
    if staged:
        git(repository, "add", "file")
    assert commit(repository).endswith("*")


def test_no_repository(tmp_path: Path) -> None:
    """Nothing is known, and no process is started."""
    path = stand_in(tmp_path, f"touch {tmp_path}/asked")
    assert Checkouts({"PATH": path}).commit(str(tmp_path)) == ""
    assert Checkouts({"PATH": path}).commit(str(tmp_path / "not/there")) == ""
    assert not (tmp_path / "asked").exists()


def test_a_repository_without_a_commit(tmp_path: Path) -> None:
    """There is nothing to name yet."""
    git(tmp_path, "init", "-q")
    assert commit(tmp_path) == ""


def test_a_broken_repository(tmp_path: Path) -> None:
    """It is the user's matter, and no reason to refuse a job."""
    (tmp_path / ".git").write_text("nonsense")
    assert commit(tmp_path) == ""


def test_no_git(repository: Path) -> None:
    """A machine without Git."""
    assert Checkouts({"PATH": "/nonexistent"}).commit(str(repository)) == ""


def test_variables_of_another_repository_do_not_matter(repository: Path, tmp_path: Path) -> None:
    """GIT_DIR, as a hook of Git has it, is about another directory."""
    assert Checkouts({**os.environ, "GIT_DIR": str(tmp_path)}).commit(str(repository))


def test_it_does_not_take_long(repository: Path, tmp_path: Path) -> None:
    """A Git that hangs is left alone after a moment."""
    path = stand_in(tmp_path, "exec sleep 600")
    began = time.monotonic()
    assert Checkouts({"PATH": path}).commit(str(repository)) == ""
    assert time.monotonic() - began < PATIENCE_SECONDS


def test_each_repository_is_asked_once(repository: Path) -> None:
    """What was found out holds for all jobs of a list."""
    checkouts = Checkouts(os.environ)
    clean = checkouts.commit(str(repository))
    (repository / "file").write_text("other")
    assert checkouts.commit(str(repository / "deep")) == clean
