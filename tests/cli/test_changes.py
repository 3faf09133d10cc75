"""What is said of jobs that a command changed."""

from __future__ import annotations

import string

import pytest
from msgspec.structs import replace

from stoker.app.control.sentences import SENTENCES, effect
from stoker.cli.screens.changes import grouped_lines
from stoker.core.job import Ended, OnHold, Running, State, Waiting
from support.build import a_job

WAITS, HELD, RUNS = Waiting(1.0), OnHold(1.0), Running(1, "k", ("0",), 1.0)
DONE, GONE = Ended("done", 2.0), Ended("cancelled", 2.0)


@pytest.mark.parametrize(
    ("verb", "before", "after", "when", "said", "refused"),
    [
        ("cancel", WAITS, GONE, "", "cancelled 1 (queued)", False),
        ("cancel", RUNS, RUNS, "", "stopping 1 (HOW)", False),
        ("cancel", RUNS, DONE, "", "finished before the cancel: 1 (done)", False),
        ("cancel", DONE, DONE, "", "already finished: 1 (done)", False),
        ("cancel --dry-run", HELD, HELD, "", "would cancel 1 (held)", False),
        ("cancel --dry-run", RUNS, RUNS, "", "would stop 1 (running; HOW)", False),
        ("retry", DONE, WAITS, "", "requeued 1 (last result: HOW)", False),
        ("retry", DONE, DONE, "ended again", "ended again: 1 (OUTCOME)", True),
        ("edit", WAITS, WAITS, "changed", "1: DIFFERENCE", False),
        ("edit", WAITS, RUNS, "", "not changed: 1 (now running)", True),
        ("edit", DONE, DONE, "", "already finished: 1 (done); to run again: stoker retry 1", True),
        ("pause", WAITS, HELD, "", "held 1", False),
        ("pause", HELD, HELD, "", "already held: 1", False),
        ("pause", WAITS, DONE, "", "just ended: 1 (done)", True),
        ("pause", DONE, DONE, "", "already finished: 1 (done)", True),
        ("pause", DONE, DONE, "batch", "already finished: 1 (done)", False),
        ("pause", RUNS, RUNS, "batch", "may finish: 1 (running)", False),
        ("pause", WAITS, DONE, "batch", "just ended: 1 (done)", False),
        ("resume", DONE, DONE, "batch", "already finished: 1 (done)", False),
        ("resume", HELD, WAITS, "", "released 1", False),
        ("resume", WAITS, WAITS, "interrupted", "moved 1 into the queue (its 'stoker run' was interrupted)", False),
        ("resume", RUNS, RUNS, "", "not held: 1 (running)", False),
    ],
)
def test_sentences(*, verb: str, before: State, after: State, when: str, said: str, refused: bool) -> None:
    """By command and states; what a command cannot do is refused."""
    details = {"how": "HOW", "memory": "", "outcome": "OUTCOME", "note": "", "difference": "DIFFERENCE"}
    told = effect(verb, a_job(1, state=before), a_job(1, state=after), when, **details)
    assert (told.said, told.refused) == (said, refused)


@pytest.mark.parametrize("verb", SENTENCES)
def test_something_is_always_said(verb: str) -> None:
    """The last sentence of each command fits all states, and names the job."""
    *_, last = SENTENCES[verb]
    assert (last.before, last.after, last.when) == ((), (), "")
    for sentence in SENTENCES[verb]:
        assert "id" in {name for _, name, _, _ in string.Formatter().parse(sentence.text)}


def test_jobs_with_the_same_result_share_a_line() -> None:
    """Also where others are between them; ranges are short, and the numbers in a result are not ids."""
    jobs = [a_job(number, state=WAITS) for number in (1, 2, 3, 7)]
    tasks = [replace(a_job(20 + task, state=WAITS), array=20, task=task) for task in range(4)]
    results = [effect("retry", job, job, how="exit 1", memory="") for job in (*jobs[:2], *tasks, *jobs[2:])]
    results.insert(3, effect("retry", a_job(9, state=DONE), a_job(9, state=WAITS), how="exit 9", memory=""))
    assert grouped_lines(results) == [
        "requeued 8 jobs 1-2,20.[0-3],3,7 (last result: exit 1)",
        "requeued 9 (last result: exit 9)",
    ]
    assert grouped_lines([results[2], results[4]]) == ["requeued 2 tasks 20.[0-1] (last result: exit 1)"]
    late = [effect("edit", tasks[number], replace(tasks[number], state=DONE)) for number in (0, 1, 3)]
    assert grouped_lines(late) == ["not changed: 3 tasks 20.[0-1,3] (now done)"]


def test_a_grouped_hint_names_no_single_job() -> None:
    """The command in it is for each of them."""
    over = [a_job(number, state=DONE) for number in (4, 5)]
    assert grouped_lines([effect("edit", job, job) for job in over]) == [
        "already finished: 2 jobs 4-5 (done); to run again: stoker retry ID"
    ]


def test_a_line_names_no_more_ranges_than_can_be_read() -> None:
    """The number of jobs is complete, the list of ids is not."""
    jobs = [a_job(number, state=WAITS) for number in range(1, 2001, 2)]
    (line,) = grouped_lines([effect("cancel", job, a_job(job.id, state=GONE)) for job in jobs])
    assert line.startswith("cancelled 1000 jobs 1,3,5,")
    assert line.endswith(",39,… (queued)")
