"""What packing has saved, honestly."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stoker.cli.views.run_summary import Saving, saving_of, saving_text
from stoker.core.job import Ended, Exited, JobEvent, Started
from stoker.core.learning import Learnt, observe_use
from stoker.engine.run_result import Tally
from support.build import a_job, simulated

DEVICES = simulated(24)
KNOWN = observe_use(Learnt(), DEVICES[0].model, pace=4.0)


@pytest.fixture
def log(tmp_path: Path) -> str:
    """The log of a job that makes three steps a second."""
    path = tmp_path / "log"
    path.write_text("100%|##########| 100/100 [00:10<00:00, 3.00it/s]\n")
    return str(path)


def ran_together(*logs: str) -> Tally:
    """Jobs that ran for a hundred seconds, all at the same time, with these logs."""
    tally = Tally()
    for number in range(len(logs)):
        tally.note(JobEvent(a_job(number), Started(1, 1.0), DEVICES))
    for number, log in enumerate(logs):
        job = msgspec.structs.replace(a_job(number, state=Ended("done", 101.0)), kind="vit")
        tally.note(JobEvent(job, Exited(1, 0, 0, 101.0, shared=True), DEVICES, log, 1.0))
    return tally


def test_time_together_less_what_company_costs(log: str) -> None:
    """Two jobs that went at three quarters of their speed would have taken 75 seconds each, and had 100 together."""
    assert saving_of(ran_together(log, log), lambda kind: KNOWN) == Saving(50.0, exact=True)


def test_where_speeds_are_not_known_it_is_the_most(log: str) -> None:
    """Whether a rate is missing in a log, or was never learnt."""
    assert saving_of(ran_together(log, ""), lambda kind: KNOWN) == Saving(75.0, exact=False)
    assert saving_of(ran_together(log, log), lambda kind: Learnt()) == Saving(100.0, exact=False)


def test_nothing_is_saved_alone(log: str) -> None:
    """One job on its GPU, or none at all."""
    assert saving_of(ran_together(log), lambda kind: KNOWN) == Saving(0.0, exact=True)
    assert saving_of(Tally(), lambda kind: KNOWN) == Saving(0.0, exact=True)


def test_jobs_that_only_hold_each_other_up(log: str) -> None:
    """At half their speed, two jobs save nothing, and nothing is told."""
    slow = observe_use(Learnt(), DEVICES[0].model, pace=6.0)
    assert saving_text(saving_of(ran_together(log, log), lambda kind: slow)) == ""


def test_words() -> None:
    """As a clock shows it, and with a word where it is not exact."""
    assert saving_text(Saving(4323.0, exact=True)) == "packing saved 1:12:03 of GPU time"
    assert saving_text(Saving(75.0, exact=False)) == "packing saved up to 01:15 of GPU time"
