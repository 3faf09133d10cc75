"""Counting what became of jobs, and when that is a reason to stop."""

from __future__ import annotations

import pytest

from stoker.core.errors import UsageError
from stoker.core.job import Ended, Event, Exited, JobEvent, State, Waiting
from stoker.core.outcomes import Result
from stoker.core.run_result import KEPT_FAILURES, Tally, parse_halt
from support.build import a_job, declared


def job_event(job_id: int, event: Event, state: State, started: float | None = None) -> JobEvent:
    """Something that happened to a job on two devices."""
    return JobEvent(a_job(job_id, state=state), event, declared("0", "1"), started=started)


def exited(at: float, code: int = 0) -> Exited:
    """An end at a moment."""
    return Exited(attempt=1, code=code, signal=0, why="exited", at=at)


def end(tally: Tally, job_id: int, result: Result) -> None:
    """Let a job end."""
    tally.note(job_event(job_id, exited(5.0), Ended(result, 5.0)))


def test_results_are_counted() -> None:
    """Only what is done is no failure; lines that could not become a job are one."""
    tally = Tally(unusable=1)
    results: list[Result] = ["done", "done", "failed", "timeout", "cancelled"]
    for number, result in enumerate(results):
        end(tally, number, result)
    assert (tally.ended, tally.failed, tally.results["done"]) == (5, 4, 2)
    assert [job.id for job in tally.failures] == [2, 3, 4]


def test_gpu_time_counts_every_device_and_attempt() -> None:
    """Two devices for three seconds, and again for one, are eight GPU-seconds."""
    tally = Tally()
    tally.note(job_event(1, exited(13.0, 1), Waiting(13.0), started=10.0))
    tally.note(job_event(1, exited(21.0), Ended("done", 21.0), started=20.0))
    assert (tally.gpu_seconds, tally.retried, tally.ended) == (8.0, 1, 1)


def test_failures_do_not_fill_the_memory() -> None:
    """Of very many failures the first are kept and all are counted."""
    tally = Tally()
    for number in range(KEPT_FAILURES + 5):
        end(tally, number, "failed")
    assert (len(tally.failures), tally.failed) == (KEPT_FAILURES, KEPT_FAILURES + 5)


@pytest.mark.parametrize(
    ("text", "done", "failed", "reached"),
    [
        ("soon,fail=1", 9, 0, False),
        ("soon,fail=1", 0, 1, True),
        ("now,fail=3", 0, 2, False),
        ("now,success=2", 2, 0, True),
        ("soon,done=4", 2, 2, True),
        ("soon,done=5", 2, 2, False),
        ("now,fail=20%", 0, 1, False),
        ("now,fail=20%", 0, 2, True),
        ("now,success=100%", 9, 1, False),
    ],
)
def test_halting(text: str, done: int, failed: int, reached: bool) -> None:
    """A number counts jobs, a percentage counts them against all that there will be: ten here."""
    tally = Tally(given=5, expected=10)
    for number in range(done + failed):
        end(tally, number, "done" if number < done else "failed")
    halt = parse_halt(text)
    assert halt
    assert (halt.reached(tally), halt.now) == (reached, text.startswith("now"))


def test_a_percentage_of_an_unknown_number_is_never_reached() -> None:
    """While lines still arrive, their number is unknown."""
    tally = Tally(given=1)
    end(tally, 1, "failed")
    halt = parse_halt("now,fail=20%")
    assert halt
    assert not halt.reached(tally)


def test_never_is_no_halt() -> None:
    """`never` is understood, as parallel does."""
    assert parse_halt("never") is None


@pytest.mark.parametrize("text", ["", "soon", "soon,fail", "soon,fail=", "soon,fail=0", "later,fail=1", "now,bad=1"])
def test_other_words_are_refused(text: str) -> None:
    """What is not understood is refused with an example."""
    with pytest.raises(UsageError) as refused:
        parse_halt(text)
    assert "soon,fail=1" in refused.value.hint
