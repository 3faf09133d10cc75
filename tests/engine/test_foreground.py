"""A run in the foreground at a fake site."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.device import Snapshot
from stoker.core.job import Active, JobEvent, Running, Starting, Stopping
from stoker.core.run_result import parse_halt
from stoker.core.settings import Policy
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.engine import foreground
from stoker.engine.foreground import Complaints, Foreground, Setup
from stoker.sites.interface import SiteStatus
from stoker.store.paths import Paths
from support.fakes import FakeSite, FakeSiteConfig


class Screen:
    """A view that only remembers."""

    interval: float | None = 0.0

    def __init__(self) -> None:
        self.said: list[str] = []
        self.events: list[JobEvent] = []
        self.on_refresh: Callable[[Foreground], None] = lambda _: None

    def happened(self, job_event: JobEvent) -> None:
        self.events.append(job_event)

    def refresh(self, run: Foreground) -> None:
        self.on_refresh(run)

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        pass


class ListSource:
    """Jobs that are all there from the beginning."""

    def __init__(self, *names: str) -> None:
        self._left = [NewJob(Command((name,)), JobSpec()) for name in names]

    @property
    def exhausted(self) -> bool:
        return not self._left

    @exhausted.setter
    def exhausted(self, _: bool) -> None:
        raise AssertionError("only the source itself knows")

    def fileno(self) -> int:
        return -1

    def take(self, limit: int) -> Sequence[NewJob]:
        taken, self._left = self._left[:limit], self._left[limit:]
        return taken


def run_all(site: FakeSite, code: int = 0) -> None:
    """Let the site start what was sent and end what runs, at every poll."""

    def poll() -> None:
        for job_id in list(site.sent):
            job = site.jobs.active(job_id)
            if job is not None and isinstance(job.state, Starting | Stopping):
                site.start(job_id) if isinstance(job.state, Starting) else site.exit(job_id, 143)
            elif job is not None and isinstance(job.state, Running):
                site.exit(job_id, code)
                site.room += 1
        pending, site.pending = site.pending, []
        for report in pending:
            report()

    site.poll = poll  # type: ignore[method-assign]


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


def a_setup(paths: Paths, ready: Callable[[FakeSite], None] = run_all, **changes: object) -> Setup:
    return Setup(paths, FakeSiteConfig(ready), Policy(), "label", **changes)  # type: ignore[arg-type]


def test_a_run_ends_when_all_jobs_are_over(paths: Paths, screen: Screen) -> None:
    """All of them were counted and shown."""
    with closing(Foreground(a_setup(paths), screen)) as run:
        run.run(ListSource("a", "b", "c"))
        assert (run.tally.given, run.tally.results["done"], run.tally.expected) == (3, 3, 3)
        assert run.status() == "3 of 3 finished (3 ok, 0 failed), 0 running, 0 waiting"
    assert [type(each.event).__name__ for each in screen.events] == ["Assigned", "Started", "Exited"] * 3


def test_a_run_that_resumes_skips_what_was_done(paths: Paths, screen: Screen) -> None:
    """The second run has nothing to do."""
    for skipped in (0, 2):
        with closing(Foreground(a_setup(paths, resume=True), screen)) as run:
            run.run(ListSource("a", "b"))
            assert run.tally.skipped == skipped


def test_a_run_without_resume_runs_everything(paths: Paths, screen: Screen) -> None:
    """Though it was done before."""
    for _ in range(2):
        with closing(Foreground(a_setup(paths), screen)) as run:
            run.run(ListSource("a", "b"))
            assert run.tally.results["done"] == 2


def test_halt_stops_early(paths: Paths, screen: Screen) -> None:
    """After the first failure nothing more starts."""
    setup = a_setup(paths, lambda site: run_all(site, 1), halt=parse_halt("soon,fail=1"))
    with closing(Foreground(setup, screen)) as run:
        run.run(ListSource("a", "b", "c"))
        assert (run.tally.failed, run.engine.waiting) == (1, 2)
    assert screen.said == ["stopping (--halt); continue the rest later with --resume"]


def test_signals_stop_in_stages(paths: Paths, screen: Screen) -> None:
    """The first interrupt drains, the second sends TERM to what runs."""
    config = a_setup(paths, lambda site: None)
    with closing(Foreground(config, screen)) as run:
        site = run.engine.site
        assert isinstance(site, FakeSite)

        def press(_: Foreground) -> None:
            if site.sent and not site.called("stop"):
                job = site.jobs.active(site.sent[0])
                if job is not None and isinstance(job.state, Starting):
                    site.start(job.id)
                else:
                    os.kill(os.getpid(), signal.SIGINT)
            elif site.called("stop"):
                site.exit(site.sent[0], 1)
                screen.on_refresh = lambda _: None

        screen.on_refresh = press
        run.run(ListSource("a", "b"))
        assert run.stopped_by == signal.SIGINT
        assert run.tally.results["cancelled"] == 1
        assert run.engine.waiting == 1
    assert [text.split(";")[0] for text in screen.said] == [
        "starting no more jobs",
        "stopping 1 (TERM, then KILL after the grace time)",
    ]


def test_a_full_disk_delays_new_jobs(paths: Paths, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are kept, the user is told, and they run when the store can be written again."""
    monkeypatch.setattr(foreground, "RETRY_INTERVAL", 0.01)
    with closing(Foreground(a_setup(paths), screen)) as run:
        troubles: list[str] = []
        run.store._database._connection.execute("PRAGMA query_only = 1")

        def refresh(run: Foreground) -> None:
            troubles.append(run.engine.trouble)
            run.store._database._connection.execute("PRAGMA query_only = 0")

        screen.on_refresh = refresh
        run.run(ListSource("a"))
        assert "cannot write" in troubles[0]
        assert (troubles[-1], run.tally.results["done"]) == ("", 1)


