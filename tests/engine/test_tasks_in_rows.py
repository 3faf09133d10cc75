"""Tasks of an array and lines of a list that share rows behave like those with a row for each."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.core.job import Exited, Job, Started, Starting, single
from stoker.core.pattern import Gaps, Pattern, Turns
from stoker.core.ranges import ranges_of
from stoker.core.requests import Again, Cancel, Edit, Hold, Release, Request
from stoker.core.spec import Command, Dependency, JobSpec, Member, NewJob, Resources, single_jobs, tasks_of, work_of
from stoker.store import past_jobs, queries
from stoker.store.filters import (
    Filter,
    Listing,
    count_lines,
    counts_by_group,
    counts_of_open,
    ids_matching,
    page_of_lines,
    queued_groups,
)
from stoker.store.past_jobs import Period
from support.fakes import EngineAtFakeSite

INDICES = (*range(8), 10, 20, 30, 40, 41)
FIRST, LAST = 1, len(INDICES)
NEW = NewJob(Command(("true",)), JobSpec(retries=1), "arr")
LINES = [
    NewJob(Command((f"train --seed {seed} --layers {2 if seed < 7 else 3}",), "/bin/sh"), JobSpec(retries=1), "arr")
    for seed in range(LAST)
]
"""Of two kinds."""
TRIALS = [
    NewJob(
        Command(("train", f"--seed={seed}", f"--width={width}")),
        JobSpec(retries=1),
        f"arr width={width} seed={seed}",
        task,
        member=Member(task, f'{{"width":{width},"seed":{seed}}}'),
    )
    for task, (width, seed) in enumerate(product((1, 8), range(6)))
]
"""Of two kinds, and one more."""
PATTERN = Pattern(
    0,
    (Turns(6, ("1", "8")), Turns(1, size=6)),
    Gaps("train\0--seed=%s\0--width=%s", (1, 0)),
    Gaps("arr width=%s seed=%s", (0, 1)),
    Gaps('{"width":%s,"seed":%s}', (0, 1)),
)
BEHIND_ONE, BEHIND_ALL = LAST + 1, LAST + 2

Step = Callable[[EngineAtFakeSite], None]


def request(make: Callable[[int, int], Request], ids: tuple[int, int]) -> Request:
    """Something to be asked of the jobs from one id to another."""
    return make(min(ids), max(ids) - min(ids) + 1)


def ask(*requests: Request) -> Step:
    """Ask all of it in one turn, and let the engine answer."""

    def step(world: EngineAtFakeSite) -> None:
        world.store.ask([(world.name, request) for request in requests], world.clock())
        world.engine.wake()
        world.turn(2)

    return step


def start_and_end(count: int, code: int, requests: Sequence[Request] = ()) -> Step:
    """Give some tasks a slot, in one turn with requests; they start, and end with this code."""

    def step(world: EngineAtFakeSite) -> None:
        world.site.room += count
        ask(*requests)(world)
        for job in world.engine.active_jobs:
            if isinstance(job.state, Starting):
                world.jobs.apply(job, Started(job.attempts, world.clock()))
            running = world.jobs.active(job.id)
            assert running is not None
            world.jobs.apply(running, Exited(job.attempts, code, 0, world.clock()))
        world.site.room = 0
        world.turn(2)

    return step


def restart(world: EngineAtFakeSite) -> None:
    world.restart()
    world.site.room = 0
    world.turn(2)


IDS = st.tuples(st.integers(FIRST, LAST), st.integers(FIRST, LAST))
EDITED = JobSpec(priority=3)
WITHOUT_GPUS = JobSpec(Resources(gpus=0))
MAKERS: list[Callable[[int, int], Request]] = [
    lambda job, count: Cancel(job, "why", count=count),
    lambda job, count: Hold(job, "why", count=count),
    lambda job, count: Release(job, count=count),
    lambda job, count: Edit(job, EDITED, "new", count=count),
    lambda job, count: Again(job, count=count),
    lambda job, count: Again(job, EDITED, count=count),
    lambda job, count: Edit(job, WITHOUT_GPUS, "cpu", count=count),
]
REQUESTS = st.builds(request, st.sampled_from(MAKERS), IDS)
STEPS = st.lists(
    st.one_of(
        st.lists(REQUESTS, min_size=1, max_size=4).map(lambda requests: ask(*requests)),
        st.builds(start_and_end, st.integers(1, 3), st.sampled_from([0, 0, 1]), st.lists(REQUESTS, max_size=3)),
        st.just(restart),
    ),
    max_size=8,
)


@contextlib.contextmanager
def array(jobs: Sequence[NewJob]) -> Iterator[EngineAtFakeSite]:
    """An engine with an array, and two jobs that depend on it."""
    with queue_of(jobs, Dependency(FIRST, "any", array=True), array=True) as world:
        yield world


@contextlib.contextmanager
def grid(jobs: Sequence[NewJob]) -> Iterator[EngineAtFakeSite]:
    """An engine with an array of trials and another job, and two jobs that depend on them."""
    last = replace(NEW, task=99)
    with queue_of([*jobs, last], Dependency(FIRST, "any", array=True), array=True, patterns=[PATTERN]) as world:
        yield world


@contextlib.contextmanager
def queue_of(
    jobs: Sequence[NewJob], dependency: Dependency, *, array: bool = False, **given: Any
) -> Iterator[EngineAtFakeSite]:
    """An engine with jobs, one that depends on one of them, and one with this dependency."""
    with tempfile.TemporaryDirectory() as directory:
        world = EngineAtFakeSite(Path(directory), room=0)
        world.store.add_jobs(world.store.add_batch("test", 1.0), world.name, jobs, world.clock(), array=array, **given)
        behind_one = NewJob(Command(("true",)), JobSpec(after=(Dependency(5, "any"),)))
        behind_all = NewJob(Command(("true",)), JobSpec(after=(dependency,)))
        world.store.add_jobs(world.store.add_batch("test", 1.0), world.name, [behind_one, behind_all], world.clock())
        world.turn(2)
        yield world
        world.close()


def seen(world: EngineAtFakeSite) -> list[object]:
    """Everything that front ends can read."""
    store, ids = world.store, ranges_of(range(FIRST, BEHIND_ALL + 1))
    some = ranges_of([3, 4, 5, 9, 1])
    failed = Filter(states=("failed", "cancelled"))
    return [
        [alone(store.job(job_id)) for job_id in ids],
        [alone(job) for job in single(queries.jobs_of(store, some))],
        [alone(world.jobs.table.queued(job_id)) for job_id in ids],
        sorted([job.id for job in group] for group in world.jobs.table.waiting.groups()),
        sorted([job.id for job in group.heads()] for group in world.jobs.table.waiting.groups()),
        [store.events(job_id) for job_id in ids],
        [store.shown_id(job_id) for job_id in ids],
        queries.loads(store),
        queries.counts_among(store, some),
        list(queries.open_among(store, some)),
        list(queries.failed_among(store, some)),
        [queries.count_waiting(store, world.name, first, end) for first in ids for end in ids if first < end],
        counts_of_open(store, Filter()),
        counts_by_group(store),
        [store.times_open(job, "other") for job in (*LINES, NEW)],
        [store.times_done(work_of(job)) for job in (*LINES, *TRIALS, NEW)],
        list(ids_matching(store, failed, "any", some)),
        [store.outcome(Dependency(target)) for target in (1, 4)],
        [
            (group.size, group.first, list(group.indices))
            for group in queued_groups(store, Filter(), 3, each_task=False)
        ],
        [group.first for group in queued_groups(store, Filter(), 3, each_task=True)],
        [
            (count_lines(store, listing), [group.first for group in page_of_lines(store, listing, sort, 2, 4)])
            for sort in ("id", "-id", "-ended")
            for each_task in (True, False)
            for only in (None, some)
            for scope in ("open", "ended", "any")
            for listing in [Listing(scope, each_task=each_task, only=only)]
        ],
        [group.first for group in page_of_lines(store, Listing(listed=[2, 3, 9]), "id", 1, 4)],
        [
            ([past_alone(past) for past in past_jobs.past(store, period, 4, 1)], past_jobs.past_counts(store, period))
            for period in (Period(), Period(only=some))
        ],
        [past_alone(past) for past in past_jobs.past_by_array(store, Period(), 9)],
        world.engine.waiting,
        world.engine.blocked,
    ]


def seen_of_array(world: EngineAtFakeSite) -> list[object]:
    """What only arrays have."""
    store = world.store
    return [
        [(alone(task.first), list(task.indices)) for task in queries.queued_tasks(store, world.name, FIRST)],
        [list(queries.ids_of_tasks(store, FIRST, 2, 41, step)) for step in (1, 2, 3, 5)],
        store.outcome(Dependency(FIRST, array=True)),
    ]


def alone(job: Job | None) -> Job | None:
    """Without the place of its command, which differs."""
    return job and replace(job, differences=None)


def past_alone(past: past_jobs.Past | past_jobs.PastTasks) -> past_jobs.Past | past_jobs.PastTasks:
    if isinstance(past, past_jobs.Past):
        return past._replace(job=replace(past.job, differences=None))
    telling = past.telling._replace(job=replace(past.telling.job, differences=None))
    return past._replace(indices=list(past.indices), telling=telling)


def seen_by_name(world: EngineAtFakeSite, pattern: str) -> list[object]:
    """All lists of jobs whose names match."""
    store = world.store
    return [
        [
            list(queries.ids_named(store, pattern, scope, glob=glob))
            for scope in ("open", "ended")
            for glob in (True, False)
        ],
        list(ids_matching(store, Filter(names=(pattern, "x")), "any", range(2, 9))),
        counts_of_open(store, Filter(names=(pattern,), text="1")),
    ]


def seen_with_text(world: EngineAtFakeSite, text: str) -> list[object]:
    """All lists of jobs whose commands contain a text."""
    store, chosen = world.store, Filter(text=text)
    some = ranges_of([3, 4, 5, 9, 1])
    period = Period(chosen=chosen)
    return [
        [
            list(ids_matching(store, chosen, scope, among))
            for scope in ("open", "ended", "any")
            for among in (None, some)
        ],
        [group.first for group in queued_groups(store, chosen, 3, each_task=False)],
        [group.first for group in queued_groups(store, chosen, 3, each_task=True)],
        counts_of_open(store, chosen),
        counts_by_group(store, chosen),
        [
            (count_lines(store, listing), [group.first for group in page_of_lines(store, listing, sort, 1, 3)])
            for sort in ("id", "-id", "-ended")
            for listing in (Listing("any", chosen), Listing("open", chosen), Listing("ended", chosen, only=some))
        ],
        [past_alone(past) for past in past_jobs.past(store, period, 4)],
        [past_alone(past) for past in past_jobs.past_by_array(store, period, 4)],
        past_jobs.past_gpu_seconds(store, period),
        sorted(past_jobs.gpu_spans(store, period, world.clock(), 9)),
    ]


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_lines_in_shared_rows_are_not_seen(steps: list[Step]) -> None:
    """Whatever is asked of parts of a list, and whichever of its lines run: every reader sees the same."""
    behind = Dependency(9, "ok")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stoker.store.lines.LEAST", 2)
        with queue_of(LINES, behind, lines=True) as few, queue_of(LINES, behind) as many:
            assert few.store.rows("SELECT id, size FROM jobs WHERE size > 1") == [(7, 7), (13, 6)]
            assert len(many.store.rows("SELECT 1 FROM jobs")) == BEHIND_ALL
            for step in steps:
                for world in (few, many):
                    world.clock.now += 1
                    step(world)
                for left, right in zip(seen(few), seen(many), strict=True):
                    assert left == right
                for text in ("seed 1", "layers 3", "train", "11", "nothing"):
                    assert seen_with_text(few, text) == seen_with_text(many, text)
            check_rows(few)


@settings(max_examples=50, deadline=None)
@given(STEPS)
def test_points_of_a_grid_in_shared_rows_are_not_seen(steps: list[Step]) -> None:
    """Whatever is asked of parts of a grid, and whichever of its trials run: every reader sees the same."""
    ranges = [replace(TRIALS[first], count=6) for first in (0, 6)]
    with grid(ranges) as few, grid(TRIALS) as many:
        assert few.store.rows("SELECT id, size, member, params FROM jobs WHERE size > 1") == [
            (6, 6, 5, None),
            (12, 6, 11, None),
        ]
        for step in steps:
            for world in (few, many):
                world.clock.now += 1
                step(world)
            for left, right in zip(seen(few), seen(many), strict=True):
                assert left == right
            assert seen_of_array(few) == seen_of_array(many)
            for world in (few, many):
                assert list(queries.ids_of_batch(world.store, 1)) == list(range(1, 13))
            for text in ("SEED=1", "seed=1", "width=8", "train", "11", "nothing"):
                assert seen_with_text(few, text) == seen_with_text(many, text)
            for name in ("arr*", "*seed=1", "*8 seed=[!1]", "new", "arr"):
                assert seen_by_name(few, name) == seen_by_name(many, name)
        check_rows(few)


@settings(max_examples=70, deadline=None)
@given(STEPS)
def test_rows_of_several_tasks_are_not_seen(steps: list[Step]) -> None:
    """Whatever is asked of parts of the array, and whichever of its tasks run: every reader sees the same."""
    with array(tasks_of(NEW, INDICES)) as few, array(list(single_jobs(tasks_of(NEW, INDICES)))) as many:
        assert len(few.store.rows("SELECT 1 FROM jobs")) < 8
        assert len(many.store.rows("SELECT 1 FROM jobs")) == BEHIND_ALL
        for step in steps:
            for world in (few, many):
                world.clock.now += 1
                step(world)
            for left, right in zip(seen(few), seen(many), strict=True):
                assert left == right
            assert seen_of_array(few) == seen_of_array(many)
        check_rows(few)


def check_rows(world: EngineAtFakeSite) -> None:
    """Every id is in one row, and the engine has the same jobs as the store."""
    rows = world.store.rows("SELECT id - size + 1, id FROM jobs ORDER BY id")
    assert [job_id for first, last in rows for job_id in range(first, last + 1)] == list(range(1, BEHIND_ALL + 1))
    for job_id in range(1, BEHIND_ALL + 1):
        here: Job | None = world.jobs.table.get(job_id)
        assert here is None or alone(here) == alone(world.store.job(job_id))


@pytest.fixture
def world() -> Iterator[EngineAtFakeSite]:
    with array(tasks_of(NEW, range(1000))) as made:
        yield made


def test_a_waiting_array_is_one_row(world: EngineAtFakeSite) -> None:
    """Starts take rows of their own from its beginning; a cancel of the rest is one row and one event."""
    assert world.store.rows("SELECT id, size FROM jobs WHERE array = 1") == [(1000, 1000)]
    start_and_end(2, 0)(world)
    ended = "SELECT id, size, state FROM jobs WHERE array = 1 ORDER BY id"
    assert world.store.rows(ended) == [(1, 1, "done"), (2, 1, "done"), (1000, 998, "waiting")]
    ask(Cancel(1, count=1000))(world)
    assert world.store.rows(ended) == [(1, 1, "done"), (2, 1, "done"), (1000, 998, "cancelled")]
    assert world.store.rows("SELECT job, count FROM events WHERE count > 1") == [(3, 998)]


def test_a_full_disk_changes_no_row(world: EngineAtFakeSite) -> None:
    """A split that cannot be written is written later, and nothing starts meanwhile."""
    with world.full_disk():
        world.site.room = 1
        world.turn(2)
        assert world.store.rows("SELECT id, size FROM jobs WHERE array = 1") == [(1000, 1000)]
        assert world.site.sent == []
    world.clock.now += 60
    world.turn(2)
    assert world.site.sent == [1]
    assert world.store.rows("SELECT id, size FROM jobs WHERE array = 1") == [(1, 1), (1000, 999)]


def test_a_cancelled_task_stays_so_whatever_else_is_asked_of_it(world: EngineAtFakeSite) -> None:
    """Requests for one task that come in one turn with a cancel of many, behind it, do not bring it back."""
    ask(Cancel(1, count=1000), Edit(26, replace(NEW.spec, priority=9), "new"), Hold(27), Release(27))(world)
    assert world.store.rows("SELECT id, size, state FROM jobs WHERE array = 1") == [(1000, 1000, "cancelled")]
    assert world.engine.waiting == 2  # those behind the array


@pytest.mark.parametrize("task", [500, 1000])
def test_a_task_that_starts_when_it_is_retried_leaves_its_row(world: EngineAtFakeSite, task: int) -> None:
    """Both are recorded in one transaction; the other tasks stay cancelled."""
    ask(Cancel(1, count=1000))(world)
    start_and_end(3, 0)(world)  # those behind the array
    start_and_end(1, 0, [Again(task)])(world)
    rows = world.store.rows("SELECT id - size + 1, id, state FROM jobs WHERE array = 1")
    assert [(first, last) for first, last, state in rows if state == "done"] == [(task, task)]
    assert sum(last - first + 1 for first, last, state in rows if state == "cancelled") == 999


@pytest.fixture
def listed() -> Iterator[EngineAtFakeSite]:
    """An engine with a list of 1000 lines."""
    lines = [replace(LINES[0], command=Command((f"train --seed {seed}",), "/bin/sh")) for seed in range(1, 1001)]
    with queue_of(lines, Dependency(9), lines=True) as made:
        yield made


def test_a_waiting_list_is_one_row(listed: EngineAtFakeSite) -> None:
    """A line gets a row of its own, with the digest of its work, when it starts; a cancel of the rest is one event."""
    assert listed.store.rows("SELECT id, size FROM jobs WHERE batch = 1") == [(1000, 1000)]
    start_and_end(2, 0)(listed)
    ask(Cancel(1, count=1000))(listed)
    rows = listed.store.rows("SELECT id, size, state, content IS NULL FROM jobs WHERE batch = 1 ORDER BY id")
    assert rows == [(1, 1, "done", 0), (2, 1, "done", 0), (1000, 998, "cancelled", 1)]
    assert listed.store.rows("SELECT job, count FROM events WHERE count > 1") == [(3, 998)]
    assert [listed.job(job_id).command.text for job_id in (1, 2, 3, 1000)] == [
        f"train --seed {job_id}" for job_id in (1, 2, 3, 1000)
    ]


def test_a_full_disk_splits_no_list(listed: EngineAtFakeSite) -> None:
    """A line that cannot be recorded starts later, with its own command."""
    with listed.full_disk():
        listed.site.room = 1
        listed.turn(2)
        assert listed.store.rows("SELECT id, size FROM jobs WHERE batch = 1") == [(1000, 1000)]
        assert listed.site.sent == []
    listed.clock.now += 60
    listed.turn(2)
    assert listed.site.sent == [1]
    assert listed.store.rows("SELECT id, size FROM jobs WHERE batch = 1") == [(1, 1), (1000, 999)]


def test_lines_that_get_gpus_are_of_their_own_kinds() -> None:
    """Without GPUs, lines of all kinds share a row; with them, each is known by its own command."""
    spec = JobSpec(Resources(gpus=0))
    lines = [NewJob(Command((f"program{letter} x",), "/bin/sh"), spec) for letter in "abcdefgh" * 10]
    with queue_of(lines, Dependency(9), lines=True) as world:
        assert world.store.rows("SELECT size FROM jobs WHERE size > 1") == [(80,)]
        ask(Edit(1, JobSpec(), "", count=80))(world)
        queued = [alone(world.jobs.table.queued(job_id)) for job_id in range(1, 81)]
        assert queued == [alone(world.job(job_id)) for job_id in range(1, 81)]
        assert len({job.kind for job in queued if job}) == 8


def test_an_edit_of_a_part_splits_it(world: EngineAtFakeSite) -> None:
    """Only the edited tasks have the new spec; ids and indices stay."""
    ask(Edit(11, replace(NEW.spec, priority=9), "new", count=10))(world)
    rows = world.store.rows("SELECT id, size, task, name FROM jobs WHERE array = 1 ORDER BY id")
    assert rows == [(10, 10, 9, "arr"), (20, 10, 19, "new"), (1000, 980, 999, "arr")]
    assert [world.job(job_id).spec.priority for job_id in (10, 11, 20, 21)] == [0, 9, 9, 0]


def test_a_task_is_retried_in_the_turn_in_which_all_are_cancelled(world: EngineAtFakeSite) -> None:
    """The store does not know of the cancel yet; only that task waits again."""
    ask(Cancel(1, count=1000), Again(5))(world)
    assert world.engine.waiting == 1
    assert [type(world.job(job_id).state).__name__ for job_id in (4, 5, 6)] == ["Ended", "Waiting", "Ended"]
