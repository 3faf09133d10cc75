"""Tests that need optional programs are found, and have none on a bare PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support import optional
from support.bare import link_others
from support.wait import PATIENCE_SECONDS

START = "import subprocess; subprocess.run(['tmux', '-V'], check=False)"
ASK = "from support.optional import missing; missing('tmux')"
HOOK = "import sys; from support.bare import _note_program; sys.addaudithook(_note_program)\n"


@pytest.mark.parametrize("program", [ASK, HOOK + f"try:\n    {START}\nexcept FileNotFoundError:\n    pass"])
def test_a_test_that_asks_or_starts_is_noted(program: str, tmp_path: Path) -> None:
    """Also where a child process of the test does so."""
    notes = tmp_path / "notes"
    own = {"PYTEST_CURRENT_TEST": "tests/test_x.py::test_y[a (b)] (call)", optional.NOTES: str(notes)}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **own}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=PATIENCE_SECONDS)
    assert set(notes.read_text().splitlines()) == {"tests/test_x.py::test_y[a (b)]"}


def test_a_bare_path_has_only_the_others(tmp_path: Path) -> None:
    """None of the optional programs is there, and a shell is."""
    link_others(tmp_path)
    assert not {file.name for file in tmp_path.iterdir()} & set(optional.PACKAGES)
    assert shutil.which("sh", path=str(tmp_path))
