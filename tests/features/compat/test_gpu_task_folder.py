"""Result folders: what tells a finished run from one that is to be run again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.features.compat.gpu_task.instance import MARKER, begin, finish, folder_state, mark, occupy
from support.disk import fill, small_disk


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "results" / "a-1,")


def test_life_of_a_folder(folder: str) -> None:
    """It is unfinished from the first moment, running while somebody holds it, and done at the end."""
    assert folder_state(folder) == "absent"
    begin(folder)
    assert folder_state(folder) == "unfinished"
    held = occupy(folder)
    assert held is not None
    assert (folder_state(folder), occupy(folder)) == ("running", None)
    os.close(held)
    assert folder_state(folder) == "unfinished"
    finish(folder)
    finish(folder)
    assert folder_state(folder) == "done"
    mark(folder)
    assert folder_state(folder) == "unfinished"


def test_folder_of_the_older_library(folder: str) -> None:
    """One without our marker counts as done, whatever is in it; so does a file of that name."""
    os.makedirs(folder)
    assert folder_state(folder) == "done"
    Path(folder).with_name("file").touch()
    assert folder_state(str(Path(folder).with_name("file"))) == "done"


def test_results_stay_when_a_run_begins_anew(folder: str) -> None:
    """Beginning again marks the folder and touches nothing else."""
    os.makedirs(folder)
    (Path(folder) / "result").write_text("1")
    begin(folder)
    assert sorted(os.listdir(folder)) == [MARKER, "result"]


def test_folder_without_marker_is_not_left_behind(tmp_path: Path) -> None:
    """Where the marker cannot be created, a new folder goes again, since it would count as done."""
    with small_disk(tmp_path / "disk", "size=1m,nr_inodes=2") as disk:
        with pytest.raises(OSError, match="No space left"):
            begin(str(disk / "a-1,"))
        assert folder_state(str(disk / "a-1,")) == "absent"


def test_marker_needs_no_space(tmp_path: Path) -> None:
    """On a full disk the marker is there all the same."""
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        fill(disk)
        begin(str(disk / "a-1,"))
        assert folder_state(str(disk / "a-1,")) == "unfinished"
