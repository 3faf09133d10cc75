"""The directory of a queue on the shared file system."""

from __future__ import annotations

from pathlib import Path

from stoker.features.slurm.context import QueueDirectory
from stoker.store.paths import Paths


def test_it_is_made_once(tmp_path: Path) -> None:
    """With a marker by which it is recognised."""
    directory = QueueDirectory(Paths(tmp_path / "queue"))
    before = directory.is_there
    directory.make()
    assert (before, directory.is_there) == (False, True)
    assert {path.name for path in directory.files.state.iterdir()} >= {"logs", "reports"}


def test_it_is_out_of_sight(tmp_path: Path) -> None:
    """The user hears of it until it is back."""
    directory = QueueDirectory(Paths(tmp_path / "queue"))
    assert not directory.is_reachable()
    assert directory.away == f"the shared directory {tmp_path / 'queue'} cannot be reached; jobs on the cluster go on"
    directory.make()
    assert directory.is_reachable()
    assert directory.away == ""


def test_why_it_cannot_be_written(tmp_path: Path) -> None:
    """The words of the system follow."""
    directory = QueueDirectory(Paths(tmp_path / "queue"))
    directory.failed("write to the shared directory", OSError(28, "No space left on device"))
    assert directory.trouble == f"cannot write to the shared directory {tmp_path / 'queue'}: No space left on device"
