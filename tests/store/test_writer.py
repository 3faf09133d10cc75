"""Writes to the queue are atomic and durable."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from stoker.core.errors import StokerError
from stoker.core.job import (
    Assigned,
    Cancelled,
    Ended,
    Event,
    Exited,
    Job,
    Lost,
    Returned,
    Started,
    Waiting,
    advance,
    state_word,
)
from stoker.core.learning import kind_of
from stoker.core.spec import Command, JobSpec, NewJob, Resources, content_of
from stoker.store.schema import VERSION, AttemptRow, Change, FollowUps, TakeOver
from stoker.store.writer import Store
from support.disk import fill, small_disk
from support.local import engine_process
from support.users import next_line
from support.wait import PATIENCE_SECONDS, wait_until

TRUE = NewJob(Command(("true",)), JobSpec())
ODD = os.fsdecode(b"caf\xe9 \xff")
"""A name that is no UTF-8."""
EVENTS: list[Event] = [
    Assigned("k1", ("GPU-1",), "/logs/1", 1.0),
    Started(1, 2.0),
    Exited(1, 3, 0, 4.0, peak_memory=4096, note="a note"),
]

WRITER = """
import sys, time
from pathlib import Path
from stoker.core.spec import Command, JobSpec
from stoker.core.spec import NewJob
from stoker.store.writer import Store
store = Store(Path(sys.argv[1]))
job = NewJob(Command(("true",)), JobSpec())
print("ready", flush=True)
sys.stdin.readline()
for _ in range(100):
    store.add_jobs(1, sys.argv[2], [job], time.time())
store.close()
"""

HOLDER = """
import sys
from pathlib import Path
from stoker.store.writer import Store
with Store(Path(sys.argv[1])).writing():
    print("inside", flush=True)
    sys.stdin.readline()
