"""A look at a sweep reads what changed, and shows what reading everything shows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from stoker.core.job import Paused, Resumed, Retried
from stoker.core.spec import Command, JobSpec
from stoker.features.sweep import summary as module
from stoker.features.sweep.api import SweepPage, sweep_page
from stoker.features.sweep.model.grammar import parse_space
from stoker.features.sweep.model.record import SweepSpec, trial_jobs
from stoker.features.sweep.store import StoredSweep, add_sweep, all_trials, set_trial_result, trial_results
from stoker.features.sweep.summary import SweepSummaries, summary_path
from stoker.features.sweep.view import opened_sweep
from stoker.store.database import Database
from stoker.store.engine_lock import QUEUE
from stoker.store.writer import open_store
from support.past import PastQueue
from support.store import after, wanted

TRIALS = 40


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[PastQueue]:
    with closing(PastQueue(tmp_path)) as made:
        yield made


class SweepInQueue:
    """A sweep whose trials a test lets start and end."""

    def __init__(self, queue: PastQueue, trials: int = TRIALS, objectives: tuple[str, ...] = ("loss:min",)) -> None:
        self.queue = queue
        self.settled: set[int] = set()
        self.spec = SweepSpec(
            space=parse_space(["lr=1e-5..1e-1:log", "opt=a,b", "seed=7"]),
            command=Command(("train", "{lr}", "{opt}", "{seed}")),
            method="random",
            count=trials,
            seed=1,
            objectives=objectives,
        )
        self.batch = queue.store.add_batch("sweep", queue.now)
        with queue.store.writing():
            jobs = list(trial_jobs(self.spec, JobSpec()))
            self.jobs = list(queue.store.add_jobs(self.batch, QUEUE, jobs, queue.now, array=True))
            add_sweep(queue.store, StoredSweep(self.jobs[0], self.batch, queue.now, None, JobSpec(), self.spec))

    def run(self, number: int, end: float | None = 0.0, code: int = 0) -> None:
        """Start a trial, which ends unless it has no end."""
        job = wanted(self.queue.store, self.jobs[number])
        self.queue.attempt(job, "0", -100.0, end, code=code)

    def report(self, number: int, loss: float | None, *, over: bool = True, message: str = "") -> None:
        """Write the result of the newest attempt."""
        attempt = wanted(self.queue.store, self.jobs[number]).attempts
        body = {"attempt": attempt, "curves": {"loss": [(1, 9.0), (2.5, loss)]}, "values": {"loss": loss}}
        set_trial_result(self.queue.store, self.batch, number, {**body, "over": over, "message": message})

    def event(self, number: int, event: Any) -> None:
        self.queue.store.record([after(wanted(self.queue.store, self.jobs[number]), [event])])

    def page(self, summaries: SweepSummaries | None = None, page: int = 1) -> SweepPage:
        """What the API answers, without the time of the look."""
        with opened_sweep(self.queue.paths, str(self.jobs[0]), summaries) as now:
            shown = sweep_page(replace(now, now=self.queue.now), page)
        return msgspec.json.decode(msgspec.json.encode(shown), type=SweepPage)


class RowsRead:
    """Counts the rows that a store gives."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.count = 0
        rows = Database.rows

        def counted(database: Database, query: str, *values: Any) -> list[tuple[Any, ...]]:
            found = rows(database, query, *values)
            self.count += len(found)
            return found

        patch.setattr(Database, "rows", counted)

    def of_look(self, sweep: SweepInQueue, summaries: SweepSummaries) -> int:
        """Of one look."""
        before = self.count
        with opened_sweep(sweep.queue.paths, str(sweep.jobs[0]), summaries):
            return self.count - before


