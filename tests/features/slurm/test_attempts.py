"""What becomes of attempts, by their journals and by Slurm's answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from features.slurm.fake_slurm import NODE
from features.slurm.worlds import DirectWorld
from stoker.core.job import Exited, Lost, OnHold, Returned, Running, Started, Waiting
from stoker.features.slurm.attempts import REFUSED_SECONDS, RETURNS_ALLOWED, SHORT_SECONDS, read_ref, ref_of
from stoker.features.slurm.guard import gone_line
from stoker.features.slurm.shared import ALIVE
from stoker.runner import journal
from support.fakes import START


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DirectWorld]:
    world = DirectWorld(tmp_path)
    yield world
    world.close()


def running(world: DirectWorld) -> int:
    (job,) = world.add()
    world.start(job)
    return job


def test_a_ref_can_be_read_again() -> None:
    """The name of a bundle may contain anything but the end of the ref."""
    assert read_ref(ref_of("host-12.ab-3", 7)) == ("host-12.ab-3", 7)


def test_the_journal_names_the_gpus(world: DirectWorld) -> None:
    """The engine shows them with their node and cluster."""
    job = running(world)
    state = world.job(job).state
    assert isinstance(state, Running)
    assert state.devices == (f"lab:{NODE} 0",)


@pytest.mark.parametrize(
    ("slurm", "event"),
    [
        ("TIMEOUT", Exited(1, 143, 15, 0.0, why="timeout", note="Slurm's time limit was over")),
        ("DEADLINE", Exited(1, 143, 15, 0.0, why="timeout", note="Slurm's time limit was over")),
        (
            "OUT_OF_MEMORY",
            Exited(1, 137, 9, 0.0, note="it used more host memory than Slurm gave it (OUT_OF_MEMORY)"),
        ),
        ("CANCELLED", Exited(1, 143, 15, 0.0, why="stopped", note="cancelled in Slurm")),
        ("PREEMPTED", Lost(1, 0.0, "Slurm gave its GPUs to other jobs (PREEMPTED)", preempted=True)),
        (
            "FAILED",
            Lost(1, 0.0, "it was killed from outside, perhaps for its host memory (Slurm: FAILED)"),
        ),
    ],
)
def test_an_end_that_only_slurm_tells(world: DirectWorld, slurm: str, event: Exited | Lost) -> None:
    """The journal has none."""
    job = running(world)
    [task] = world.slurm.tasks.values()
    task.state = slurm
    world.until(lambda: len(world.kinds(job)) > 2)
    last = next(event for event in world.store.events(job) if isinstance(event, Exited | Lost))
    assert (type(last), last.note, getattr(last, "why", ""), getattr(last, "preempted", False)) == (
        type(event),
        event.note,
        getattr(event, "why", ""),
        getattr(event, "preempted", False),
    )


def test_the_journal_counts_more_than_slurm(world: DirectWorld) -> None:
    """An end that a node wrote is how the attempt ended, whatever Slurm calls it."""
    job = running(world)
    world.end(job, 4)
    [task] = world.slurm.tasks.values()
    task.state = "NODE_FAIL"
    world.until(lambda: world.word(job) == "failed")
    assert world.ended(job).code == 4


def test_a_node_that_answers_goes_on(world: DirectWorld) -> None:
    """Slurm has forgotten the task, and the node is asked; its end counts."""
    job = running(world)
    world.slurm.forgotten |= world.slurm.tasks.keys()
    asked = 0
    for _ in range(60):
        world.step()
        if len(world.messages(job)) > asked:
            asked += 1
            world.write(job, f"{ALIVE} {world.key(job)} 1.0\n".encode())
    assert asked > 1
    assert world.word(job) == "running"
    world.end(job, 3)
    world.until(lambda: world.word(job) == "failed")
    assert world.kinds(job) == ["Assigned", "Started", "Exited"]


def test_a_node_that_is_silent_is_told_to_stop(world: DirectWorld) -> None:
    """It may come back, and the job runs elsewhere then."""
    job = running(world)
    world.slurm.forgotten |= world.slurm.tasks.keys()
    messages = world.messages(job)
    while world.word(job) == "running":
        messages = world.messages(job)
        world.step()
    assert [sorted(message) for message in messages][:1] == [["index", "ping"]]
    assert world.job(job).losses == 1


def test_a_check_shows_that_nothing_is_left(tmp_path: Path) -> None:
    """Where Slurm keeps processes by descent, a job of Slurm's looks at the node before an attempt is lost."""
    world = DirectWorld(tmp_path)
    world.slurm.confines = False
    job = running(world)
    [task] = world.slurm.tasks.values()
    task.state = "FAILED"
    world.until(lambda: len(world.slurm.tasks) == 2)
    *_, options = world.slurm.options.values()
    assert f"--nodelist={NODE}" in options
    assert world.word(job) == "running"
    assert f"jobs lost on {NODE} wait for a check there" in world.site.status().trouble
    world.write(job, f"\n{gone_line(world.key(job))}\n".encode())
    world.until(lambda: world.job(job).losses == 1)
    world.close()


