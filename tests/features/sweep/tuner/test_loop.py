"""The loop of the tuner on a queue without an engine: what it adds, records and repairs."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.errors import StokerError
from stoker.core.job import Assigned, Cancelled, Event, Exited, Job, Retried, Returned, Started, advance
from stoker.core.launch import variables
from stoker.core.requests import Cancel
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.features.sweep import summary
from stoker.features.sweep.model.grammar import parse_space
from stoker.features.sweep.model.record import SweepSpec
from stoker.features.sweep.store import StoredSweep, TrialJob, add_sweep, all_trials, stop_sweep, trial_results
from stoker.features.sweep.summary import summary_path
from stoker.features.sweep.tuner import loop
from stoker.features.sweep.tuner.loop import NO_ENGINE_SECONDS, Tuner, only_tuner
from stoker.features.sweep.tuner_job import RETRIED_CODES, TRY_AGAIN
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths
from stoker.store.schema import Change
from stoker.store.writer import Store
from support.wait import PATIENCE_SECONDS


class Queue:
    """A store in which the test plays the engine."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.paths = Paths(home)
        self.paths.engines.mkdir()
        self.store = Store(self.paths.database)
        self.now = 1000.0
        self.sweep = self.batch = 0
        self._closing = contextlib.ExitStack()

    def start(self, **record: Any) -> Tuner:
        """Record a sweep and return its tuner."""
        space, command = parse_space(["lr=1e-4..1:log"]), Command(("train", "{lr}"))
        given = {"method": "tpe", "count": 4, "max_parallel": 2, "objectives": ("regex:loss=(.*)",), **record}
        sweep = SweepSpec(space=space, command=command, **given)
        self.batch = batch = self.store.add_batch("sweep", self.now)
        (self.sweep,) = self.store.add_jobs(batch, QUEUE, [NewJob(Command(("tuner",)), JobSpec())], self.now)
        spec = JobSpec(cwd=str(self.home))
        add_sweep(self.store, StoredSweep(self.sweep, batch, self.now, self.sweep, spec, sweep))
        return self.tuner()

    def tuner(self) -> Tuner:
        """A new process of the sweep."""
        return self._closing.enter_context(
            contextlib.closing(Tuner(self.paths, self.store, self.sweep, lambda: self.now))
        )

    def close(self) -> None:
        self._closing.close()
        self.store.close()

    def trials(self) -> list[TrialJob]:
        return all_trials(self.store, self.batch)

    def run(self, number: int, log: str) -> None:
        """Start a trial, with this in its log."""
        path = self.home / f"{number}.log"
        path.write_text(log)
        events = Assigned("worker", ("0",), str(path), self.now), Started(self._job(number).attempts + 1, self.now)
        self._record(number, *events)

    def hand_back(self, number: int) -> None:
        """Assign a trial, and take it back before it starts."""
        attempt = self._job(number).attempts + 1
        self._record(number, Assigned("worker", ("0",), str(self.home / f"{number}.log"), self.now))
        self._record(number, Returned(attempt, self.now))

    def report(self, number: int, **values: float) -> None:
        """Write what a trial that runs gave to `stoker.report()`."""
        job = self._job(number)
        given = variables(job, (), {})
        line = {"at": self.now, "attempt": int(given["STOKER_ATTEMPT"]), "values": values}
        path = self.paths.report(job.id)
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            print(json.dumps(line), file=file)

    def end(self, number: int, code: int = 0) -> None:
        """End a trial that runs."""
        self.now += 1
        self._record(number, Exited(self._job(number).attempts, code, 0, self.now))

    def stop(self, number: int) -> None:
        """End a trial as the tuner asked for."""
        self.now += 1
        attempt = self._job(number).attempts
        self._record(number, Cancelled(self.now, "bad", "stopped"), Exited(attempt, 143, 15, self.now, why="stopped"))

    def _job(self, number: int) -> Job:
        job = self.store.job(self.trials()[number].job)
        assert job is not None
        return job

    def _record(self, number: int, *events: Event) -> None:
        job = self._job(number)
        for event in events:
            job = advance(job, event)
        with contextlib.closing(Store(self.paths.database)) as engine:  # another connection, so that a change is seen
            engine.record([Change(job, [(job.attempts, event) for event in events])])


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue of its own."""
    with contextlib.closing(Queue(tmp_path)) as made:
        yield made


def test_trials_are_added_as_others_end(queue: Queue) -> None:
    """At most two at once, four in all; then the sweep is over."""
    tuner = queue.start()
    for number in range(4):
        tuner.turn()
        assert len(queue.trials()) == min(4, number + 2)
        assert not tuner.is_over
        queue.run(number, f"loss={number}")
        queue.end(number)
    tuner.turn()
    assert tuner.is_over
    values = {number: body["values"] for number, body in trial_results(queue.store, queue.batch).items()}
    assert values == {number: {"loss": float(number)} for number in range(4)}


def test_the_summary_follows_the_results(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuner writes its file after some of them, for the first screen."""
    monkeypatch.setattr(summary, "LEAST_SAVED", 3)
    tuner = queue.start()
    path = summary_path(queue.paths, queue.sweep)
    for number in range(3):
        tuner.turn()
        assert not path.exists()
        queue.run(number, f"loss={number}")
        queue.end(number)
    tuner.turn()
    assert path.exists()