def do_something(sweep: SweepInQueue, chance: random.Random) -> None:
    """Change one trial in a way that its state allows."""
    number = chance.randrange(TRIALS)
    job = wanted(sweep.queue.store, sweep.jobs[number])
    match job.state.__class__.__name__:
        case "Waiting" if chance.random() < 0.2:
            sweep.event(number, Paused(sweep.queue.now))
        case "Waiting":
            sweep.run(number, chance.choice([None, -50.0, -20.0, 0.0]), chance.choice([0, 0, 0, 1]))
        case "OnHold":
            sweep.event(number, Resumed(sweep.queue.now))
        case "Ended" if number in sweep.settled:  # its result stays as it is until a retry
            sweep.settled.discard(number)
            sweep.event(number, Retried(sweep.queue.now))
        case "Ended":
            sweep.settled.add(number)
            loss = chance.choice([None, 0.5, chance.random()])
            sweep.report(number, loss, message="" if loss is not None else "the value of loss is nan")
        case _:
            sweep.report(number, chance.random(), over=False)


@pytest.mark.parametrize("seed", range(4))
def test_a_page_that_follows_changes(queue: PastQueue, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each change it is the page of a process that reads everything, with or without a file."""
    monkeypatch.setattr(module, "LEAST_SAVED", 10_000 if seed % 2 else 5)
    sweep, chance = SweepInQueue(queue), random.Random(seed)
    summaries = SweepSummaries(queue.paths)
    for _ in range(30):
        for _ in range(chance.choice([1, 1, 5])):
            do_something(sweep, chance)
        page = sweep.page(summaries)
        assert page == sweep.page()
        assert page.sweep.trials == in_order(sweep, page)


def in_order(sweep: SweepInQueue, page: SweepPage) -> list[Any]:
    """The trials of a page after a comparison with what the store has, in the order that a plain sort gives."""
    results = trial_results(sweep.queue.store, sweep.batch)
    states: Counter[str] = Counter()
    shown = {trial.number: trial for trial in page.sweep.trials}
    for row in all_trials(sweep.queue.store, sweep.batch):
        trial, result = shown[row.number], results.get(row.number, {"attempt": -1})
        current = result if result["attempt"] == row.attempt else {}
        state = "failed" if row.state == "done" and current.get("message") else row.state.replace("waiting", "queued")
        states[state] += 1
        assert (trial.job, trial.params, trial.state) == (row.job, row.params, state)
        assert (trial.values, trial.message) == (current.get("values", {}), current.get("message", ""))
        assert trial.step == (2.5 if current.get("curves") else None)
    assert page.sweep.counts == states

    def key(trial: Any) -> tuple[Any, ...]:
        value = trial.values.get("loss")
        is_last = value is None or trial.state == "failed"
        return is_last, 0 if is_last else value, trial.state not in ("starting", "running", "stopping"), trial.number

    return sorted(page.sweep.trials, key=key)


def test_rows_that_a_look_reads(queue: PastQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """They follow what changed, and not the size of the sweep; another process reads the file in their place."""
    monkeypatch.setattr(module, "LEAST_SAVED", 200)
    rows, looks = RowsRead(monkeypatch), []
    for trials in (100, 300):
        sweep, summaries = SweepInQueue(queue, trials), SweepSummaries(queue.paths)
        for number in range(trials - 10):
            sweep.run(number)
            sweep.report(number, float(number))
        first = rows.of_look(sweep, summaries)
        nothing = rows.of_look(sweep, summaries)
        sweep.run(trials - 5)
        sweep.report(trials - 5, 0.5)
        later = rows.of_look(sweep, summaries)
        looks.append(later - nothing)
        assert first > 3 * (trials - 10), "states, times and results"
        another = rows.of_look(sweep, SweepSummaries(queue.paths))
        assert another > first if trials == 100 else another == later
        assert nothing < 20
    assert looks == [4, 4], "the job, its state, its times and its result"


def test_trials_that_are_deleted(queue: PastQueue) -> None:
    """They are gone from the summary; so is what belongs to an event whose id is used again."""
    sweep, summaries = SweepInQueue(queue), SweepSummaries(queue.paths)
    for number in range(4):
        sweep.run(number)
        sweep.report(number, float(number))
    assert sweep.page(summaries).sweep.counts == {"done": 4, "queued": 36}
    with queue.store.writing() as connection:
        for table, column in (("events", "job"), ("attempts", "job"), ("jobs", "id")):
            connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (sweep.jobs[0],))
    assert sweep.page(summaries).sweep.counts == {"done": 3, "queued": 36}
    with queue.store.writing() as connection:
        connection.execute("DELETE FROM events")
    for number in range(10, 14):  # their events have the ids of the first ones
        sweep.run(number)
    assert sweep.page(summaries).sweep.counts == {"done": 7, "queued": 32}
    assert sweep.page(summaries) == sweep.page()


@pytest.mark.parametrize("damage", ["empty", "cut", "of another sweep", "a directory"])
def test_a_file_that_is_no_summary(queue: PastQueue, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not believed: everything is read again."""
    monkeypatch.setattr(module, "LEAST_SAVED", 1)
    sweep, other = SweepInQueue(queue), SweepInQueue(queue)
    for number in range(3):
        sweep.run(number)
        sweep.report(number, float(number))
        other.run(number, code=1)
    page = sweep.page()
    other.page()
    path = summary_path(queue.paths, sweep.jobs[0])
    body = path.read_bytes()
    match damage:
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(body[: len(body) // 2])
        case "of another sweep":
            path.write_bytes(summary_path(queue.paths, other.jobs[0]).read_bytes())
        case _:
            path.unlink()
            path.mkdir()
    assert sweep.page() == page


def test_parameters_that_differ(queue: PastQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are found also if they differ between trials in the middle, or only with a trial that comes later."""
    monkeypatch.setattr(module, "_EXAMINED", 1)
    sweep, summaries = SweepInQueue(queue, 3), SweepSummaries(queue.paths)

    def give(number: int, params: str) -> None:
        with queue.store.writing() as connection:
            connection.execute("UPDATE jobs SET params = ? WHERE id = ?", (params, sweep.jobs[number]))

    def tuned() -> list[str]:
        with opened_sweep(queue.paths, str(sweep.jobs[0]), summaries) as now:
            return now.tracked.tuned(sweep.spec)

    for number in range(3):
        give(number, '{"lr":0.1,"opt":"a","seed":7}')
    assert tuned() == []
    give(1, '{"lr":0.2,"opt":"a","seed":7}')
    summaries = SweepSummaries(queue.paths)
    assert tuned() == ["lr"]
    (new,) = trial_jobs(replace(sweep.spec, count=4), JobSpec(), 3)
    with queue.store.writing():
        sweep.jobs += queue.store.add_jobs(sweep.batch, QUEUE, [replace(new, task=None)], queue.now)
        give(3, '{"lr":0.1,"seed":7}')
    assert tuned() == ["lr", "opt"]


def test_importance_of_many_trials(queue: PastQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes from some of them, and the screen says so."""
    sweep = SweepInQueue(queue, 80)
    for number, row in enumerate(all_trials(queue.store, sweep.batch)):
        sweep.run(number)
        sweep.report(number, float(row.params["opt"] == "a") + number / 1e6)
    exact = sweep.page().sweep
    monkeypatch.setattr(module, "MOST_STUDIED", 40)
    chosen = sweep.page().sweep
    assert next(iter(exact.importance)) == next(iter(chosen.importance)) == "opt"
    assert chosen.importance_method == f"{exact.importance_method}; from 40 trials chosen at random"


def test_a_store_that_cannot_be_written(queue: PastQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page needs no file."""
    monkeypatch.setattr(module, "LEAST_SAVED", 1)
    sweep = SweepInQueue(queue)
    sweep.run(0)
    queue.paths.batches.write_text("no directory")
    assert sweep.page().sweep.counts == {"done": 1, "queued": TRIALS - 1}
    with closing(open_store(queue.paths)) as store:
        assert len(all_trials(store, sweep.batch)) == TRIALS
