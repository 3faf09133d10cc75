"""Properties of a job for any sequence of events."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.job import (
    LOSSES_ALLOWED,
    Assigned,
    Cancelled,
    Displaced,
    Ended,
    Event,
    Exited,
    InvalidTransition,
    Job,
    Lost,
    Returned,
    Running,
    Started,
    Starting,
    Stayed,
    Stopping,
    Waiting,
    advance,
)
from stoker.core.spec import JobSpec
from support.build import a_job

QUIET = settings(max_examples=60, derandomize=True)

MOMENTS = st.floats(0, 1e6)
ATTEMPTS = st.integers(1, 3)
WHY = st.sampled_from(["exited", "timeout", "stopped", "refused", "preempted"])
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Assigned, ref=st.just("k"), devices=st.just(("0",)), log=st.just("log"), at=MOMENTS),
    st.builds(Started, attempt=ATTEMPTS, at=MOMENTS),
    st.builds(Exited, ATTEMPTS, st.sampled_from([0, 1]), st.sampled_from([0, 9]), MOMENTS, why=WHY),
    st.builds(Returned, attempt=ATTEMPTS, at=MOMENTS),
    st.builds(Lost, attempt=ATTEMPTS, at=MOMENTS),
    st.builds(Cancelled, at=MOMENTS),
    st.builds(Displaced, at=MOMENTS, to=st.integers(0, 3)),
    st.builds(Stayed, at=MOMENTS),
)
SEQUENCES = st.lists(EVENTS, max_size=25)
SPECS = st.builds(
    JobSpec,
    retries=st.integers(0, 2),
    requeue=st.booleans(),
    preemptible=st.sampled_from(["", "save", "restart"]),
    save_exit=st.sampled_from([None, 0, 1]),
)


def live(job: Job, details: list[Event]) -> list[Job]:
    """The job after each possible event; impossible ones are skipped."""
    lives = [job]
    for event in details:
        with suppress(InvalidTransition):
            lives.append(advance(lives[-1], event))
    return lives


def own_attempt(job: Job, event: Event) -> Event:
    """The event with the number of the current attempt, so that most events are possible."""
    change: dict[str, Any] = {"attempt": job.attempts} if hasattr(event, "attempt") else {}
    return msgspec.structs.replace(event, **change)


def live_likely(job: Job, details: list[Event]) -> list[Job]:
    """As live(), with every event about the current attempt."""
    lives = [job]
    for event in details:
        lives.extend(live(lives[-1], [own_attempt(lives[-1], event)])[1:])
    return lives


@QUIET
@given(SPECS, SEQUENCES)
def test_any_events_give_a_state_or_invalid_transition(spec: JobSpec, details: list[Event]) -> None:
    """No event sequence raises anything but InvalidTransition."""
    for job in live(a_job(1, spec=spec), details):
        assert isinstance(job.state, Waiting | Starting | Running | Stopping | Ended)


@QUIET
@given(SPECS, SEQUENCES)
def test_counts_only_grow_and_agree_with_the_state(spec: JobSpec, details: list[Event]) -> None:
    """The newest attempt is the current one, and failures never exceed attempts."""
    lives = live_likely(a_job(1, spec=spec), details)
    for before, then in pairwise(lives):
        assert then.attempts - before.attempts in (0, 1)
        assert then.failures + then.losses + then.preemptions <= then.attempts
        assert (then.id, then.command) == (before.id, before.command)
        assert then.spec in (before.spec, msgspec.structs.replace(before.spec, preemptible=""))
        assert then.submitted == before.submitted  # by which the order ranks it
        if isinstance(then.state, Starting | Running | Stopping):
            assert then.state.attempt == then.attempts


@QUIET
@given(SPECS, SEQUENCES)
def test_an_end_is_final(spec: JobSpec, details: list[Event]) -> None:
    """An ended job accepts no event but a retry, which these events do not have."""
    lives = live_likely(a_job(1, spec=spec), details)
    assert not any(isinstance(job.state, Ended) for job in lives[:-1])


@QUIET
@given(SPECS, SEQUENCES)
def test_a_job_runs_no_more_often_than_its_spec_allows(spec: JobSpec, details: list[Event]) -> None:
    """Failures are bounded by the retries, losses by their own limit."""
    job = live_likely(a_job(1, spec=spec), details)[-1]
    assert job.failures <= spec.retries + 1
    assert job.losses <= (LOSSES_ALLOWED + 1 if spec.requeue else 1)


@QUIET
@given(SPECS, SEQUENCES)
def test_equal_events_make_equal_jobs(spec: JobSpec, details: list[Event]) -> None:
    """advance() depends on nothing but its arguments."""
    assert live(a_job(1, spec=spec), details) == live(a_job(1, spec=spec), details)


@QUIET
@given(SPECS, SEQUENCES)
def test_a_job_survives_being_stored_at_any_moment(spec: JobSpec, details: list[Event]) -> None:
    """States and jobs come back from JSON as they were."""
    job = live_likely(a_job(1, spec=spec), details)[-1]
    assert msgspec.json.decode(msgspec.json.encode(job), type=Job) == job
