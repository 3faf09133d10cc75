"""A feature can be deleted: its directory and its entry in the list of features, and nothing else."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.features import FEATURES, feature_commands
from support.background import Background

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
COLLECTION_SECONDS = 400.0
"""Imports of all tests, on a machine with much else to do."""


def copied_source(folder: Path) -> Path:
    """The sources without the built page."""
    return Path(shutil.copytree(SOURCE, folder / "src", ignore=shutil.ignore_patterns("page", "__pycache__")))


def delete_feature(source: Path, name: str) -> None:
    """Delete a feature in a copy of the sources."""
    shutil.rmtree(source / "stoker/features" / name)
    module = source / "stoker/features/__init__.py"
    tree = ast.parse(module.read_text())
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.value, ast.Dict)
        and ast.unparse(node.target) == "FEATURES"
    )
    entries = [
        (key, value)
        for key, value in zip(table.keys, table.values, strict=True)
        if not (isinstance(key, ast.Constant) and key.value == name)
    ]
    table.keys, table.values = [key for key, _ in entries], [value for _, value in entries]
    module.write_text(ast.unparse(tree))


def test_every_directory_is_a_feature() -> None:
    """And every feature of the list has one."""
    assert {path.parent.name for path in (SOURCE / "stoker/features").glob("*/__init__.py")} == set(FEATURES)


@pytest.mark.parametrize("name", FEATURES)
def test_without_a_feature(name: str, tmp_path: Path) -> None:
    """Help, submit, run and status work, and its commands are not there."""
    source = copied_source(tmp_path)
    delete_feature(source, name)
    with contextlib.closing(Background(tmp_path)) as queue:
        queue.environment["PYTHONPATH"] = str(source)

        def typed(words: str) -> str:
            said = queue.typed(f"{sys.executable} -P -m stoker {words}")
            assert said.code == 0, said.err
            return said.out + said.err

        shown = typed("--help")
        assert not any(f"  {command} " in shown for command in FEATURES[name].commands)
        assert all(f"  {command} " in shown for command in feature_commands().keys() - FEATURES[name].commands.keys())
        typed("submit -- 'echo >> ran'")
        typed("wait last")
        assert '"state":"done"' in typed("status last --json").replace(" ", "")
        typed("run -- sh -c 'echo >> ran'")
        typed("status")
        typed("history")
        assert len(queue.lines("ran")) == 2


@pytest.mark.timeout(COLLECTION_SECONDS + 60)
def test_tests_outside_of_features(tmp_path: Path) -> None:
    """All of them can be imported without any feature."""
    source = copied_source(tmp_path)
    for name in FEATURES:
        delete_feature(source, name)
    tests = shutil.copytree(
        ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__", "features")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    collected = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", "--assert=plain"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{source}:{tests}"},
        check=False,
        capture_output=True,
        text=True,
        timeout=COLLECTION_SECONDS,
    )
    assert collected.returncode == 0, collected.stdout


@pytest.mark.parametrize("name", FEATURES)
def test_tests_of_a_feature(name: str) -> None:
    """They need no other feature."""
    for path in (ROOT / "tests/features" / name).rglob("*.py"):
        named = set(re.findall(r"^ *(?:from|import) (?:stoker\.)?features\.(\w+)", path.read_text(), re.MULTILINE))
        assert named <= {name}, path
