"""The effect of each event in each state."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from stoker.core.job import (
    LOSSES_ALLOWED,
    Assigned,
    Cancelled,
    Displaced,
    Ended,
    Event,
    Exited,
    GivingWay,
    InvalidTransition,
    Job,
    Lost,
    Resumed,
    Returned,
    Running,
    Started,
    Starting,
    State,
    Stayed,
    Stopping,
    Waiting,
    Why,
    advance,
    result_of,
    state_word,
)
from stoker.core.spec import Command, JobSpec
from support.build import a_job

ASSIGNED = Assigned("k1", ("0",), "1.log", at=1.0)
STARTED = Started(1, at=2.0)
DONE = Exited(1, code=0, signal=0, at=9.0)
FAILED = Exited(1, code=3, signal=0, at=9.0)
TIMEOUT = Exited(1, code=0, signal=15, at=9.0, why="timeout")
RETURNED = Returned(1, at=3.0)
SHORT = Returned(1, at=3.0, shortage="no process")
RESUMED = Resumed(5.0)
LOST = Lost(1, at=3.0)
CANCELLED = Cancelled(at=4.0, note="by you")
PRUNED = Cancelled(at=4.0, note="worse than the median", result="stopped")

WAITING = Waiting(0.0)
PARKED = Waiting(0.0, "no process")
STARTING = Starting(1, "k1", ("0",), 1.0, "1.log")
RUNNING = Running(1, "k1", ("0",), 2.0, "1.log")
STOPPING = Stopping(1, "k1", ("0",), 4.0, "1.log", note="by you")
STOPPING_RUN = Stopping(1, "k1", ("0",), 4.0, "1.log", note="by you", started=2.0)
PRUNING = Stopping(1, "k1", ("0",), 4.0, "1.log", note="worse than the median", started=2.0, result="stopped")
ENDED_BY_TERM = Exited(1, code=0, signal=0, at=9.0, why="stopped")
OVER = Ended("done", 9.0, 0)

LEGAL: list[tuple[State, Event, State]] = [
    (WAITING, ASSIGNED, STARTING),
    (WAITING, CANCELLED, Ended("cancelled", 4.0, note="by you")),
    (STARTING, STARTED, RUNNING),
    (STARTING, RETURNED, Waiting(0.0)),
    (STARTING, SHORT, PARKED),
    (RUNNING, SHORT, PARKED),
    (PARKED, RESUMED, WAITING),
    (STARTING, LOST, Waiting(3.0)),
    (STARTING, CANCELLED, STOPPING),
    (RUNNING, DONE, Ended("done", 9.0, 0)),
    (RUNNING, FAILED, Ended("failed", 9.0, 3)),
    (RUNNING, TIMEOUT, Ended("timeout", 9.0, 0, 15)),
    (RUNNING, LOST, Waiting(3.0)),
    (RUNNING, CANCELLED, STOPPING_RUN),
    (STOPPING, STARTED, STOPPING_RUN),
    (STOPPING_RUN, CANCELLED, STOPPING_RUN),
    (STOPPING, CANCELLED, STOPPING),
    (STOPPING, DONE, Ended("done", 9.0, 0)),
    (STOPPING, FAILED, Ended("cancelled", 9.0, 3, note="by you")),
    (STOPPING, TIMEOUT, Ended("cancelled", 9.0, 0, 15, "by you")),
    (STOPPING, RETURNED, Ended("cancelled", 3.0, note="cancelled before it started")),
    (STOPPING, SHORT, Ended("cancelled", 3.0, note="cancelled before it started")),
    (STOPPING, LOST, Ended("cancelled", 3.0, note="its worker died while stopping it")),
    (WAITING, PRUNED, Ended("stopped", 4.0, note="worse than the median")),
    (RUNNING, PRUNED, PRUNING),
    (PRUNING, CANCELLED, PRUNING),
    (PRUNING, ENDED_BY_TERM, Ended("stopped", 9.0, 0, note="worse than the median")),
    (PRUNING, FAILED, Ended("stopped", 9.0, 3, note="worse than the median")),
    (PRUNING, DONE, Ended("done", 9.0, 0)),
    (PRUNING, LOST, Ended("stopped", 3.0, note="its worker died while stopping it")),
]

EVENTS: list[Event] = [ASSIGNED, STARTED, DONE, FAILED, TIMEOUT, RETURNED, SHORT, LOST, CANCELLED, RESUMED]
STATES: list[State] = [WAITING, STARTING, RUNNING, STOPPING, OVER]
ILLEGAL = [
    (state, event)
    for state in STATES
    for event in EVENTS
    if not any(state == before and event == happened for before, happened, _ in LEGAL)
]


def in_state(state: State, spec: JobSpec | None = None) -> Job:
    """A job in this state of its first attempt."""
    job = a_job(1, state=state, spec=spec)
    return msgspec.structs.replace(job, attempts=0 if isinstance(state, Waiting) else 1)


def after(job: Job, *events: Event) -> Job:
    """The job after all events."""
    for event in events:
        job = advance(job, event)
    return job


@pytest.mark.parametrize(("before", "event", "then"), LEGAL)
def test_a_legal_transition(before: State, event: Event, then: State) -> None:
    """The table above lists all legal transitions."""
    assert advance(in_state(before), event).state == then


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_every_other_transition_raises(state: State, event: Event) -> None:
    """All other transitions raise, and the message has job, state and event."""
    with pytest.raises(InvalidTransition, match=r"job 1 is .* and then came ") as bug:
        advance(in_state(state), event)
    assert bug.value.event == event


@pytest.mark.parametrize("event", [Started(2, 2.0), Exited(2, 0, 0, 9.0), Returned(2, 3.0), Lost(2, 3.0)])
@pytest.mark.parametrize("state", [STARTING, RUNNING, STOPPING])
def test_an_event_of_another_attempt_raises(state: State, event: Event) -> None:
    """An event of another attempt raises."""
    with pytest.raises(InvalidTransition):
        advance(in_state(state), event)


def test_an_assignment_counts_an_attempt() -> None:
    """Attempts are numbered from one, also when the one before never started."""
    job = after(a_job(1), ASSIGNED, RETURNED, ASSIGNED)
    assert (job.attempts, job.state) == (2, Starting(2, "k1", ("0",), 1.0, "1.log"))


def test_a_failed_job_waits_again_while_it_has_retries() -> None:
    """Failures spend retries; then the last result stays."""
    job = after(a_job(1, spec=JobSpec(retries=1)), ASSIGNED, STARTED, FAILED)
    assert (job.state, job.failures) == (Waiting(9.0), 1)
    job = after(job, ASSIGNED, Started(2, 10.0), Exited(2, 4, 0, 11.0))
    assert (job.state, job.failures) == (Ended("failed", 11.0, 4), 2)


def test_a_refused_command_is_not_tried_again() -> None:
    """A command that cannot be started fails the same way every time."""
    job = after(a_job(1, spec=JobSpec(retries=5)), ASSIGNED, STARTED, Exited(1, 127, 0, 9.0, why="refused"))
    assert job.state == Ended("failed", 9.0, 127)


def test_a_lost_job_spends_no_retry() -> None:
    """A lost worker spends no retry, up to a limit."""
    job = a_job(1)
    for attempt in range(1, LOSSES_ALLOWED + 1):
        job = after(job, ASSIGNED, Started(attempt, 2.0), Lost(attempt, 3.0))
        assert (job.state, job.failures, job.losses) == (Waiting(3.0), 0, attempt)
    job = after(job, ASSIGNED, Lost(LOSSES_ALLOWED + 1, 3.0))
    assert isinstance(job.state, Ended)
    assert job.state.result == "lost"


def test_a_job_that_must_not_run_twice_is_not_queued_again() -> None:
    """With --no-requeue a lost attempt ends the job."""
    job = after(a_job(1, spec=JobSpec(requeue=False)), ASSIGNED, STARTED, LOST)
    assert job.state == Ended("lost", 3.0, note="its worker was killed, or the machine went down")


def test_a_job_that_is_always_queued_again_survives_any_number_of_losses() -> None:
    """The limit of losses does not apply to it."""
    job = a_job(1, spec=JobSpec(always_requeue=True))
    for number in range(1, 3 * LOSSES_ALLOWED):
        job = after(job, ASSIGNED, Lost(number, at=3.0))
    assert job.state == Waiting(3.0)


@pytest.mark.parametrize("why", get_args(Why))
def test_code_zero_is_done_only_for_a_natural_end(why: Why) -> None:
    """A timeout and a stop have their own results, whatever the code."""
    expected = {"timeout": "timeout", "hung": "hung", "stopped": "cancelled"}.get(why, "done")
    assert result_of(why, 0, 0) == expected


def test_a_signal_is_a_failure() -> None:
    """Death by a signal is never done."""
    assert result_of("exited", 0, 9) == "failed"


def test_a_command_is_shown_as_a_user_would_type_it() -> None:
    """Words are quoted where the shell would need it; a line for the shell is left as it is."""
    assert Command(("echo", "a b")).text == "echo 'a b'"
    assert Command(("echo a b | wc",), shell="/bin/sh").text == "echo a b | wc"


def test_a_start_that_was_not_possible_is_no_try() -> None:
    """It counts neither as a failure nor as a loss, and the next attempt has another number."""
    job = after(in_state(RUNNING), SHORT)
    assert (job.tries, job.failures, job.losses, job.attempts) == (0, 0, 0, 1)
    assert after(job, RESUMED, ASSIGNED).attempts == 2


def _preempted(job: Job, code: int = 1, signal: int = 0) -> Job:
    return advance(job, Exited(1, code, signal, at=9.0, why="preempted"))


def _saving(**spec: Any) -> Job:
    waiting = a_job(1, spec=JobSpec(preemptible="save", **spec))
    return advance(advance(advance(waiting, ASSIGNED), STARTED), Displaced(5.0, to=7))


def test_a_job_that_gives_way_waits_again_and_spends_no_retry() -> None:
    """It keeps its age, and knows for whom it left which devices."""
    job = _preempted(_saving())
    assert job.state == Waiting(9.0, gave_way=GivingWay(5.0, 7, devices=("0",)))
    assert (job.preemptions, job.tries, job.failures, job.losses) == (1, 1, 0, 0)
    assert job.submitted == a_job(1).submitted


def test_exit_0_means_done_unless_that_is_the_code_for_saved() -> None:
    assert state_word(_preempted(_saving(), code=0)) == "done"
    assert state_word(_preempted(_saving(save_exit=0), code=0)) == "waiting"


def test_with_a_code_for_saved_any_other_code_is_a_failure() -> None:
    """A save that fails is one, and uses a retry if there is one."""
    assert state_word(_preempted(_saving(save_exit=75), code=75)) == "waiting"
    failed = _preempted(_saving(save_exit=75, retries=1), code=1)
    assert (state_word(failed), failed.failures, failed.preemptions) == ("waiting", 1, 0)
    assert state_word(_preempted(_saving(save_exit=75), code=1)) == "failed"


def test_a_job_that_stays_is_not_asked_again() -> None:
    job = advance(_saving(), Stayed(8.0))
    assert (job.state, job.spec.preemptible) == (Running(1, "k1", ("0",), 2.0, log="1.log"), "")
    assert state_word(_preempted(job)) == "waiting", "the worker knows better if the engine's clock was wrong"


def test_a_cancel_overrides_a_preemption() -> None:
    job = advance(_saving(), Cancelled(6.0))
    assert state_word(_preempted(job)) == "cancelled"


def test_a_preemption_of_a_scheduler_is_the_same_state() -> None:
    """As Slurm's, which takes the machine away: no loss, and the next run knows that it goes on."""
    lost = advance(advance(advance(a_job(1), ASSIGNED), STARTED), Lost(1, 9.0, "by Slurm", preempted=True))
    assert lost.state == Waiting(9.0, gave_way=GivingWay(9.0, note="by Slurm"))
    assert (lost.preemptions, lost.losses) == (1, 0)
