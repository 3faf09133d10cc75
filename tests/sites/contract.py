"""What every site promises to its engine, as tests: each site runs them in a world of its own.

A world is an engine at the site, and whoever runs the attempts there: workers, nodes or pilots, played by the test.
"""

from __future__ import annotations

import signal
from abc import abstractmethod
from collections.abc import Callable, Iterator

import pytest

from stoker.core.job import Queued, Running, state_word
from stoker.core.planner.reasons import AtLimit, QueuePaused
from stoker.core.settings import Policy
from stoker.store.queries import paused_key
from support.fakes import EngineTest

MOST_STEPS = 200
"""Steps of one second in which everything has to happen that is waited for."""


class SiteWorld(EngineTest):
    """An engine at a site, and whoever runs its attempts."""

    @property
    @abstractmethod
    def handed_over(self) -> int:
        """How many attempts were given to whoever runs them."""

    @abstractmethod
    def begin(self, job_id: int) -> bool:
        """Begin with the attempt of a job, if it is there and nobody has begun with it."""

    @abstractmethod
    def end(self, job_id: int, code: int = 0) -> None:
        """End the attempt of a job."""

    @abstractmethod
    def lose(self, job_id: int) -> None:
        """Let all vanish that works on the attempt of a job."""

    @abstractmethod
    def stops(self, job_id: int) -> list[tuple[float, int]]:
        """Grace and signal of each order to stop the attempt of a job."""

    @abstractmethod
    def obey(self) -> None:
        """Stop what has to stop, and give back what has to come back."""

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.pass_seconds(1.0)
            self.turn()

    def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(MOST_STEPS):
            if condition():
                return
            self.step()
        pytest.fail("it did not happen")

    def word(self, job_id: int) -> str:
        return state_word(self.job(job_id))

    def start(self, job_id: int) -> None:
        """Work until the attempt of a job runs."""
        self.until(lambda: self.begin(job_id))
        self.until(lambda: self.word(job_id) == "running")

    def finish(self, job_id: int, code: int = 0) -> None:
        """Work until the job has ended, with this code."""
        self.start(job_id)
        self.end(job_id, code)
        self.until(lambda: self.word(job_id) in ("done", "failed"))

    def assign(self) -> None:
        """Place and record what waits, as an engine does that dies before it dispatches."""
        for job in self.store.open_jobs(self.name, 0, 1000):
            self.jobs.admit(job)
        self.engine.site.poll()
        self.engine.site.place(self.clock(), Policy())
        self.jobs.record()


