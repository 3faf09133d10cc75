"""What is recorded of measured attempts, and what is learnt from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.device import Snapshot
from stoker.core.job import Ended, Job, Waiting
from stoker.core.learning import Learnt, MeasuredUse
from stoker.core.spec import JobSpec, Resources
from stoker.sites.machine.telemetry import LOOKS_ENOUGH, Learning, WatchedAttempt
from stoker.store.history import RunHistory
from stoker.store.schema import Measured
from stoker.store.writer import Store
from support.build import GIB, a_job, simulated

GPUS = simulated(24)
SNAPSHOT = Snapshot(0.0, GPUS)


class Records:
    """Telemetry and recorder in one, as far as learning needs them."""

    def __init__(self) -> None:
        self.over: list[WatchedAttempt] = []
        self.due: list[WatchedAttempt] = []
        self.goes_on: list[WatchedAttempt] = []
        self.measured: list[Measured] = []
        self.learnt: list[Learnt] = []

    def finished(self, _: Snapshot, __: float) -> list[WatchedAttempt]:
        return self.over

    def overdue(self, _: float) -> list[WatchedAttempt]:
        return self.due

    def left(self) -> list[WatchedAttempt]:
        return self.over

    def running(self) -> list[WatchedAttempt]:
        return self.goes_on

    def measure(self, measured: Measured) -> None:
        self.measured.append(measured)

    def learn(self, news: tuple[str, Learnt] | None) -> None:
        if news is not None:
            self.learnt.append(news[1])


@pytest.fixture
def records(tmp_path: Path) -> Iterator[tuple[Records, Learning]]:
    store = Store(tmp_path / "queue.db")
    made = Records()
    yield made, Learning(made, RunHistory(store), made)  # type: ignore[arg-type]
    store.close()


def a_run(result: str = "done", peak: int = 4 * GIB, **changes: object) -> WatchedAttempt:
    state = Ended(result, 5.0) if result else Waiting(0.0)  # type: ignore[arg-type]
    job: Job = a_job(1, spec=JobSpec(resources=Resources(auto=True)), state=state)
    use = MeasuredUse(peak=peak, looks=5, busy=LOOKS_ENOUGH, load=LOOKS_ENOUGH * 60)
    return WatchedAttempt(job, 1, GPUS, **{"use": use, **changes})  # type: ignore[arg-type]


def test_an_ended_attempt_is_recorded_and_learnt(records: tuple[Records, Learning]) -> None:
    """Its peak and its load, by the model of its GPU."""
    made, learning = records
    made.over = [a_run()]
    learning.learn(SNAPSHOT, 0.0)
    assert [(attempt.job, attempt.number) for attempt in made.measured] == [(1, 1)]
    ((runs,),) = [tuple(learnt.models.values()) for learnt in made.learnt]
    assert (runs.peaks, runs.loads) == ((4 * GIB,), (60,))


def test_a_load_of_few_snapshots_says_nothing(records: tuple[Records, Learning]) -> None:
    """The peak counts all the same."""
    made, learning = records
    made.over = [a_run(use=MeasuredUse(peak=GIB, looks=1, busy=1, load=90))]
    learning.learn(SNAPSHOT, 0.0)
    (runs,) = made.learnt[0].models.values()
    assert (runs.peaks, runs.loads) == ((GIB,), ())


def test_a_run_that_was_cut_short_counts_only_with_a_higher_peak(records: tuple[Records, Learning]) -> None:
    """Of work that is known; its end may have come before its peak."""
    made, learning = records
    made.over = [a_run("cancelled", peak=9 * GIB)]
    learning.learn(SNAPSHOT, 0.0)
    assert made.learnt == []
    for result, peak in (("done", 4 * GIB), ("cancelled", 3 * GIB), ("failed", 6 * GIB)):
        made.over = [a_run(result, peak=peak)]
        learning.learn(SNAPSHOT, 0.0)
    (runs,) = made.learnt[-1].models.values()
    assert (len(made.learnt), runs.peaks) == (2, (4 * GIB, 6 * GIB))


@pytest.mark.parametrize(("began", "starts"), [(42.0, (42.0,)), (0.0, ()), (None, ())])
@pytest.mark.parametrize("result", ["done", "failed", ""])
def test_how_long_it_took_to_compute_is_learnt(
    records: tuple[Records, Learning], result: str, began: float | None, starts: tuple[float, ...]
) -> None:
    """However it ended, also if it gave way: then it starts again. What no engine saw is not learnt."""
    made, learning = records
    made.over = [a_run(result, use=MeasuredUse(looks=5, began=began))]
    learning.learn(SNAPSHOT, 0.0)
    assert max((learnt.starts for learnt in made.learnt), default=()) == starts


def test_an_attempt_that_was_never_seen_is_not_recorded(records: tuple[Records, Learning]) -> None:
    """There is nothing to tell."""
    made, learning = records
    made.over = [a_run(use=MeasuredUse())]
    learning.learn(SNAPSHOT, 0.0)
    assert (made.measured, made.learnt) == ([], [])


def test_a_run_without_gpu_memory_is_learnt(records: tuple[Records, Learning]) -> None:
    """A peak of 0 counts after enough looks at GPUs without another process: else a container may hide its memory."""
    made, learning = records
    looks = [(LOOKS_ENOUGH, LOOKS_ENOUGH), (LOOKS_ENOUGH, LOOKS_ENOUGH - 1), (LOOKS_ENOUGH - 1, LOOKS_ENOUGH - 1)]
    for all_looks, exclusive in looks:
        made.over = [a_run(use=MeasuredUse(looks=all_looks, busy=exclusive))]
        learning.learn(SNAPSHOT, 0.0)
    made.over = [a_run("cancelled", use=MeasuredUse(looks=9, busy=9))]
    learning.learn(SNAPSHOT, 0.0)
    (runs,) = made.learnt[-1].models.values()
    assert runs.peaks == (0,)


def test_running_attempts_are_recorded_from_time_to_time(records: tuple[Records, Learning]) -> None:
    """Nothing is learnt from them yet."""
    made, learning = records
    made.due = [a_run("")]
    learning.learn(SNAPSHOT, 0.0)
    assert (len(made.measured), made.learnt) == (1, [])


def test_all_is_recorded_at_the_end(records: tuple[Records, Learning]) -> None:
    """Of ended and of running attempts: another engine goes on with these."""
    made, learning = records
    made.over, made.goes_on = [a_run()], [a_run("")]
    learning.finish()
    assert (len(made.measured), len(made.learnt)) == (2, 1)


def test_the_pace_is_read_from_the_log_of_an_exclusive_run(records: tuple[Records, Learning], tmp_path: Path) -> None:
    """Beside others it would be slower."""
    made, learning = records
    log = tmp_path / "log"
    log.write_text("".join(f"{step}/100 [00:{step:02}<01:00,  2.00it/s]\r" for step in range(10, 60, 10)))
    made.over = [a_run(log=str(log)), a_run(log=str(log), shared=True)]
    learning.learn(SNAPSHOT, 0.0)
    alone, shared = (next(runs.paces for runs in learnt.models.values()) for learnt in made.learnt)
    assert alone == shared, "the shared run added none"
    assert alone == pytest.approx((2.0,), rel=0.2)
