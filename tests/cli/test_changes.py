"""What is said of jobs that a command changed."""

from __future__ import annotations

import string

import pytest

from stoker.cli.views.changes import SENTENCES, result
from stoker.core.job import Ended, OnHold, Running, State, Waiting
from support.build import a_job

WAITS, HELD, RUNS = Waiting(1.0), OnHold(1.0), Running(1, "k", ("0",), 1.0)
DONE, GONE = Ended("done", 2.0), Ended("cancelled", 2.0)


@pytest.mark.parametrize(
    ("verb", "before", "after", "when", "said", "refused"),
    [
        ("cancel", WAITS, GONE, "", "cancelled 1 (was queued)", False),
        ("cancel", RUNS, RUNS, "", "stopping 1 (was running; HOW)", False),
        ("cancel", RUNS, DONE, "", "1 ended by itself (done)", False),
        ("cancel", DONE, DONE, "", "1 is over already (done)", False),
        ("cancel --dry-run", HELD, HELD, "", "would cancel 1 (held)", False),
        ("cancel --dry-run", RUNS, RUNS, "", "would stop 1 (running; HOW)", False),
        ("retry", DONE, WAITS, "", "1 is queued again (was HOW)", False),
        ("retry", DONE, DONE, "ended again", "1 is OUTCOME again", True),
        ("edit", WAITS, WAITS, "changed", "1: DIFFERENCE", False),
        ("edit", WAITS, RUNS, "", "1 is running by now, and was not changed", True),
        ("edit", DONE, DONE, "", "1 is over (done); stoker retry 1 runs it again", True),
        ("pause", WAITS, HELD, "", "held 1", False),
        ("pause", HELD, HELD, "", "1 is held already", False),
        ("pause", WAITS, DONE, "", "1 has ended meanwhile (done)", True),
        ("pause", DONE, DONE, "", "1 is over already (done)", True),
        ("resume", HELD, WAITS, "", "released 1", False),
        ("resume", WAITS, WAITS, "abandoned", "1 goes on in the queue; the run that had it is gone", False),
        ("resume", RUNS, RUNS, "", "1 is not held; it is running", False),
    ],
)
def test_sentences(*, verb: str, before: State, after: State, when: str, said: str, refused: bool) -> None:
    """By command and states; what a command cannot do is refused."""
    details = {"how": "HOW", "memory": "", "outcome": "OUTCOME", "note": "", "difference": "DIFFERENCE"}
    told = result(verb, a_job(1, state=before), a_job(1, state=after), when, **details)
    assert (told.said, told.refused) == (said, refused)


@pytest.mark.parametrize("verb", SENTENCES)
def test_something_is_always_said(verb: str) -> None:
    """The last sentence of each command fits all states, and names the job."""
    *_, last = SENTENCES[verb]
    assert (last.before, last.after, last.when) == ((), (), "")
    for sentence in SENTENCES[verb]:
        assert "id" in {name for _, name, _, _ in string.Formatter().parse(sentence.text)}
