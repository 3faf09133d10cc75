"""What the engine reads: open and active jobs, owners, content."""

from __future__ import annotations

import pytest
from msgspec import structs

from stoker.core.job import (
    Assigned,
    Cancelled,
    Event,
    Exited,
    Job,
    Started,
)
from stoker.core.spec import Command, JobSpec, Resources, WorkKey, content_of, tasks_of, work_of
from stoker.store.schema import Adoption
from stoker.store.writer import Store
from support.store import EVENTS, TRUE, added, after


class TestOpenJobs:
    """Open jobs and their owners."""

    def test_pages(self, store: Store) -> None:
        """Open jobs of an engine come by id, page by page."""
        jobs = added(store, *[TRUE] * 5)
        added(store, engine="e2")
        store.record([after(jobs[1], [Cancelled(11.0)]), after(jobs[3], EVENTS[:2])])
        assert [job.id for job in store.open_jobs("e1", 0, 2)] == [jobs[0].id, jobs[2].id]
        assert [job.id for job in store.open_jobs("e1", jobs[2].id, 9)] == [jobs[3].id, jobs[4].id]

    def test_owners(self, store: Store) -> None:
        """Only engines with open jobs are listed; a job can be given to another engine."""
        (one,), (other,) = added(store, engine="e1"), added(store, engine="e2")
        store.record([after(other, [Cancelled(11.0)])])
        assert store.engines_with_open_jobs() == ["e1"]
        assert store.adopt([Adoption(one.id, "e1")], "e3") == {one.id}
        assert store.engines_with_open_jobs() == ["e3"]
        assert [job.id for job in store.open_jobs("e3", 0, 9)] == [one.id]

    def test_only_one_takes_over(self, store: Store) -> None:
        """Of two engines that take over the same job, the second gets nothing."""
        (one,) = added(store, engine="dead")
        assert store.adopt([Adoption(one.id, "dead")], "first") == {one.id}
        assert store.adopt([Adoption(one.id, "dead")], "second") == set()
        assert [job.id for job in store.open_jobs("first", 0, 9)] == [one.id]

    def test_a_job_taken_over_gets_a_new_spec(self, store: Store) -> None:
        """Batch and spec are replaced where the new owner gives them."""
        (one,) = added(store, engine="dead")
        spec = structs.replace(one.spec, out="-")
        store.adopt([Adoption(one.id, "dead", 7, spec)], "heir")
        taken = store.job(one.id)
        assert taken is not None
        assert (taken.batch, taken.spec) == (7, spec)


class TestActiveJobs:
    """Jobs that workers hold."""

    def held(self, store: Store, engine: str) -> list[Job]:
        """One job in each active state, one that waits and one that has ended."""
        starting, running, stopping, _, ended = added(store, *[TRUE] * 5, engine=engine)
        begun: list[Event] = [Assigned(f"{engine}-2", (), "", 1.0), Started(1, 2.0)]
        changes = [
            after(starting, [Assigned(f"{engine}-1", (), "", 1.0)]),
            after(running, begun),
            after(stopping, [*begun, Cancelled(3.0)]),
            after(ended, [*begun, Exited(1, 0, 0, 3.0)]),
        ]
        store.record(changes)
        return [change.job for change in changes[:3]]

    def test_jobs(self, store: Store) -> None:
        """Active jobs are starting, running or stopping."""
        held = self.held(store, "e1")
        self.held(store, "e2")
        assert store.active_jobs("e1") == held
        assert store.active_jobs("e3") == []

    def test_owners(self, store: Store) -> None:
        """An engine without active jobs is not listed."""
        self.held(store, "e1")
        (job,) = added(store, engine="e2")
        added(store, engine="e3")
        store.record([after(job, EVENTS)])
        assert store.engines_with_active_jobs() == ["e1"]

    def test_slots(self, store: Store) -> None:
        """The slots of active jobs are returned."""
        self.held(store, "e1")
        assert store.slots() == {"e1-1", "e1-2"}

    def test_waiting_jobs_cost_nothing(self, store: Store) -> None:
        """Queries of active jobs use the index of active jobs."""
        self.held(store, "e1")
        asked: list[str] = []
        with store.writing() as database:
            database.set_trace_callback(asked.append)
        store.active_jobs("e1")
        store.engines_with_active_jobs()
        store.slots()
        database.set_trace_callback(None)
        questions = [statement for statement in asked if "FROM jobs" in statement]
        plans = [database.execute(f"EXPLAIN QUERY PLAN {question}").fetchall() for question in questions]
        assert len(plans) == 3
        for plan in plans:
            assert ["INDEX jobs_active" in step for *_, step in plan] == [True]


