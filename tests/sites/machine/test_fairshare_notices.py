"""What an engine tells other users of its jobs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stoker.core.job import Job, Running
from stoker.ledger import Ledger, LedgerNotice, prepare_ledger
from stoker.ledger.formats import MOST_LEASES, LeaseJob
from stoker.sites.machine.allocations import Allocation
from stoker.sites.machine.fairshare import REFRESH_INTERVAL, Notices
from support.build import a_job
from support.fakes import START, FakeRunner
from support.ledger_files import lease_name


class Stage:
    """Notices of an engine whose jobs are written by hand."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger(prepare_ledger(path / "ledger"))
        self.jobs: dict[int, Job] = {}
        self.notices = Notices(self.ledger, FakeRunner(), self.jobs.get)

    def allocation(self, job_id: int, limit: float | None = None) -> Allocation:
        """A worker with a running job."""
        state = Running(devices=("0",), ref=f"w{job_id}", attempt=1, since=START)
        self.jobs[job_id] = job = a_job(job_id, limit=limit, state=state)
        allocation = Allocation(f"w{job_id}", job.spec.resources, (), lease=f"/ledger/{lease_name()}")
        allocation.jobs.append(job_id)
        return allocation

    @property
    def files(self) -> list[Path]:
        return list(self.ledger.path.glob("*.jobs"))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def told(stage: Stage) -> dict[str, LeaseJob]:
    """The published jobs, by id."""
    notices = [msgspec.json.decode(path.read_bytes(), type=LedgerNotice) for path in stage.files]
    return {job.job: job for notice in notices for job in notice.leases.values()}


def test_jobs_are_told_with_their_latest_end(stage: Stage) -> None:
    """If they have a limit; a job without a lease is not told."""
    bare = stage.allocation(3)
    bare.lease = ""
    stage.notices.publish([stage.allocation(1), stage.allocation(2, limit=60.0), bare], 5, START)
    assert {name: job.until for name, job in told(stage).items()} == {"1": None, "2": START + 60}
    assert list(stage.ledger.live().waiting.values()) == [5]


def test_expected_ends(stage: Stage) -> None:
    """Are told in whole minutes, if they come before the limit."""
    jobs = [stage.allocation(1), stage.allocation(2, limit=600.0), stage.allocation(3, limit=60.0)]
    stage.notices.publish(jobs, 0, START, {1: START + 70, 2: START + 70, 3: START + 59.5})
    minute = (START + 70) // 60 * 60
    ends = {name: job.expected for name, job in told(stage).items()}
    assert ends["1"] == ends["2"]
    assert ends["1"] in (minute, minute + 60)
    assert ends["3"] is None


def test_it_is_written_when_it_changes(stage: Stage) -> None:
    """And once a minute, in case it was removed; it is always the same file, and `withdraw` removes it."""
    allocation = stage.allocation(1)
    stage.notices.publish([allocation], 0, START)
    (path,) = stage.files
    path.unlink()
    stage.notices.publish([allocation], 0, START + 1)
    assert not stage.files
    stage.notices.publish([allocation], 0, START + REFRESH_INTERVAL)
    assert stage.files == [path]
    stage.notices.publish([allocation], 1, START + REFRESH_INTERVAL)
    assert stage.files == [path]
    stage.notices.withdraw()
    assert not stage.files


def test_many_leases(stage: Stage) -> None:
    """Only so many are told as readers accept."""
    stage.notices.publish([stage.allocation(10**12 + number, limit=1e6) for number in range(600)], 0, START)
    assert len(told(stage)) == MOST_LEASES
    assert stage.ledger.live().warnings == ()


def test_a_broken_ledger_does_not_matter(stage: Stage) -> None:
    """Claims report it."""
    stage.ledger.path.rmdir()
    stage.ledger.path.write_text("")
    stage.notices.publish([stage.allocation(1)], 0, START)
    assert told(stage) == {}
