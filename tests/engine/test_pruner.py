"""Forgetting jobs that ended long ago, and nothing that somebody still needs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path

import pytest

import stoker.engine.pruner as pruner_module
from stoker.core.job import Assigned, Cancelled, Event, Exited, Job, Retried, Started, advance
from stoker.core.spec import Command, Dependency, JobSpec, NewJob
from stoker.engine.pruner import INTERVAL, PAUSE, STEP, Pruner
from stoker.store.engine_lock import QUEUE, EngineLock
from stoker.store.paths import UNFINISHED, Paths
from stoker.store.schema import BatchRecord, Change
from stoker.store.writer import Store

DAY = 86_400.0
NOW = 1_000 * DAY
KEEP = 90 * DAY


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A state directory with a place for logs."""
    (tmp_path / "logs/7").mkdir(parents=True)
    (tmp_path / "engines").mkdir()
    return Paths(tmp_path)


@pytest.fixture
def store(paths: Paths) -> Iterator[Store]:
    """A queue."""
    with contextlib.closing(Store(paths.database)) as made:
        yield made


def add(store: Store, count: int = 1, *, array: bool = False, **spec: object) -> list[Job]:
    """Jobs in a batch of their own, submitted long ago."""
    digest = store.add_environment({"NAME": str(spec)})
    shared = JobSpec(environment=digest, **spec)  # type: ignore[arg-type]
    jobs = [NewJob(Command(("true",), ""), shared, "", task if array else None) for task in range(count)]
    ids = store.add_jobs(store.add_batch("old", NOW - 400 * DAY), QUEUE, jobs, NOW - 400 * DAY, array=array)
    found = [store.job(job_id) for job_id in ids]
    return [job for job in found if job is not None]


def end(store: Store, job: Job, at: float, code: int = 0, log: str = "/nowhere/1.log") -> None:
    """Let a job run and end."""
    events: list[Event] = [Assigned("worker", ("0",), log, at - 2), Started(1, at - 1), Exited(1, code, 0, at)]
    for event in events:
        job = advance(job, event)
    store.record([Change(job, [(1, event) for event in events])])


def end_all(store: Store, jobs: Sequence[Job], apart: float = 0.0) -> None:
    """Let jobs run and end long ago, so many seconds apart."""
    changes = []
    for number, job in enumerate(jobs):
        at = NOW - 100 * DAY + number * apart
        log = f"/nowhere/{job.id}.log"
        events: list[Event] = [Assigned("worker", ("0",), log, at - 2), Started(1, at - 1), Exited(1, 0, 0, at)]
        changes.append(Change(reduce(advance, events, job), [(1, event) for event in events]))
    store.record(changes)


def retry(store: Store, job: Job) -> None:
    """Let an ended job wait again."""
    ended = store.job(job.id)
    assert ended is not None
    event = Retried(NOW)
    store.record([Change(advance(ended, event), [(1, event)])])


def prune(paths: Paths, store: Store, keep: float | None = KEEP, now: float = NOW) -> int:
    """One whole round; how many jobs it forgot."""
    pruner = Pruner(paths, store, "me", keep)
    pruned = pruner.step(now)
    for _ in range(10_000):
        if not pruner.busy:
            return pruned
        now += PAUSE
        pruned = pruner.step(now)
    raise AssertionError("it never comes to an end")