class SiteContract:
    """The tests; a subclass has the fixture `world`."""

    @pytest.fixture
    def opened(self, world: SiteWorld) -> Iterator[SiteWorld]:
        """The world after one job has run there, so that limits are known and pilots work."""
        world.finish(*world.add())
        yield world
        world.close()

    @pytest.mark.parametrize(("code", "word"), [(0, "done"), (3, "failed")])
    def test_an_attempt_ends_once(self, opened: SiteWorld, code: int, word: str) -> None:
        """Whatever is reported again, and whoever looks again."""
        (job,) = opened.add()
        opened.finish(job, code)
        opened.step(3)
        opened.restart()
        opened.step(10)
        assert (opened.word(job), opened.ended(job).code) == (word, code)
        assert opened.kinds(job) == ["Assigned", "Started", "Exited"]

    def test_an_attempt_has_one_process(self, opened: SiteWorld) -> None:
        """Also if it is handed over twice."""
        (job,) = opened.add()
        opened.start(job)
        assert not opened.begin(job)
        opened.restart()
        opened.step(3)
        assert not opened.begin(job)

    def test_nothing_is_handed_over_before_it_is_recorded(self, opened: SiteWorld) -> None:
        """A job of which the store does not know that it was assigned may be assigned again."""
        before = opened.handed_over
        (job,) = opened.add()
        with opened.full_disk():
            opened.step(5)
            assert opened.handed_over == before
        opened.finish(job)
        assert opened.handed_over == before + 1

    def test_an_attempt_that_was_recorded_and_not_handed_over(self, opened: SiteWorld) -> None:
        """The next engine runs it, once."""
        before = opened.handed_over
        (job,) = opened.add()
        opened.assign()
        assert (opened.kinds(job), opened.handed_over) == (["Assigned"], before)
        opened.restart()
        opened.obey()
        opened.finish(job)
        assert opened.kinds(job) in (
            ["Assigned", "Started", "Exited"],
            ["Assigned", "Returned", "Assigned", "Started", "Exited"],
        )
        assert opened.handed_over == before + 1

    def test_an_attempt_that_ends_without_an_engine(self, opened: SiteWorld) -> None:
        """The next engine hears of it."""
        (job,) = opened.add()
        opened.start(job)
        opened.restart()
        opened.end(job, 5)
        opened.until(lambda: opened.word(job) == "failed")
        assert opened.ended(job).code == 5
        assert opened.kinds(job) == ["Assigned", "Started", "Exited"]

    def test_an_adopted_attempt_can_be_stopped(self, opened: SiteWorld) -> None:
        """With the grace and the signal that a user gave."""
        (job,) = opened.add()
        opened.start(job)
        opened.restart()
        opened.engine.cancel(job, 7.0, "by a test", signal.SIGUSR1)
        opened.step()
        assert opened.stops(job) == [(7.0, signal.SIGUSR1)]
        opened.obey()
        opened.until(lambda: opened.word(job) == "cancelled")

    def test_a_stop_has_the_grace_of_the_job(self, opened: SiteWorld) -> None:
        """Unless a user gave another one."""
        (job,) = opened.add(grace=11.0)
        opened.start(job)
        opened.engine.cancel(job, None, "")
        opened.step()
        assert [grace for grace, _ in opened.stops(job)] == [11.0]

    def test_a_stop_that_a_dead_engine_had_recorded(self, opened: SiteWorld) -> None:
        """The next engine sees to it that the attempt stops."""
        (job,) = opened.add()
        opened.start(job)
        opened.engine.cancel(job, None, "")
        opened.jobs.record()
        opened.restart()
        opened.step()
        opened.obey()
        opened.until(lambda: opened.word(job) == "cancelled")

    def test_cancelled_before_it_starts(self, opened: SiteWorld) -> None:
        """Nothing begins with it any more."""
        before = opened.handed_over
        (job,) = opened.add()
        opened.until(lambda: opened.handed_over > before)
        opened.engine.cancel(job, None, "")
        opened.step()
        opened.obey()
        opened.until(lambda: opened.word(job) == "cancelled")
        assert not opened.begin(job)
        assert "Started" not in opened.kinds(job)

    def test_a_lost_attempt_is_queued_again(self, opened: SiteWorld) -> None:
        """And counts as lost once."""
        (job,) = opened.add()
        opened.start(job)
        opened.lose(job)
        opened.until(lambda: opened.job(job).losses == 1)
        opened.until(lambda: opened.job(job).attempts == 2)
        opened.finish(job)
        assert opened.kinds(job).count("Lost") == 1

    def test_a_drained_site(self, opened: SiteWorld) -> None:
        """What runs goes on, and nothing more is handed over."""
        opened.engine.policy = Policy(max_running=1)
        runs, waits = opened.add(2)
        opened.start(runs)
        before = opened.handed_over
        opened.engine.drain()
        opened.step()
        assert opened.word(runs) == "running"
        opened.end(runs)
        opened.until(lambda: opened.word(runs) == "done")
        opened.step(5)
        assert isinstance(opened.job(waits).state, Queued)
        assert (opened.handed_over, opened.engine.at_rest) == (before, True)

    def test_why_a_job_waits(self, opened: SiteWorld) -> None:
        """The status says the same."""
        opened.engine.policy = Policy(max_running=1)
        runs, waits = opened.add(2)
        opened.start(runs)
        opened.step(2)
        assert opened.engine.site.reason(opened.job(waits)) == AtLimit(1)
        assert [reason for _, reason in opened.engine.site.status().waits] == [AtLimit(1)]

    def test_a_paused_queue(self, opened: SiteWorld) -> None:
        """Nothing is placed, and the reason has the user's words."""
        before = opened.handed_over
        opened.store.put_setting(paused_key(opened.name), {"note": "for a test"})
        (job,) = opened.add()
        opened.step(3)
        assert opened.engine.site.reason(opened.job(job)) == QueuePaused("for a test")
        assert opened.handed_over == before

    def test_a_site_without_trouble(self, opened: SiteWorld) -> None:
        """It says so, expects only jobs that are open, and does not ask for turns without a pause."""
        runs, waits = opened.add(2)
        opened.start(runs)
        opened.step(3)
        status, forecast = opened.engine.site.status(), opened.engine.site.forecast()
        assert (status.trouble, list(status.warnings), dict(status.survivors)) == ("", [], {})
        assert {*forecast.starts} <= {runs, waits}
        due = opened.engine.site.due_in(opened.clock(), placing=True)
        assert due is None or due > 0

    def test_what_runs_goes_on_after_the_engine(self, opened: SiteWorld) -> None:
        """To close a site stops nothing."""
        (job,) = opened.add()
        opened.start(job)
        opened.close_engine()
        assert isinstance(opened.job(job).state, Running)
        assert opened.stops(job) == []
