"""A feature can be deleted: its directory and its entry in the list of features, and nothing else."""

from __future__ import annotations

import ast
import contextlib
import shutil
import sys
from pathlib import Path

import pytest

from stoker.features import FEATURES, feature_commands
from support.background import Background

SOURCE = Path(__file__).parents[1] / "src"


def delete_feature(source: Path, name: str) -> None:
    """Delete a feature in a copy of the sources."""
    shutil.rmtree(source / "stoker/features" / name)
    module = source / "stoker/features/__init__.py"
    tree = ast.parse(module.read_text())
    (table,) = (
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
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
    source = tmp_path / "src"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("page"))
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
