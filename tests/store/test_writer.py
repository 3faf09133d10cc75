"""Jobs and changes are written together or not at all."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.errors import StokerError
from stoker.core.job import (
    Assigned,
    Ended,
    Event,
    Exited,
    Job,
    Lost,
    Returned,
    Started,
    Waiting,
    state_word,
)
from stoker.core.learning import kind_of
from stoker.core.ranges import ranges_of
from stoker.core.spec import Command, JobSpec, Member, NewJob, Resources
from stoker.store.schema import JOBS_AT_ONCE, AttemptRow, BatchRecord, FollowUps, SubmitKey
from stoker.store.writer import Store, delete_jobs
from support.store import EVENTS, TRUE, added, after, wanted

ODD = os.fsdecode(b"caf\xe9 \xff")
"""A name that is not UTF-8."""


class TestJobs:
    """Submitting and reading back."""

    def test_round_trip(self, store: Store, path: Path) -> None:
        """A job comes back as it was submitted, with an id, and waits."""
        spec = JobSpec(
            Resources(2, 8 * 2**30, ("GPU-1",), ("GPU-2",)), 5, "/there", "digest", (("LR", "0.1"),), limit=60.0
        )
        submitted = NewJob(Command(("python", "train.py", ""), ""), spec, "a name")
        (job_id,) = store.add_jobs(4, "e1", [submitted], 10.0)
        with closing(Store(path)) as fresh:
            job = wanted(fresh, job_id)
        kind = kind_of(submitted.command, spec)
        assert job == Job(job_id, 4, submitted.command, spec, Waiting(10.0), 10.0, "a name", kind=kind)

    def test_names_that_are_not_utf_8(self, store: Store, path: Path) -> None:
        """Commands, directories, logs and notes may be any bytes; text columns have escapes."""
        spec = JobSpec(cwd=f"/{ODD}", extra_env=(("WHERE", ODD),))
        (job,) = added(store, NewJob(Command((ODD, f"{ODD}\n")), spec, ODD))
        events: list[Event] = [
            Assigned("k1", (), f"/{ODD}", 1.0),
            Started(1, 2.0),
            Exited(1, 126, 0, 3.0, "refused", note=ODD),
        ]
        store.record([after(job, events)])
        batch = store.add_batch(ODD, 1.0)
        with closing(Store(path)) as fresh:
            read = wanted(fresh, job.id)
            assert (read.command, read.spec) == (Command((ODD, f"{ODD}\n")), spec)
            assert read.state == Ended("failed", 3.0, 126, note=ODD)
            assert fresh.events(job.id) == events
            assert [(row.log, row.note) for row in fresh.attempts(job.id)] == [(f"/{ODD}", r"caf\udce9 \udcff")]
        assert read.name == r"caf\udce9 \udcff"
        assert batch == 1

    def test_members_of_a_batch(self, store: Store, tmp_path: Path) -> None:
        """A member knows how users name its batch, also in the store of a cluster's node that it is sent to."""
        new = [NewJob(Command(("true",)), JobSpec(), member=Member(number, "{}")) for number in (0, 1)]
        batch = store.add_batch("test", 1.0)
        ids = store.add_jobs(batch, "queue", new, 1.0)
        store.set_batch_record(batch, BatchRecord("sweep", ids[0], "", None, JobSpec(), b""))
        jobs = [wanted(store, job_id) for job_id in ids]
        assert [job.member for job in jobs] == [Member(number, "{}", ids[0], "sweep") for number in (0, 1)]
        with closing(Store(tmp_path / "node.db")) as node:
            for _ in range(2):  # the second time, it comes in place of the first
                node.import_jobs(jobs, "pilot")
                assert [wanted(node, job_id) for job_id in ids] == jobs
        with pytest.raises(StokerError, match="UNIQUE"):
            store.add_jobs(batch, "queue", new[1:], 2.0)

    def test_environment(self, store: Store) -> None:
        """An environment is stored once, under its digest."""
        variables = {"PATH": "/bin", "ODD": ODD, "LINES": "a\nb=c"}
        digest = store.add_environment(variables)
        assert store.add_environment(dict(reversed(variables.items()))) == digest
        assert store.environment(digest) == variables
        assert store.add_environment({**variables, "PATH": ""}) != digest

    def test_ids_are_never_used_again(self, store: Store, path: Path) -> None:
        """The id of a deleted or rolled back job is not used again."""
        first = added(store, TRUE, TRUE)[-1].id
        with store.writing() as database:
            database.execute("DELETE FROM jobs")
        with closing(Store(path)) as other:
            assert other.last_job() is None
            assert added(other)[0].id == first + 1
            assert other.last_job() == first + 1

    def test_all_or_none(self, store: Store) -> None:
        """If one job of many cannot be written, none is."""
        with pytest.raises(TypeError):
            store.add_jobs(1, "e1", [TRUE, NewJob(Command((None,)), JobSpec())], 1.0)  # type: ignore[arg-type]
        assert store.last_job() is None

    def test_spec_of_a_failed_submit(self, store: Store, path: Path) -> None:
        """A spec that was rolled back is written again with the next job."""
        here = NewJob(Command(("true",)), JobSpec(cwd="/here"))
        with pytest.raises(TypeError):
            store.add_jobs(1, "e1", [here, NewJob(Command((None,)), JobSpec())], 1.0)  # type: ignore[arg-type]
        with closing(Store(path)) as other:
            added(other, NewJob(Command(("true",)), JobSpec(cwd="/elsewhere")))
            (job,) = added(store, here)
            assert wanted(other, job.id).spec.cwd == "/here"

    def test_many_at_once(self, store: Store) -> None:
        """Many more jobs than one statement inserts are submitted in one call."""
        count = 20 * JOBS_AT_ONCE + 1
        jobs = [NewJob(Command((f"python train.py --seed {seed}",), "/bin/sh"), JobSpec()) for seed in range(count)]
        ids = store.add_jobs(1, "e1", jobs, 1.0)
        assert len(ids) == count
        assert wanted(store, ids[-1]).command == jobs[-1].command

    def test_several_arrays_at_once(self, store: Store) -> None:
        """Tasks get the id of the first task of their array, also in a later call."""
        arrays: dict[int, int] = {}
        first = [NewJob(TRUE.command, TRUE.spec, "", task, array) for array in (1, 2) for task in (0, 1)]
        ids = [*store.add_jobs(1, "e1", [TRUE, *first], 1.0, arrays=arrays)]
        ids += store.add_jobs(1, "e1", [NewJob(TRUE.command, TRUE.spec, "", 2, 2)], 1.0, arrays=arrays)
        assert [wanted(store, job_id).array for job_id in ids] == [0, 2, 2, 4, 4, 4]

    def test_missing(self, store: Store) -> None:
        """A job that does not exist is None."""
        assert store.job(1) is None


