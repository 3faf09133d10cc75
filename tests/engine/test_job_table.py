"""Where an engine keeps its jobs."""

from __future__ import annotations

from stoker.core.job import Ended, Running, Waiting
from stoker.engine.job_table import Roster
from support.build import a_job

RUNNING = Running(1, "k1", ("0",), 2.0)


def test_a_job_is_where_its_state_says() -> None:
    """What waits is among the waiting, what runs is held, and what is over is forgotten."""
    roster = Roster()
    roster.place(a_job(1))
    assert (len(roster.waiting), roster.at_our_work) == (1, False)
    roster.waiting.remove(1)
    roster.place(a_job(1, state=RUNNING))
    assert [job.id for job in roster.ours] == [1]
    roster.place(a_job(1, state=Ended("done", 3.0)))
    assert not roster.at_work


def test_a_guest_is_not_ours() -> None:
    """A guest is held but not ours, and where it would wait it is forgotten: its owner's heir may take it up."""
    roster = Roster()
    roster.place(a_job(1, state=RUNNING))
    roster.welcome(a_job(1, state=RUNNING))
    assert (roster.ours, roster.at_work, roster.at_our_work) == ([], True, False)
    roster.place(a_job(1, state=Waiting(3.0)))
    assert (len(roster.waiting), roster.at_work) == (0, False)


def test_a_guest_can_become_ours() -> None:
    """A run that resumes makes guests its own, unless they are over."""
    roster = Roster()
    roster.place(a_job(1, state=RUNNING))
    roster.welcome(a_job(1, state=RUNNING))
    assert roster.promote(1, batch=7)
    assert [(job.id, job.batch) for job in roster.ours] == [(1, 7)]
    assert not roster.promote(2, batch=7)


def test_the_next_is_the_most_important_and_then_the_oldest() -> None:
    """Priority goes before age."""
    roster = Roster()
    for job in (a_job(1), a_job(3, priority=5), a_job(2, priority=5)):
        roster.place(job)
    assert roster.next_waiting is not None
    assert roster.next_waiting.id == 2


def test_an_attempt_that_is_over_is_not_found() -> None:
    """A journal may be read twice; what it says of an older attempt finds no job."""
    roster = Roster()
    roster.place(a_job(1, state=RUNNING))
    assert roster.attempt("1.1") is None
