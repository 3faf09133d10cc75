"""The head's side of pilots: which jobs they get, how many there are, and what becomes of attempts in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from features.slurm.fake_slurm import NODE
from features.slurm.worlds import PilotWorld
from stoker.core.job import Lost, OnHold, Queued, Returned
from stoker.core.planner.reasons import InCluster
from stoker.core.settings import ClusterSettings
from stoker.core.spec import Command, JobSpec, NewJob, Resources
from stoker.features.slurm.attempts import RETURNS_ALLOWED
from stoker.features.slurm.pilot.files import Alive, Leave, Over, Ping, RunJob
from stoker.features.slurm.pilot.head import MANY_SHORT


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PilotWorld]:
    world = PilotWorld(tmp_path)
    yield world
    world.close()


def running(world: PilotWorld) -> int:
    (job,) = world.add()
    world.start(job)
    return job


def test_a_pilot_asks_for_what_the_jobs_need(world: PilotWorld) -> None:
    """With its share of the node."""
    world.add(2)
    world.until(lambda: bool(world.slurm.options))
    [options] = world.slurm.options.values()
    assert {"--job-name=stoker-pilot", "--nodes=1", "--gres=gpu:2", "--cpus-per-task=16"} <= set(options)


def test_there_are_no_more_pilots_than_allowed(tmp_path: Path) -> None:
    """However many jobs wait."""
    world = PilotWorld(tmp_path, ClusterSettings(pilots="always", poll=1.0, pilots_max=2))
    world.add(100)
    world.step(10)
    assert len(world.pilots) == 2
    world.close()


def test_a_few_short_jobs_go_to_slurm_themselves(tmp_path: Path) -> None:
    """Many run in pilots, and so do jobs that share a GPU."""
    world = PilotWorld(tmp_path, ClusterSettings(poll=1.0))
    world.add(2, limit=60.0)
    world.step(5)
    assert not world.pilots
    world.add(resources=Resources(memory=1 << 30))
    world.step(5)
    assert len(world.pilots) == 1
    world.add(MANY_SHORT + 1, limit=60.0)
    world.until(lambda: world.handed_over > 1)
    world.close()


def test_lines_that_share_a_row_run_in_pilots(world: PilotWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pilot gets each with its own command."""
    monkeypatch.setattr("stoker.store.lines.LEAST", 2)
    spec = JobSpec(environment=world.store.add_environment({}), cluster=world.cluster, out="/dev/null")
    lines = [NewJob(Command((f"train --seed {seed}",), "/bin/sh"), spec) for seed in range(6)]
    ids = world.store.add_jobs(world.store.add_batch("test", 1.0), world.name, lines, world.clock(), lines=True)
    assert world.store.rows("SELECT size FROM jobs") == [(6,)]
    world.engine.wake()
    world.until(lambda: any(isinstance(order, RunJob) for _, order in world.orders()))
    orders = {order.job.id: order.job.command.text for _, order in world.orders() if isinstance(order, RunJob)}
    assert orders.items() <= {job_id: f"train --seed {job_id - ids[0]}" for job_id in ids}.items()


def test_a_job_that_was_recalled_for_another_pilot_finds_a_place_there(tmp_path: Path) -> None:
    """Also if others have taken its GPUs meanwhile: in Slurm it would wait for those of the pilots."""
    world = PilotWorld(tmp_path, ClusterSettings(poll=1.0, pilots_max=2))
    ids = world.add(MANY_SHORT + 1, limit=60.0)
    world.until(lambda: len(world.pilots) == 2 and world.handed_over == len(ids))
    first, second = (pilot for pilot in world.site._pilots.all.values())
    job = world.job(ids[-1])
    world.site._pilots._moving.add(job.id)
    for pilot in (first, second):
        pilot.idle_gpus = 0
    world.site._pilots._many_short = False
    assert world.site._pilots.takes(job)
    world.site._pilots._moving.clear()
    assert not world.site._pilots.takes(job)
    world.close()


def test_jobs_for_a_refused_pilot_are_held(world: PilotWorld) -> None:
    """With Slurm's words."""
    world.slurm.error = "Invalid qos"
    (job,) = world.add()
    world.until(lambda: world.word(job) == "held")
    state = world.job(job).state
    assert isinstance(state, OnHold)
    assert state.note.startswith("held: Slurm refused a pilot for it: Invalid qos; ")