class TestRecord:
    """Changes by the engine."""

    def test_story(self, store: Store) -> None:
        """Job, attempt and events are written together."""
        (job,) = added(store)
        change = after(job, EVENTS)
        store.record([change])
        assert store.job(job.id) == change.job
        assert store.events(job.id) == EVENTS
        row = AttemptRow(job.id, 1, "k1", ("GPU-1",), "/logs/1", "", 1.0, 2.0, 4.0, 3, 0, "exited", 4096, "a note")
        assert store.attempts(job.id) == [row]

    @pytest.mark.parametrize(
        ("events", "why"),
        [
            ([Returned(1, 2.0)], "returned"),
            ([Started(1, 2.0), Lost(1, 3.0)], "lost"),
        ],
    )
    def test_other_ends(self, store: Store, events: list[Event], why: str) -> None:
        """An attempt without an exit code says why it has none."""
        (job,) = added(store)
        store.record([after(job, [EVENTS[0], *events])])
        (row,) = store.attempts(job.id)
        assert (row.why, row.code, row.ended) == (why, None, None)

    def test_retries(self, store: Store) -> None:
        """Every attempt has a row, oldest first."""
        (job,) = added(store, NewJob(Command(("false",)), JobSpec(retries=1)))
        second: list[Event] = [Assigned("k2", (), "/logs/1.1", 5.0), Started(2, 6.0), Exited(2, 0, 0, 7.0)]
        store.record([after(job, [*EVENTS, *second])])
        assert [(row.number, row.ref, row.code) for row in store.attempts(job.id)] == [(1, "k1", 3), (2, "k2", 0)]
        assert state_word(wanted(store, job.id)) == "done"

    def test_all_or_none(self, store: Store) -> None:
        """A failed change rolls back all others of the same call."""
        one, other = added(store, TRUE, TRUE)
        store.record([after(other, EVENTS)])
        with pytest.raises(StokerError, match="UNIQUE"):
            store.record([after(one, EVENTS), after(other, EVENTS)])
        assert store.job(one.id) == one
        assert store.events(one.id) == []
        assert store.attempts(one.id) == []

    def test_follow_up_jobs(self, store: Store) -> None:
        """Follow-up jobs are written with the end that causes them, or not at all."""
        one, other = added(store, TRUE, TRUE)
        store.record([after(one, EVENTS)], follow_ups=FollowUps("e2", [TRUE], 5.0))
        (follow_up,) = store.open_jobs("e2", 0, 10)
        assert (follow_up.submitted, follow_up.command) == (5.0, TRUE.command)
        with pytest.raises(StokerError, match="UNIQUE"):
            store.record([after(one, EVENTS), after(other, EVENTS)], follow_ups=FollowUps("e2", [TRUE], 5.0))
        assert len(store.open_jobs("e2", 0, 10)) == 1


def test_a_key_is_forgotten_with_its_job(store: Store) -> None:
    """Until then it is unique."""
    (job,) = added(store)
    submitted = SubmitKey("digest", [(job.id, 1, "")])
    store.add_key("k", submitted)
    assert store.submit_key("k") == submitted
    with pytest.raises(StokerError):
        store.add_key("k", submitted)
    store.record([after(job, EVENTS)])
    with store.writing() as connection:
        delete_jobs(connection, ranges_of([job.id]))
    assert store.submit_key("k") is None
