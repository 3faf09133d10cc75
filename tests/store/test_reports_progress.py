"""The progress of a running attempt, from reports and logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.core.job import Job, Running, Waiting
from stoker.core.logs.progress import Progress
from stoker.store.reports import progress_of
from support.build import a_job

NOW = 1000.0


def running(log: Path | str = "", *, since: float = 900.0, tries: int = 0) -> Job:
    return replace(a_job(7, state=Running(tries + 1, "w - 0", ("0",), since, str(log))), tries=tries)


def reports(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "7.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_the_rate_of_reports_tells_the_time_left(tmp_path: Path) -> None:
    """Also where the run went on from a checkpoint; the time since the last report has passed."""
    path = reports(
        tmp_path,
        '{"at": 910, "attempt": 1, "done": 50, "total": 100}',
        '{"at": 990, "attempt": 1, "done": 90, "total": 100}',
    )
    assert progress_of(running(), path, NOW) == Progress(0.9, 10.0)


@pytest.mark.parametrize(
    "line",
    [
        '{"at": 910, "done": 0, "total": 0}',
        '{"at": 910, "done": 1, "total": -3}',
        '{"at": 910, "done": -1, "total": 3}',
        '{"at": 910, "done": 1e999, "total": 3}',
        '{"at": 910, "done": "nan", "total": 3}',
        '{"at": 910, "done": NaN, "total": 3}',
        "nonsense",
    ],
)
def test_bad_reports_count_for_nothing(tmp_path: Path, line: str) -> None:
    """The newest good one counts."""
    assert progress_of(running(), reports(tmp_path, line), NOW) is None
    good = '{"at": 905, "done": 1, "total": 4}'
    assert progress_of(running(), reports(tmp_path, good, line), NOW) == Progress(0.25, 300.0)


def test_progress_that_goes_back_or_too_far(tmp_path: Path) -> None:
    """The last word counts, at most all of the work; without a rate the time so far tells how long it takes."""
    path = reports(tmp_path, '{"at": 910, "done": 80, "total": 100}', '{"at": 990, "done": 20, "total": 100}')
    assert progress_of(running(), path, NOW) == Progress(0.2, 400.0)
    assert progress_of(running(), reports(tmp_path, '{"at": 910, "done": 9, "total": 3}'), NOW) == Progress(1.0, 0.0)


def test_an_earlier_attempt_counts_for_nothing(tmp_path: Path) -> None:
    """Neither while the next one runs, nor while the job waits for it."""
    path = reports(tmp_path, '{"at": 910, "attempt": 1, "done": 3, "total": 4}')
    assert progress_of(running(tries=1), path, NOW) is None
    assert progress_of(replace(running(), state=Waiting(NOW)), path, NOW) is None


def test_a_log_counts_without_reports(tmp_path: Path) -> None:
    """The time so far tells how long the rest takes."""
    log = tmp_path / "log"
    log.write_text("epoch 1/4 loss 0.3\n")
    assert progress_of(running(log), tmp_path / "none", NOW) == Progress(0.25, 300.0)
    assert progress_of(running("-"), tmp_path / "none", NOW) is None