def test_a_crash_between_study_and_queue_is_repaired(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The point is in the study; the next process adds its trial, once, with the same parameters."""

    def die(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "add_trial", die)
        with pytest.raises(KeyboardInterrupt):
            queue.start().turn()
    assert queue.trials() == []
    for _ in range(3):
        queue.tuner().turn()
    assert [row.number for row in queue.trials()] == [0, 1]
    study = queue.tuner()._open_study()
    assert [study.unfinished()[row.number] for row in queue.trials()] == [row.params for row in queue.trials()]


def test_a_crash_between_the_end_and_the_study_is_repaired(queue: Queue) -> None:
    """Ends that no process saw are read by the next one: a value, a failure, a stop, a value that never came."""
    queue.start(max_parallel=4).turn()
    for number, log in enumerate(("loss=0.5", "loss=0.7", "loss=0.9\nloss=0.8", "nothing")):
        queue.run(number, log)
    queue.end(0)
    queue.end(1, code=1)
    queue.stop(2)
    queue.end(3)
    tuner = queue.tuner()
    tuner.turn()
    assert tuner.is_over
    states = [trial.state.name for trial in tuner._open_study().trials()]
    assert states == ["COMPLETE", "FAIL", "PRUNED", "FAIL"]
    results = trial_results(queue.store, queue.batch)
    assert [results[number].get("message", "") for number in range(3)] == ["", "exit 1: loss=0.7", "bad"]
    assert "wrote no value of loss" in results[3]["message"]


def test_a_retried_trial_has_a_new_result(queue: Queue) -> None:
    """Only the newest attempt counts; the study keeps the first result."""
    tuner = queue.start(count=2, max_parallel=1)
    tuner.turn()
    for value in (5.0, 4.0):
        queue.run(0, f"loss={value}")
        queue.end(0)
        tuner.turn()
        assert trial_results(queue.store, queue.batch)[0]["values"] == {"loss": value}
        queue._record(0, Retried(queue.now))
    assert tuner._open_study().trials()[0].value == 5.0


def test_a_trial_that_was_handed_back_before_its_start_keeps_its_values(queue: Queue) -> None:
    """Its reports count, also those of the next run after a retry; those of the first run then do not."""
    tuner = queue.start(objectives=("loss:min",), count=1, max_parallel=1)
    tuner.turn()
    queue.hand_back(0)
    queue.hand_back(0)
    for value, seen_while_running in ((0.5, True), (0.25, False)):
        queue.run(0, "")
        queue.report(0, loss=value)
        if seen_while_running:
            tuner.turn()
        queue.end(0)
        tuner.turn()
        result = trial_results(queue.store, queue.batch)[0]
        assert (result["values"], result.get("message", "")) == ({"loss": value}, "")
        queue._record(0, Retried(queue.now))
        queue.hand_back(0)


def test_bad_trials_are_stopped_once(queue: Queue) -> None:
    """By a request to the engine, with the reason."""
    tuner = queue.start(max_parallel=3, pruners=("asha:min=1",))
    tuner.turn()
    queue.run(0, "loss=1\n")
    queue.run(1, "loss=2\n")
    for _ in range(3):
        tuner.turn()
    requests = [request for _, request in queue.store.requests(QUEUE)]
    note = "not among the best 1/3 of 2 trials at step 1"
    assert requests == [Cancel(queue.trials()[1].job, note=note, result="stopped")]


def test_ended_trials_show_where_to_stop_others(queue: Queue) -> None:
    """`auto` learns from trials that ran to their end, and stops nothing before it has enough of them."""
    tuner = queue.start(count=6, max_parallel=6, pruners=("auto:startup=4",))
    tuner.turn()
    for number in range(4):
        queue.run(number, "".join(f"loss={number + 1 / step}\n" for step in range(1, 5)))
    queue.run(4, "loss=9\n")
    tuner.turn()
    assert not queue.store.requests(QUEUE), "nothing has ended"
    for number in range(4):
        queue.end(number)
    tuner.turn()
    queue.run(5, "loss=9\n" * 4)
    tuner.turn()
    (cancel,) = [request for _, request in queue.store.requests(QUEUE)]
    assert isinstance(cancel, Cancel)
    assert cancel.job == queue.trials()[5].job
    assert "ranks agree with the end from step 1 on" in cancel.note


def test_repeats_of_a_point_are_one_trial_of_the_study(queue: Queue) -> None:
    """Its value is their mean; parameters are the same."""
    tuner = queue.start(repeat=2, count=1)
    tuner.turn()
    first, second = queue.trials()
    assert first.params["lr"] == second.params["lr"]
    for number, value in enumerate((1.0, 3.0)):
        queue.run(number, f"loss={value}")
        queue.end(number)
        tuner.turn()
    assert [trial.value for trial in tuner._open_study().trials()] == [2.0]
    assert tuner.is_over


def test_a_stopped_sweep_gets_no_further_trials(queue: Queue) -> None:
    """And is over when those that run have ended."""
    tuner = queue.start(max_parallel=1)
    tuner.turn()
    queue.run(0, "loss=1")
    stop_sweep(queue.store, queue.batch, queue.now)
    queue.end(0)
    tuner.turn()
    assert len(queue.trials()) == 1
    assert tuner.is_over


def test_an_engine_that_was_killed_is_started_by_the_worker_of_this_job(queue: Queue) -> None:
    """Which can do so only after this process has ended; it is then started again."""
    tuner = queue.start()
    tuner.turn()
    assert not tuner._engine_was_killed(), "an engine that left by itself comes back with the next submit"
    queue.paths.restart.touch()
    assert not tuner._engine_was_killed()
    queue.now += NO_ENGINE_SECONDS + 1
    assert tuner.run() == TRY_AGAIN


def test_a_log_without_room_does_not_end_the_sweep(tmp_path: Path) -> None:
    """A tuner that cannot even say why it cannot work is started again."""
    (tmp_path / "queue.db").write_bytes(b"not a database" * 100)
    command = [sys.executable, "-m", "stoker.features.sweep.tuner", str(tmp_path)]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            command,
            env={**os.environ, "STOKER_JOB_ID": "1"},
            stdout=full,
            stderr=full,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
    assert str(ended.returncode) in RETRIED_CODES
    assert ended.returncode == TRY_AGAIN


def test_there_is_one_tuner_at_a_time(queue: Queue) -> None:
    """Whatever happened to the last one."""
    with (
        only_tuner(queue.paths, 7),
        pytest.raises(StokerError, match="another process"),
        only_tuner(queue.paths, 7),
    ):
        pass