def test_the_process_of_a_job_comes_from_the_site(paths: Paths, screen: Screen) -> None:
    """Front ends need not know where it runs."""
    with closing(Foreground(a_setup(paths), screen)) as run:
        seen: list[int | None] = []
        screen.on_refresh = lambda run: seen.extend(run.process_of(job) for job in run.engine.active_jobs)
        run.run(ListSource("a"))
        assert set(seen) == {4242}


class TestComplaints:
    """What keeps a run from going on is said once."""

    def test_trouble_of_the_site_is_said_once(self, paths: Paths, screen: Screen) -> None:
        """And again when it has changed."""
        complaints = Complaints(screen.say)
        with closing(Foreground(a_setup(paths), screen)) as run:
            site = run.engine.site
            assert isinstance(site, FakeSite)
            for trouble in ("no ledger", "no ledger", "", "no disk"):
                site.shown = SiteStatus(Snapshot(0.0, ()), trouble=trouble)
                complaints.check(run)
        assert screen.said == ["no ledger", "no disk"]

    def test_a_note_of_the_devices_and_a_warning_count(self, paths: Paths, screen: Screen) -> None:
        """In this order."""
        complaints = Complaints(screen.say)
        with closing(Foreground(a_setup(paths), screen)) as run:
            site = run.engine.site
            assert isinstance(site, FakeSite)
            for note in ("stale", ""):
                site.shown = SiteStatus(Snapshot(0.0, (), note=note), warnings=("odd file",))
                complaints.check(run)
        assert screen.said == ["stale", "odd file"]


def test_active_jobs_are_left_when_a_run_closes(paths: Paths, screen: Screen) -> None:
    """A killed terminal does not end jobs: the next run finds them."""
    with closing(Foreground(a_setup(paths, lambda site: None), screen)) as run:
        run._taken = ListSource("a").take(1)
        run._submit()
        run.engine.turn(0)
        (job,) = run.store.active_jobs(run.engine.name)
        assert isinstance(job.state, Active)
        name = run.engine.name
    with closing(Foreground(a_setup(paths, resume=True), screen)) as run:
        assert run.store.active_jobs(name) == []
        site = run.engine.site
        assert isinstance(site, FakeSite)
        assert site.called("adopt") == [[job.id]]