def count(store: Store, table: str) -> int:
    """Rows of a table."""
    with store.writing() as database:
        (number,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(number)


def test_old_jobs_go_with_all_that_is_known_of_them(paths: Paths, store: Store) -> None:
    """Young ones and those that are not over stay; nothing is left of the others."""
    old, young, waiting = add(store), add(store), add(store)
    end(store, old[0], NOW - 91 * DAY)
    end(store, young[0], NOW - 89 * DAY)
    assert prune(paths, store) == 1
    assert [store.job(job.id) is not None for job in (*old, *young, *waiting)] == [False, True, True]
    assert store.attempts(old[0].id) == []
    assert store.events(old[0].id) == []
    assert len(store.attempts(young[0].id)) == 1


def test_ids_are_never_used_again(paths: Paths, store: Store) -> None:
    """Not even when the newest job was forgotten."""
    (old,) = add(store)
    end(store, old, NOW - 91 * DAY)
    assert prune(paths, store) == 1
    assert add(store)[0].id == old.id + 1


def test_what_no_job_has_any_more_goes_too(paths: Paths, store: Store) -> None:
    """Terms, environments and batches; those in use stay."""
    (old,), _ = add(store, priority=1), add(store, priority=2)
    end(store, old, NOW - 91 * DAY)
    prune(paths, store)
    assert [count(store, table) for table in ("batches", "specs", "environments")] == [1, 1, 1]
    again = add(store, priority=1)[0]
    assert again.spec.priority == 1


def test_a_run_in_the_foreground_keeps_what_no_job_has_yet(paths: Paths, store: Store) -> None:
    """It may have left its environment, and its first job comes later."""
    (old,) = add(store)
    end(store, old, NOW - 91 * DAY)
    with contextlib.closing(EngineLock(paths)):
        assert prune(paths, store) == 1
        assert count(store, "environments") == 1
        assert count(store, "specs") == 1


def test_what_others_depend_on_stays(paths: Paths, store: Store) -> None:
    """What became of it decides about them."""
    failed, unneeded = add(store)[0], add(store)[0]
    add(store, after=(Dependency(failed.id, "notok"),))
    for job in (failed, unneeded):
        end(store, job, NOW - 100 * DAY, code=1)
    assert prune(paths, store) == 1
    assert store.job(failed.id) is not None
    assert store.outcome(Dependency(failed.id, "notok")) == "notok"


def test_an_array_goes_as_a_whole(paths: Paths, store: Store) -> None:
    """While one task is young or not over, all tasks stay; so `stoker retry 12` means what it meant."""
    half, young, old = (add(store, 3, array=True) for _ in range(3))
    for job in (*half[:2], *young[:2], *old):
        end(store, job, NOW - 100 * DAY)
    end(store, young[2], NOW - DAY)
    assert prune(paths, store) == 3
    assert all(store.job(job.id) is not None for job in (*half, *young))


def test_logs_in_our_own_directory_go_and_no_others(paths: Paths, store: Store, tmp_path: Path) -> None:
    """A file that the user named is the user's; so is one that only looks as if it were ours."""
    ours, task, theirs = paths.logs / "1.log", paths.logs / "7/0.log", tmp_path / "mine.log"
    crooked = f"{paths.logs}/../mine.log"
    for path in (ours, task, theirs):
        path.touch()
    for job, log in zip(add(store, 4), (str(ours), str(task), str(theirs), crooked), strict=True):
        end(store, job, NOW - 100 * DAY, log=log)
    assert prune(paths, store) == 4
    assert not ours.exists()
    assert not task.parent.exists()
    assert theirs.exists()


def test_many_go_a_few_at_a_time(paths: Paths, store: Store) -> None:
    """Each transaction is small, and between two of them others have a turn."""
    end_all(store, add(store, STEP))
    pruner = Pruner(paths, store, "me", KEEP)
    steps = [(pruner.step(NOW + number * PAUSE / 2), count(store, "jobs")) for number in range(40)]
    left = [jobs for _, jobs in steps]
    assert sorted(set(left), reverse=True) == [STEP, STEP // 2, 0]
    assert left[::2] == left[1::2]
    assert [removed for removed, _ in steps if removed] == [STEP]


def test_lines_that_share_a_row_go_a_few_at_a_time(paths: Paths, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last ones first; of a row with a line that another job waits for, none goes."""
    monkeypatch.setattr(pruner_module, "LINES", 30)
    lines = [NewJob(Command((f"train --seed {seed}",), "/bin/sh"), JobSpec()) for seed in range(100)]
    for _ in range(2):
        ids = store.add_jobs(store.add_batch("old", NOW - 400 * DAY), QUEUE, lines, NOW - 400 * DAY, lines=True)
        jobs = store.open_jobs(QUEUE, ids[0] - 1, 1)
        cancelled = Cancelled(NOW - 100 * DAY)
        store.record([Change(advance(jobs[0], cancelled), [(0, cancelled)])])
    add(store, after=(Dependency(150, "any"),))
    pruner, now, left = Pruner(paths, store, "me", KEEP), NOW, list[int]()
    while not left or pruner.busy:
        pruner.step(now)
        now += PAUSE
        left.append(count(store, "lines"))
    assert sorted(set(left), reverse=True) == [200, 170, 140, 110, 100]
    assert [store.job(job_id) is not None for job_id in (1, 100, 101, 200)] == [False, False, True, True]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps so small that a few jobs take many."""
    monkeypatch.setattr(pruner_module, "STEP", 20)
    monkeypatch.setattr(pruner_module, "READ", 20)


def work_of_steps(paths: Paths, store: Store) -> list[int]:
    """How many hundred instructions SQLite executes in each step of a round."""
    pruner, now, work = Pruner(paths, store, "me", KEEP), NOW, list[int]()

    def more() -> int:
        work[-1] += 1
        return 0

    with store.writing() as connection:
        connection.set_progress_handler(more, 100)
    while not work or pruner.busy:
        work.append(0)
        pruner.step(now)
        now += PAUSE
    connection.set_progress_handler(None, 0)
    return work


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("kind", ["an array", "an array with a young task", "single jobs", "single jobs of one moment"])
def test_no_step_grows_with_the_history(tmp_path: Path, kind: str) -> None:
    """With twice as many ended jobs there are more steps, and none has more to do."""
    most, steps = [], []
    for number in (400, 800):
        paths = Paths(tmp_path / str(number))
        (paths.state / "engines").mkdir(parents=True)
        with contextlib.closing(Store(paths.database, durable=False)) as store:
            if kind.startswith("an array"):
                jobs = add(store, number, array=True)
            else:
                jobs = [job for priority in range(number) for job in add(store, priority=priority)]
            end_all(store, jobs, apart=0.0 if "moment" in kind else 1.0)
            if "young" in kind:
                retry(store, jobs[-1])
            add(store, after=tuple(Dependency(job.id, "ok") for job in jobs[:3] if "array" not in kind))
            work = work_of_steps(paths, store)
            assert count(store, "jobs") == {"an array": 1, "an array with a young task": number + 1}.get(kind, 4)
            most.append(max(work))
            steps.append(len(work))
    assert most[1] <= 1.2 * most[0]
    assert steps[1] > 1.5 * steps[0]


@pytest.mark.usefixtures("small_steps")
def test_after_a_crash_the_next_round_goes_on(paths: Paths, store: Store) -> None:
    """An array loses its last tasks first, so those that are left are complete and have its name."""
    tasks = add(store, 50, array=True)
    end_all(store, tasks)
    pruner, now = Pruner(paths, store, "me", KEEP), NOW
    while count(store, "jobs") == len(tasks):
        pruner.step(now)
        now += PAUSE
    left = [job for job in tasks if store.job(job.id)]
    assert left == tasks[: len(left)]
    assert 0 < len(left) < len(tasks)
    assert [len(store.events(job.id)) for job in left] == [3] * len(left)
    assert prune(paths, store) == len(left)
    assert [count(store, table) for table in ("jobs", "attempts", "events", "batches", "specs")] == [0] * 5


@pytest.mark.usefixtures("small_steps")
def test_the_rest_of_an_array_stays_once_a_task_is_retried(paths: Paths, store: Store) -> None:
    """Also if the array is being removed at this moment."""
    tasks = add(store, 50, array=True)
    end_all(store, tasks)
    pruner, now = Pruner(paths, store, "me", KEEP), NOW
    while count(store, "jobs") == len(tasks):
        pruner.step(now)
        now += PAUSE
    left = count(store, "jobs")
    retry(store, tasks[0])
    while pruner.busy:
        pruner.step(now)
        now += PAUSE
    assert count(store, "jobs") == left


@pytest.mark.usefixtures("small_steps")
def test_a_job_that_comes_during_a_round_keeps_what_it_depends_on(paths: Paths, store: Store) -> None:
    """It was not there when the round looked for such jobs."""
    jobs = add(store, 50)
    end_all(store, jobs)
    pruner, now = Pruner(paths, store, "me", KEEP), NOW
    while count(store, "jobs") == len(jobs):
        pruner.step(now)
        now += PAUSE
    add(store, after=(Dependency(jobs[-1].id, "ok"),))
    while pruner.busy:
        pruner.step(now)
        now += PAUSE
    assert store.job(jobs[-1].id) is not None
    assert count(store, "jobs") == 2


def test_an_array_stays_whole_while_a_job_depends_on_one_task(paths: Paths, store: Store) -> None:
    """The others go with it, later."""
    tasks = add(store, 3, array=True)
    end_all(store, tasks)
    add(store, after=(Dependency(tasks[1].id, "ok"),))
    assert prune(paths, store) == 0


def test_tasks_that_share_a_row_go_at_once(paths: Paths, store: Store) -> None:
    """They never started, and were cancelled together."""
    tasks = NewJob(Command(("true",)), JobSpec(), "", 0, count=9)
    ids = store.add_jobs(store.add_batch("old", 1.0), QUEUE, [tasks], 1.0, array=True)
    (job,) = store.open_jobs(QUEUE, 0, 9)
    cancelled = Cancelled(NOW - 100 * DAY)
    store.record([Change(advance(job, cancelled), [(0, cancelled)])])
    assert prune(paths, store) == len(ids)
    assert count(store, "events") == 0


def test_a_round_comes_once_a_day(paths: Paths, store: Store) -> None:
    """What has become old meanwhile goes with the next one."""
    (job,) = add(store)
    end(store, job, NOW - KEEP + 1)
    pruner = Pruner(paths, store, "me", KEEP)
    minutes = int(INTERVAL / 60) + 60
    removed = [pruner.step(NOW + 60 * minute) for minute in range(minutes)]
    assert sum(removed[: minutes - 60]) == 0
    assert sum(removed) == 1


def test_nothing_goes_where_all_is_kept(paths: Paths, store: Store) -> None:
    """`keep = "forever"`."""
    (job,) = add(store)
    end(store, job, 1.0)
    assert prune(paths, store, keep=None) == 0
    assert store.job(job.id) is not None


def test_a_log_that_is_gone_is_no_error(paths: Paths, store: Store) -> None:
    """Somebody tidied up by hand."""
    (job,) = add(store)
    end(store, job, NOW - 100 * DAY, log=os.fspath(paths.logs / "gone.log"))
    assert prune(paths, store) == 1


def test_what_jobs_told_and_returned_goes_with_them(paths: Paths, store: Store) -> None:
    """The folders of functions and the reports of pruned jobs go; those of others, and of a fresh submit, stay."""
    old, young = add(store, 2, array=True), add(store)
    for job in old:
        end(store, job, NOW - 91 * DAY)
    end(store, young[0], NOW - 1)
    paths.reports.mkdir()
    for job in (old[0], young[0]):
        paths.function(job.id).mkdir(parents=True)
        (paths.function(job.id) / "0.result").touch()
        paths.report(job.id).touch()
    fresh, forgotten = paths.functions / f"{UNFINISHED}1", paths.functions / f"{UNFINISHED}2"
    for folder, age in ((fresh, 1), (forgotten, 2 * DAY)):
        folder.mkdir()
        os.utime(folder, (NOW - age, NOW - age))
    assert prune(paths, store) == 2
    assert sorted(os.listdir(paths.functions)) == sorted([fresh.name, str(young[0].id)])
    assert os.listdir(paths.reports) == [f"{young[0].id}.jsonl"]


def test_copies_of_scripts_go_with_the_last_job_that_runs_them(paths: Paths, store: Store) -> None:
    """A copy stays while a job refers to it, also behind a shell, and while a run is under way."""
    digests = [letter * 32 for letter in "abcd"]
    for digest in digests:
        paths.script(digest, "job.sh").parent.mkdir(parents=True)
        paths.script(digest, "job.sh").touch(0o500)
    old, young, shell = (str(paths.script(digest, "job.sh")) for digest in digests[:3])
    jobs = [NewJob(Command(words), JobSpec()) for words in ((old,), (young, "a"), ("sh", shell))]
    ids = store.add_jobs(store.add_batch("old", NOW - 400 * DAY), QUEUE, jobs, NOW - 400 * DAY)
    first = store.job(ids[0])
    assert first is not None
    end(store, first, NOW - 91 * DAY)
    with contextlib.closing(EngineLock(paths, "run")):
        prune(paths, store)
        assert sorted(os.listdir(paths.scripts)) == digests
    prune(paths, store)
    assert sorted(os.listdir(paths.scripts)) == digests[1:3]


def test_folders_of_forgotten_batches_are_removed(paths: Paths, store: Store) -> None:
    """Those of batches that are in the queue stay."""
    (job,) = add(store)
    store.set_batch_record(job.batch, BatchRecord("test", job.id, "", None, job.spec, b""))
    for first_job in (job.id, 77):
        paths.batch(first_job).mkdir(parents=True)
        (paths.batch(first_job) / "file").touch()
    prune(paths, store)
    assert [str(path.relative_to(paths.batches)) for path in paths.batches.rglob("*")] == [
        f"{job.id}",
        f"{job.id}/file",
    ]