class TestContent:
    """What makes two jobs the same work."""

    COMMAND = Command(("python", "train.py"))
    SPEC = JobSpec(cwd="/here", extra_env=(("LR", "1"), ("BS", "2")))

    @pytest.mark.parametrize(
        "spec",
        [
            structs.replace(SPEC, resources=Resources(4)),
            structs.replace(SPEC, priority=9, retries=3, requeue=False),
            structs.replace(SPEC, limit=1.0, grace=1.0, umask=0),
            structs.replace(SPEC, out="a", err="b", environment="other"),
            structs.replace(SPEC, extra_env=(("BS", "2"), ("LR", "1"))),
        ],
    )
    def test_the_same(self, spec: JobSpec) -> None:
        """Resources, limits, logs, the environment and the order of variables make no difference."""
        assert content_of(self.COMMAND, spec) == content_of(self.COMMAND, self.SPEC)

    @pytest.mark.parametrize(
        ("command", "spec"),
        [
            (Command(("python", "train.py", "")), SPEC),
            (Command(("python train.py",)), SPEC),
            (Command(("python train.py",), "/bin/sh"), SPEC),
            (COMMAND, structs.replace(SPEC, cwd="/there")),
            (COMMAND, structs.replace(SPEC, extra_env=(("LR", "1"), ("BS", "3")))),
            (COMMAND, structs.replace(SPEC, extra_env=(("LR", "1"),))),
            (Command(("python", "train.py", "BS=2")), structs.replace(SPEC, extra_env=(("LR", "1"),))),
        ],
    )
    def test_not_the_same(self, command: Command, spec: JobSpec) -> None:
        """Every word, the directory and each variable given to the job make a difference."""
        assert content_of(command, spec) != content_of(self.COMMAND, self.SPEC)

    def test_times_done(self, store: Store) -> None:
        """Only successful jobs count."""
        one, other, third = added(store, TRUE, TRUE, TRUE)
        succeeded = [*EVENTS[:2], Exited(1, 0, 0, 3.0)]
        store.record([after(one, succeeded), after(other, succeeded), after(third, EVENTS)])
        assert store.times_done(work_of(TRUE)) == 2
        assert store.times_done(WorkKey(content_of(self.COMMAND, self.SPEC), None)) == 0
        assert store.times_done(work_of(structs.replace(TRUE, task=3))) == 0

    def test_times_open(self, store: Store) -> None:
        """A task of an array is found by its index, whether it has a row of its own or not."""
        first, second = tasks_of(TRUE, [0, 2, 4, 6, 9])
        assert (first.count, second.count) == (4, 1)
        store.add_jobs(store.add_batch("test", 1.0), "queue", [first, second], 1.0, array=True)
        open_tasks = [task for task in range(12) if store.times_open(structs.replace(TRUE, task=task), "run")]
        assert open_tasks == [0, 2, 4, 6, 9]
        assert store.times_open(structs.replace(TRUE, task=2), "queue") == 0
        assert store.times_open(TRUE, "run") == 0


def test_a_setting_that_cannot_be_read_stays_in_force(store: Store) -> None:
    """A pause or drain is not lifted because its note is damaged; other settings are not affected."""
    store.put_setting("paused:queue", {"note": "paused by you", "at": 1.0})
    with store.writing() as connection:
        for key, body in (("drained:0", "{"), ("drained:1", "[1]"), ("drained:2", '{"note": 3}'), ("drained:3", "")):
            connection.execute("INSERT INTO settings VALUES (?, ?)", (key, body))
    settings = store.settings()
    assert settings["paused:queue"]["note"] == "paused by you"
    assert all("unreadable" in settings[f"drained:{number}"]["note"] for number in range(4))
