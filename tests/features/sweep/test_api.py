"""The API shows sweeps as the command line does, with what the charts need."""

from __future__ import annotations

import msgspec

from stoker.core.spec import Command, JobSpec
from stoker.features.sweep.api import SweepPage
from stoker.features.sweep.model.grammar import parse_space
from stoker.features.sweep.model.record import SweepSpec, trial_jobs
from stoker.features.sweep.store import StoredSweep, add_sweep, set_trial_result
from stoker.features.sweep.view import MOST_POINTS, SweepList
from stoker.store.engine_lock import QUEUE
from support.past import PastQueue
from support.store import wanted
from support.web import Browser, read, refusal

HOSTILE = '<script>alert("1")</script>'


def add_grid(queue: PastQueue, *words: str, ended: int, objective: str = "loss:min") -> int:
    """A sweep whose first trials are done; the loss of trial n is its distance from 7, by three steps."""
    sweep = SweepSpec(
        space=parse_space(words),
        command=Command(("train", HOSTILE, "{lr}")),
        name=HOSTILE,
        objectives=(objective,) if objective else (),
    )
    with queue.store.writing():
        batch = queue.store.add_batch("sweep", queue.now)
        ids = queue.store.add_jobs(batch, QUEUE, list(trial_jobs(sweep, JobSpec())), queue.now, array=True)
        add_sweep(queue.store, StoredSweep(ids[0], batch, queue.now, None, JobSpec(), sweep))
        for number in range(ended):
            queue.attempt(wanted(queue.store, ids[number]), "0", number - 10_000, number - 9_990)
            loss = float(abs(number - 7))
            curves = {"loss": [(1, loss + 2), (2, None), (3, loss)]}
            result = {"attempt": 1, "curves": curves, "values": {"loss": loss}, "over": True}
            set_trial_result(queue.store, batch, number, result if objective else {"attempt": 1})
    return ids[0]


def test_a_sweep(client: Browser, queue: PastQueue) -> None:
    """The view of the command line with the best trials first, and what the charts need."""
    sweep = add_grid(queue, "lr=0.1..1.2:0.1", "opt=a,b", ended=20)
    listed = client.get("/api/v1/sweeps")
    msgspec.json.decode(listed.content, type=SweepList, strict=True)
    (line,) = listed.json()["sweeps"]
    assert (line["id"], line["name"], line["method"], line["state"]) == (sweep, HOSTILE, "grid", "running")
    assert (line["total"], line["counts"]) == (24, {"done": 20, "queued": 4})
    assert (line["objective"], line["best"], line["params"]) == ("loss", 0.0, {"lr": 0.4, "opt": "b"})
    answer = client.get(f"/api/v1/sweeps/{sweep}")
    page = msgspec.json.decode(answer.content, type=SweepPage, strict=True)
    assert [one.number for one in page.sweep.trials] == [7, 6, 8, 5, 9, 4, 10, 3, 11, 2, 12, 1, 13, 0, *range(14, 24)]
    assert [(one.name, one.names) for one in page.axes] == [("lr", []), ("opt", ["a", "b"]), ("loss", [])]
    assert (page.points[7].line, page.points[7].place, page.points[7].goodness) == ([0.4, 1.0, 0.0], 8, 1.0)
    assert page.steps == [(place, 8.0 - place) for place in range(1, 9)]
    assert (page.curves[7].trial, page.curves[7].points) == (7, [(1.0, 2.0), (3.0, 0.0)])
    assert (page.total, page.pages, page.points_left_out, page.curves_left_out) == (24, 1, 0, 0)
    for path in ("sweeps/99", "sweeps/last", "sweeps/%3Cscript%3E"):
        assert refusal(client, path)[0] == 404


def test_a_sweep_without_objective(client: Browser, queue: PastQueue) -> None:
    """It has a table, and nothing for charts."""
    sweep = add_grid(queue, "lr=1,2,3", ended=2, objective="")
    page = read(client, f"sweeps/{sweep}")
    assert [one["number"] for one in page["sweep"]["trials"]] == [0, 1, 2]
    assert (page["axes"], page["points"], page["steps"], page["curves"]) == ([], [], [], [])
    assert read(client, "sweeps")["sweeps"][0]["best"] is None


def test_a_long_sweep(client: Browser, queue: PastQueue) -> None:
    """Charts get a part of its trials, with the best ones; the table has all of them, a hundred at a time."""
    more = 30
    sweep = add_grid(queue, f"lr=1..{MOST_POINTS + more}", ended=MOST_POINTS + more)
    page = read(client, f"sweeps/{sweep}?page=2")
    assert (len(page["points"]), page["points_left_out"], page["total"]) == (MOST_POINTS, more, MOST_POINTS + more)
    assert {0, 7, 50, 150} <= {point["trial"]["number"] for point in page["points"]}
    assert [one["number"] for one in page["sweep"]["trials"]] == list(range(100, 200))
    assert page["curves"][0]["trial"] == 7, "the best one is there, and the newest ones"
    assert len(page["curves"]) + page["curves_left_out"] == MOST_POINTS + more


def test_a_queue_that_is_gone(client: Browser, queue: PastQueue) -> None:
    """It is told, and no request makes an empty one in its place."""
    assert read(client, "sweeps")["sweeps"] == []
    database = queue.paths.database
    database.rename(database.with_name("away"))
    assert refusal(client, "sweeps") == (503, f"the queue is gone: {database}")
    assert not database.exists()
