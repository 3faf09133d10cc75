"""Where values of trials are found: the files of wandb."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from features.sweep.wandb import item, record, run_file
from stoker.features.sweep.model.objective import ValueSeries
from stoker.features.sweep.tuner.values import WandbRuns

NAME = "val loss"


def write_run(folder: Path, run_id: str, *records: bytes) -> Path:
    """A run as wandb writes it below a directory."""
    run = folder / "wandb" / f"offline-run-20260101_000000-{run_id}"
    (run / "files").mkdir(parents=True)
    (run / f"run-{run_id}.wandb").write_bytes(run_file(records))
    return run


def values_in(folder: Path, since: float = 0.0) -> list[float]:
    """The values that are read at the end of a trial."""
    series = ValueSeries()
    with contextlib.closing(WandbRuns(str(folder), NAME, 1, since)) as runs:
        runs.read(series, last=True)
    return [value for _, value in series.curve]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a trial, whose run is `r1`."""
    path = tmp_path / "wandb/job-3"
    path.mkdir(parents=True)
    describe(path)
    return path


def describe(folder: Path, attempt: int = 1, earlier: Sequence[Path] = ()) -> None:
    """Write what the starter of an attempt writes."""
    names = [str(run.relative_to(folder)) for run in earlier]
    table = {"attempt": attempt, "id": "r1", "folders": [str(folder), str(folder.parents[1])], "earlier": names}
    (folder / "run.json").write_text(json.dumps(table))


def test_values_are_read_as_they_come(folder: Path) -> None:
    """Each log of the value is a step, whatever else was logged between."""
    runs, series = WandbRuns(str(folder), NAME, 1, 0.0), ValueSeries()
    with contextlib.closing(runs):
        runs.read(series, last=False)
        run = write_run(folder, "r1", record(2, item(NAME, 3)), record(2, item("other", 1)))
        runs.read(series, last=False)
        assert dict(series.curve) == {1.0: 3.0}
        more = [
            record(2, item(NAME, 3)),
            record(2, item("other", 1)),
            record(2, item(NAME, 2)),
            record(3, item(NAME, 9)),
        ]
        (run / "run-r1.wandb").write_bytes(run_file(more))
        runs.read(series, last=True)
    assert dict(series.curve) == {1.0: 3.0, 2.0: 2.0}


def test_a_script_that_chooses_its_own_directory(tmp_path: Path, folder: Path) -> None:
    """The run is known by its id; those of other trials in the same place are not read."""
    write_run(tmp_path, "r1", record(2, item(NAME, 1)))
    write_run(tmp_path, "r2", record(2, item(NAME, 2)))
    assert values_in(folder) == [1.0]


def test_a_value_of_the_summary_only(folder: Path) -> None:
    """`wandb.run.summary[...] = ...` counts where nothing was logged under the name."""
    write_run(folder, "r1", record(3, item(NAME, 5)), record(3, item(NAME, 4)))
    assert values_in(folder) == [4.0]


def test_the_summary_file_of_older_versions(folder: Path) -> None:
    """It is read where the run has no other file."""
    run = write_run(folder, "r1")
    (run / "run-r1.wandb").unlink()
    (run / "files/wandb-summary.json").write_text(json.dumps({NAME: 0.5, "other": 1}))
    assert values_in(folder) == [0.5]


def test_runs_of_an_earlier_attempt_are_not_read(folder: Path) -> None:
    """They were written before it began."""
    run = write_run(folder, "r1", record(2, item(NAME, 1)))
    os.utime(run / "run-r1.wandb", (1000, 1000))
    assert values_in(folder, time.time()) == []


def test_runs_of_an_attempt_that_ended_just_now_are_not_read(folder: Path) -> None:
    """Nor before the new attempt has described itself: a trial that is requeued starts again within a second."""
    run = write_run(folder, "r0", record(2, item(NAME, 1)))
    describe(folder, attempt=2)
    assert values_in(folder) == []
    describe(folder, earlier=[run])
    assert values_in(folder) == []
    write_run(folder, "r1", record(2, item(NAME, 2)))
    assert values_in(folder) == [2.0]


def test_a_file_of_another_form_is_named(folder: Path) -> None:
    """In place of silence."""
    (write_run(folder, "r1") / "run-r1.wandb").write_bytes(b"something else")
    with contextlib.closing(WandbRuns(str(folder), NAME, 1, 0.0)) as runs:
        runs.read(ValueSeries(), last=True)
    assert "not a file of wandb" in runs.notice