print("outside", flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with closing(Store(path)) as opened:
        yield opened


def added(store: Store, *jobs: NewJob, engine: str = "e1") -> list[Job]:
    """The jobs as read back after submission."""
    return [wanted(store, job_id) for job_id in store.add_jobs(1, engine, jobs or (TRUE,), 10.0)]


def wanted(store: Store, job_id: int) -> Job:
    """A job that must exist."""
    job = store.job(job_id)
    assert job
    return job


def is_locked(path: Path) -> bool:
    """Whether another process holds the file's lock."""
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def after(job: Job, events: list[Event]) -> Change:
    """A change of a job, as the engine records it."""
    numbered = []
    for event in events:
        job = advance(job, event)
        numbered.append((job.attempts, event))
    return Change(job, numbered)


class TestFile:
    """The file itself."""

    def test_modes(self, store: Store, path: Path) -> None:
        """Other users cannot read the queue or SQLite's files beside it."""
        added(store)
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        assert modes == dict.fromkeys(["queue.db", "queue.db-wal", "queue.db-shm", "queue.lock", "queue.next"], 0o600)

    def test_schema(self, store: Store, path: Path) -> None:
        """The file has the schema version, and all tables are strict."""
        with closing(sqlite3.connect(path)) as database:
            assert database.execute("PRAGMA user_version").fetchone() == (VERSION,)
            assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            tables = database.execute("SELECT strict FROM pragma_table_list WHERE name NOT LIKE 'sqlite%'").fetchall()
        assert len(tables) == 10
        assert set(tables) == {(1,)}

    def test_commits_reach_the_disk(self, store: Store) -> None:
        """Every commit waits for the disk."""
        with store.writing() as database:
            assert database.execute("PRAGMA synchronous").fetchone() == (2,)

    def test_opened_again(self, store: Store, path: Path) -> None:
        """Another process finds what was written, while the first has the file open."""
        (job,) = added(store)
        with closing(Store(path)) as other:
            assert other.job(job.id) == job

    def test_newer_schema(self, path: Path) -> None:
        """A queue of a newer version is refused with a hint, and no byte changes."""
        with closing(sqlite3.connect(path)) as database:
            database.executescript(f"CREATE TABLE future (x); PRAGMA user_version = {VERSION + 1}")
        before = path.read_bytes()
        with pytest.raises(StokerError, match="newer Stoker") as caught:
            Store(path)
        assert "upgrade" in caught.value.hint
        assert path.read_bytes() == before

    @pytest.mark.parametrize("damage", [lambda _: b"not a database" * 1000, lambda good: b"\xff" * 50 + good[50:]])
    def test_damaged_file(self, path: Path, damage: Callable[[bytes], bytes]) -> None:
        """An unreadable file is refused with a hint, and no byte changes."""
        Store(path).close()
        path.write_bytes(damage(path.read_bytes()))
        before = path.read_bytes()
        with pytest.raises(StokerError, match="not a queue") as caught:
            Store(path)
        assert "aside together" in caught.value.hint
        assert path.read_bytes() == before

    def test_directory_in_its_place(self, path: Path) -> None:
        """A file that cannot be opened gives a readable error, and nothing stays open."""
        path.mkdir()
        before = os.listdir("/proc/self/fd")
        with pytest.raises(StokerError, match="unable to open"):
            Store(path)
        assert os.listdir("/proc/self/fd") == before


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
        """A hundred thousand jobs are submitted in one call."""
        jobs = [NewJob(Command((f"python train.py --seed {seed}",), "/bin/sh"), JobSpec()) for seed in range(100_000)]
        ids = store.add_jobs(1, "e1", jobs, 1.0)
        assert len(ids) == 100_000
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
        assert store.take_over([TakeOver(one.id, "e1")], "e3") == {one.id}
        assert store.engines_with_open_jobs() == ["e3"]
        assert [job.id for job in store.open_jobs("e3", 0, 9)] == [one.id]

    def test_only_one_takes_over(self, store: Store) -> None:
        """Of two engines that take over the same job, the second gets nothing."""
        (one,) = added(store, engine="dead")
        assert store.take_over([TakeOver(one.id, "dead")], "first") == {one.id}
        assert store.take_over([TakeOver(one.id, "dead")], "second") == set()
        assert [job.id for job in store.open_jobs("first", 0, 9)] == [one.id]

    def test_a_job_taken_over_gets_a_new_spec(self, store: Store) -> None:
        """Batch and spec are replaced where the new owner gives them."""
        (one,) = added(store, engine="dead")
        spec = structs.replace(one.spec, out="-")
        store.take_over([TakeOver(one.id, "dead", 7, spec)], "heir")
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
        assert store.times_done(content_of(TRUE.command, TRUE.spec)) == 2
        assert store.times_done(content_of(self.COMMAND, self.SPEC)) == 0


class TestTroubles:
    """Full disks and concurrent writers."""

    def test_full_disk(self, tmp_path: Path) -> None:
        """On a full disk nothing is written, the error says so, and writing works again after space is freed."""
        with small_disk(tmp_path / "disk", "size=1m") as disk, closing(Store(disk / "queue.db")) as store:
            (job,) = added(store)
            ballast = fill(disk)
            large = NewJob(Command(("x" * 100_000,)), JobSpec(cwd="/new"))
            with pytest.raises(StokerError, match="disk is full") as caught:
                store.add_jobs(1, "e1", [large] * 3, 1.0)
            assert "free some space" in caught.value.hint
            assert store.last_job() == job.id
            ballast.unlink()
            (next_job,) = added(store, large)
            assert (next_job.id, next_job.spec.cwd) == (job.id + 1, "/new")

    def test_no_room_for_a_queue(self, tmp_path: Path) -> None:
        """On a full disk a new queue is not reported as damaged."""
        with small_disk(tmp_path / "disk", "size=64k") as disk:
            fill(disk)
            with pytest.raises(StokerError) as caught:
                Store(disk / "queue.db")
            assert "aside" not in caught.value.hint

    def test_two_writers(self, store: Store, path: Path) -> None:
        """Two busy writers both progress, and no write is lost."""
        with engine_process(WRITER, path, "one") as one, engine_process(WRITER, path, "other") as other:
            for writer in (one, other):
                next_line(writer)
            for writer in (one, other):
                assert writer.stdin
                writer.stdin.write("go\n")
                writer.stdin.flush()
            wait_until(lambda: one.poll() is not None or other.poll() is not None)
            progress = [len(store.open_jobs(engine, 0, 1000)) for engine in ("one", "other")]
            assert [one.wait(60), other.wait(60)] == [0, 0]
        assert min(progress) > 0
        assert [len(store.open_jobs(engine, 0, 1000)) for engine in ("one", "other")] == [100, 100]

    def test_a_stopped_writer(self, store: Store, path: Path) -> None:
        """Waiting for a stopped writer ends with an error that names it; continuing it helps."""
        with engine_process(HOLDER, path) as holder, closing(Store(path, patience=0.1)) as other:
            next_line(holder)
            holder.send_signal(signal.SIGSTOP)
            with pytest.raises(StokerError, match=rf"queue\.lock .* by process {holder.pid}\n") as caught:
                added(other)
            assert f"kill -CONT {holder.pid}" in caught.value.hint
            assert other.last_job() is None
            holder.send_signal(signal.SIGCONT)
            holder.communicate("go on\n", timeout=PATIENCE_SECONDS)
            added(other)

    def test_the_error_names_the_holder(self, store: Store, path: Path) -> None:
        """The error names the process that holds the lock, not the one that waits before."""
        blames_the_holder = pytest.raises(StokerError, match="by process")
        with engine_process(HOLDER, path) as holder:
            next_line(holder)
            with engine_process(HOLDER, path) as waiting:
                wait_until(lambda: is_locked(path.with_suffix(".next")))
                with closing(Store(path, patience=0.1)) as other, blames_the_holder as caught:
                    added(other)
                assert f"process {holder.pid}" in str(caught.value)
                holder.communicate("go on\n", timeout=PATIENCE_SECONDS)
                assert next_line(waiting) == "inside"

    def test_locked_by_another_program(self, path: Path) -> None:
        """A lock of another program is reported as such."""
        with closing(Store(path, patience=0.1)) as store, closing(sqlite3.connect(path)) as shell:
            shell.execute("BEGIN IMMEDIATE")
            with pytest.raises(StokerError, match=r"cannot write .*queue\.db: database is locked") as caught:
                added(store)
            assert "another program" in caught.value.hint
            assert "space" not in caught.value.hint
            shell.rollback()
            added(store)

    @pytest.mark.parametrize(
        "use",
        [
            lambda store: store.job(1),
            lambda store: store.open_jobs("e1", 0, 9),
            lambda store: store.add_jobs(1, "e1", [TRUE], 1.0),
            lambda store: store.record([after(Job(1, 1, TRUE.command, TRUE.spec, Waiting(1.0), 1.0), EVENTS)]),
        ],
    )
    def test_damaged_inside(self, path: Path, use: Callable[[Store], object]) -> None:
        """Damage found by readers and writers gives a hint; nothing is overwritten."""
        with closing(Store(path)) as store:
            added(store, *[TRUE] * 100)
        good = path.read_bytes()
        page = 4096
        path.write_bytes(good[:page] + b"\xa5" * (len(good) - page))
        before = path.read_bytes()
        with closing(Store(path)) as store, pytest.raises(StokerError, match="damaged") as caught:
            use(store)
        assert "aside together" in caught.value.hint
        assert path.read_bytes() == before

    def test_tables_of_another_program(self, path: Path) -> None:
        """A database without our tables gives a readable error."""
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"PRAGMA user_version = {VERSION}")
        with closing(Store(path)) as store, pytest.raises(StokerError, match="no such table") as caught:
            store.last_job()
        assert "move the file aside" in caught.value.hint