def test_pilots_that_fail_to_start(world: PilotWorld) -> None:
    """After some of them the jobs are held, with the words that the last one left."""
    (job,) = world.add()
    world.pilot_words = "a pilot on n1 found 0 GPUs"
    world.until(lambda: world.word(job) == "held")
    state = world.job(job).state
    assert isinstance(state, OnHold)
    words = f"held: pilots ended {RETURNS_ALLOWED} times before they worked (a pilot on n1 found 0 GPUs)"
    assert state.note.startswith(words)


def test_a_pilot_that_is_not_needed_any_more(world: PilotWorld) -> None:
    """It leaves Slurm before it begins."""
    (job,) = world.add()
    world.holds_pilots = True
    world.until(lambda: bool(world.slurm.tasks))
    world.engine.cancel(job, None, "")
    world.jobs.plan_due = True  # as after any request of a user
    world.until(lambda: world.slurm.cancelled == ["1"])
    assert not world.pilots


def test_why_a_job_waits_for_a_pilot(world: PilotWorld) -> None:
    """In words for Slurm's reason for the pilot."""
    world.holds_pilots = True
    (job,) = world.add()
    words = "waits for a pilot, and that in Slurm: jobs with a higher priority in Slurm go first"
    world.until(lambda: world.site.reason(world.job(job)) == InCluster(None, words))


def test_a_drained_node(world: PilotWorld) -> None:
    """Its pilot gets nothing more, and what runs there comes to its end."""
    job = running(world)
    world.slurm.drained_nodes = [NODE]
    world.until(lambda: any(isinstance(order, Leave) for _, order in world.orders()))
    world.slurm.drained_nodes = []
    assert world.word(job) == "running"
    world.end(job)
    world.until(lambda: world.word(job) == "done")


@pytest.mark.parametrize(("state", "preempted"), [("TIMEOUT", True), ("PREEMPTED", True), ("FAILED", False)])
def test_slurm_ends_a_pilot(world: PilotWorld, state: str, preempted: bool) -> None:
    """A job whose pilot was taken away has not failed."""
    job = running(world)
    [task] = world.slurm.tasks.values()
    task.state = state
    world.until(lambda: "Lost" in world.kinds(job))
    lost = next(event for event in world.store.events(job) if isinstance(event, Lost))
    assert (lost.note, lost.preempted) == (f"its pilot ended (Slurm: {state})", preempted)


def test_a_pilot_that_answers_goes_on(world: PilotWorld) -> None:
    """Slurm has forgotten it, and its attempts are left alone."""
    job = running(world)
    [folder] = world.pilots.values()
    world.slurm.forgotten |= world.slurm.tasks.keys()
    answered = 0
    for _ in range(60):
        world.step()
        if sum(isinstance(order, Ping) for _, order in world.orders()) > answered:
            answered += 1
            world.tell(folder, Alive())
    assert answered > 1
    world.end(job, 3)
    world.until(lambda: world.word(job) == "failed")
    assert world.kinds(job) == ["Assigned", "Started", "Exited"]


def test_a_pilot_of_which_nothing_is_left(world: PilotWorld) -> None:
    """Its guard says so, though Slurm calls it running; the attempt runs again."""
    job = running(world)
    [folder] = world.pilots.values()
    world.tell(folder, Over())
    world.until(lambda: world.job(job).losses == 1)


def test_an_attempt_that_a_dead_pilot_had_not_taken(world: PilotWorld) -> None:
    """It comes back and has lost nothing."""
    runs = running(world)
    before = world.handed_over
    (job,) = world.add()
    world.until(lambda: world.handed_over == before + 1)
    world.lose(runs)
    world.until(lambda: "Returned" in world.kinds(job))
    assert world.job(job).losses == 0
    assert [type(event) for event in world.store.events(job)][1] is Returned


def test_draining_recalls_what_waits_in_pilots(world: PilotWorld) -> None:
    """The pilot gives it back."""
    runs = running(world)
    before = world.handed_over
    (job,) = world.add()
    world.until(lambda: world.handed_over == before + 1)
    world.engine.drain()
    world.step()
    world.obey()
    world.until(lambda: isinstance(world.job(job).state, Queued))
    assert world.word(runs) == "running"