def test_cancelled_in_slurm_before_it_began(world: DirectWorld) -> None:
    """The job is cancelled, too."""
    (job,) = world.add()
    world.until(lambda: world.handed_over == 1)
    [task] = world.slurm.tasks.values()
    task.state = "CANCELLED"
    world.until(lambda: world.word(job) == "cancelled")


def test_a_node_that_does_not_start_a_task(world: DirectWorld) -> None:
    """The job goes back to the queue for a while."""
    (job,) = world.add()
    world.until(lambda: world.handed_over == 1)
    [task] = world.slurm.tasks.values()
    task.state, task.node = "CANCELLED", NODE
    world.until(lambda: "Returned" in world.kinds(job))
    state = world.job(job).state
    assert isinstance(state, Waiting)
    assert state.short == f"node {NODE} did not start it"
    world.clock.pass_seconds(REFUSED_SECONDS)
    world.finish(job)


def test_a_job_that_slurm_cannot_start_is_held(world: DirectWorld) -> None:
    """After some returns, with the words that the node left."""
    (job,) = world.add()
    for count in range(1, RETURNS_ALLOWED + 1):
        world.until(lambda count=count: world.handed_over == count)  # type: ignore[misc]
        world.fail(job, "n1: no python")
        *_, task = world.slurm.tasks.values()
        task.state = "FAILED"
        world.until(lambda count=count: world.kinds(job).count("Returned") == count)  # type: ignore[misc]
    state = world.job(job).state
    assert isinstance(state, OnHold)
    assert state.note.startswith(f"held: Slurm could not start it {RETURNS_ALLOWED} times (n1: no python); ")


def test_a_node_that_is_short_of_something(world: DirectWorld) -> None:
    """The job waits before it is handed over again."""
    (job,) = world.add()
    world.until(lambda: world.begin(job))
    world.write(job, journal.line_of(journal.AttemptReturned(world.key(job), world.clock(), 11, "no processes")))
    world.until(lambda: "Returned" in world.kinds(job))
    returned = next(event for event in world.store.events(job) if isinstance(event, Returned))
    assert returned.short == "no processes"
    world.clock.pass_seconds(SHORT_SECONDS)
    world.finish(job)


def test_a_clock_of_a_node_that_is_wrong(world: DirectWorld) -> None:
    """The duration is that of the node, the times are ours."""
    (job,) = world.add()
    world.until(lambda: world.handed_over == 1)
    ours, wrong = world.clock(), 5_000.0
    world.clock.now = wrong
    assert world.begin(job)
    world.clock.now = ours
    world.until(lambda: world.word(job) == "running")
    world.clock.now = wrong + 60
    world.end(job)
    world.clock.now = ours + 100
    world.until(lambda: world.word(job) == "done")
    times = [event.at for event in world.store.events(job) if isinstance(event, Started | Exited)]
    assert times[1] - times[0] == pytest.approx(60)
    assert START <= times[0] <= world.clock()


def test_lines_of_a_journal_that_nobody_wrote_are_ignored(world: DirectWorld) -> None:
    """As are those of another attempt."""
    job = running(world)
    world.write(job, b'E 9.9 1.0 1 0 exited 1 ""\nnonsense\n')
    world.step(5)
    assert world.word(job) == "running"
