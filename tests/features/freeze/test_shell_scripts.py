"""Shell scripts of a snapshot run as if they were where the user has them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from features.freeze.repository import plain, repository, write
from stoker.core.launch import LaunchOrder
from stoker.core.spec import JobSpec
from stoker.features.freeze.code import FrozenCode, field_of
from stoker.features.freeze.listing import USUAL
from stoker.features.freeze.snapshots import SnapshotStore
from stoker.features.freeze.start import prepare_start
from stoker.features.freeze.take import take
from stoker.store.paths import Paths

pytestmark = pytest.mark.skipif(shutil.which("bash") is None or shutil.which("git") is None, reason="needs both")

PLAIN = """#!/usr/bin/env -S bash -eu
echo "old $0 $(dirname "$0") $#"
exit 7
"""
SOURCE = """#!/bin/bash -eu
# BASH_SOURCE names this file
echo "old ${BASH_SOURCE[0]} ${BASH_SOURCE%/*} $(dirname "$BASH_SOURCE") $#"
[[ "${BASH_SOURCE[0]}" == "$0" ]] && exit 7
"""
SEARCHES = """export PYTHONPATH=src
echo "old $PYTHONPATH"
PYTHONPATH="a:$PYTHONPATH" sh -c 'echo $PYTHONPATH'
PYTHONPATH= sh -c 'echo "[$PYTHONPATH]"'
"""
ODD = """#!/bin/bash
echo "old ${BASH_SOURCE[-1]##*/} ${#BASH_SOURCE[@]}"
exit 7
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {"s/plain.sh": PLAIN, "s/source.sh": SOURCE, "s/odd.sh": ODD, "s/searches.sh": SEARCHES}
    files["s/long.sh"] = PLAIN + "#" * 200_000
    root = repository(tmp_path / "my project", files)
    for name in files:
        (root / name).chmod(0o755)
    return root


def ran(root: Path, words: tuple[str, ...], shell: str = "") -> subprocess.CompletedProcess[str]:
    """The end of a command that was submitted before the scripts changed."""
    paths = Paths(root.parent / "state")
    store = SnapshotStore(paths.code)
    taken = take(str(root), store, plain(), USUAL)
    assert store.keep(taken.snapshot)
    write(root, {f"s/{name}.sh": "echo new" for name in ("plain", "source", "odd", "long", "searches")})
    order = LaunchOrder("1.1", words, shell, str(root), 0o22, "", {}, "", "", None, 0.0)
    spec = JobSpec(code=field_of(FrozenCode(taken.snapshot.id)))
    prepared = prepare_start(order, spec, plain(), paths)
    command = (shell, "-c", *prepared.words) if prepared.shell else prepared.words
    assert not any("echo" in word for word in command), "other users can read the words of a process"
    return subprocess.run(
        command, cwd=root, env={**plain(), **prepared.extra}, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("s/plain.sh a b", "old s/plain.sh s 2"),
        ("bash -e s/plain.sh", "old s/plain.sh s 0"),
        ("sh s/long.sh a", "old s/long.sh s 1"),
        ("s/source.sh a", "old s/source.sh s s 1"),
        ("bash s/source.sh", "old s/source.sh s s 0"),
        ("s/odd.sh", "old odd.sh 1"),
        ("env A=1 bash s/plain.sh a", "old s/plain.sh s 1"),
        ("nice -n 1 s/plain.sh", "old s/plain.sh s 0"),
    ],
)
def test_scripts(root: Path, line: str, said: str) -> None:
    """As words, and as a line for a shell in which a script starts a command."""
    outcome = ran(root, tuple(line.split()))
    assert (outcome.stdout.strip(), outcome.stderr, outcome.returncode) == (said, "", 7)


@pytest.mark.parametrize(
    "line",
    [
        "A=1 bash -e s/plain.sh a > /dev/stdout",
        "true && s/plain.sh a",
        "(s/source.sh a >&2) 2>&1",
        "sh s/plain.sh a;exit $?",
    ],
)
def test_scripts_in_lines(root: Path, line: str) -> None:
    outcome = ran(root, (line,), "/bin/sh")
    assert outcome.stdout.startswith(("old s/plain.sh s 1\n", "old s/source.sh s s 1\n")), outcome
    assert outcome.returncode == 7


def test_search_paths_that_a_script_sets(root: Path) -> None:
    """Python is still led to the snapshot; an empty search path stays empty, as an empty entry is the directory."""
    said = ran(root, ("sh", "s/searches.sh")).stdout.split()
    hook = said[1].removesuffix(":src")
    assert said == ["old", f"{hook}:src", f"{hook}:a:{hook}:src", "[]"]
    assert (Path(hook) / "sitecustomize.py").exists()
    for words, shell in (
        (("PYTHONPATH=src printenv PYTHONPATH",), "/bin/sh"),
        (("env", "PYTHONPATH=src", "printenv"), ""),
    ):
        assert "/python:src\n" in ran(root, words, shell).stdout
