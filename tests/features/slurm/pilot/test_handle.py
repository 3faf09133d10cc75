"""What a pilot asks Slurm for, and how many attempts the head keeps waiting in it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.core.job import Job, Waiting
from stoker.core.settings import ClusterSettings
from stoker.core.spec import Command, JobSpec, Resources
from stoker.features.slurm.commands import NodeSize
from stoker.features.slurm.judge import Answers, SlurmFact
from stoker.features.slurm.pilot.files import PilotReady
from stoker.features.slurm.pilot.handle import (
    AHEAD_SECONDS,
    HELD_UP_SECONDS,
    MAX_AHEAD,
    MIN_AHEAD_PER_GPU,
    DelegatedAttempt,
    FreePlaces,
    PilotHandle,
    pilot_gpus,
    pilot_words,
)

NODE = NodeSize(gpus=8, memory=80_000, cpus=64)
JOB = Job(1, 1, Command(("true",)), JobSpec(), Waiting(0.0), 0.0)
_numbers = count(1)


def ready(tmp_path: Path) -> PilotHandle:
    pilot = PilotHandle("pilot1", "tag", tmp_path)
    pilot.get_ready(PilotReady("n1", 4))
    return pilot


def fill(pilot: PilotHandle, now: float) -> list[DelegatedAttempt]:
    """Give it as many attempts as it has room for."""
    pilot.measure_room(now)
    given = [DelegatedAttempt(replace(JOB, id=next(_numbers)), now) for _ in range(pilot.room)]
    for delegated in given:
        pilot.give(str(delegated.job_id), delegated)
    return given


def test_a_few_wait_in_a_pilot_whose_jobs_are_long(tmp_path: Path) -> None:
    """What waits at the head can still be given to another pilot."""
    pilot = ready(tmp_path)
    given = fill(pilot, 0.0)
    assert len(given) == MIN_AHEAD_PER_GPU * 4
    assert pilot.idle_gpus == 4 - len(given)
    for delegated in given[:4]:
        pilot.note_start(str(delegated.job_id), 0.0)
    assert len(fill(pilot, 60.0)) == 4
    assert fill(pilot, 120.0) == []


@pytest.mark.parametrize(("rate", "ahead"), [(4, MIN_AHEAD_PER_GPU * 4), (100, 100 * AHEAD_SECONDS), (4000, MAX_AHEAD)])
def test_as_many_wait_as_start_until_the_next_arrive(tmp_path: Path, rate: int, ahead: float) -> None:
    """The faster it starts and ends them the more it gets, up to a limit."""
    pilot, waiting, interval = ready(tmp_path), list[DelegatedAttempt](), 0.05
    pilot.give("runs", DelegatedAttempt(replace(JOB, id=-1), 0.0))
    pilot.note_start("runs", 0.0)
    for step in range(100):
        now = step * interval
        waiting += fill(pilot, now)
        for _ in range(min(len(waiting), int((step + 1) * rate * interval) - int(step * rate * interval))):
            delegated = waiting.pop(0)
            pilot.note_start(str(delegated.job_id), now)
            pilot.forget(str(delegated.job_id))
    assert len(fill(pilot, 5.0)) + len(waiting) == pytest.approx(ahead, rel=0.1)


def test_what_fits(tmp_path: Path) -> None:
    """A job needs the GPUs, and must be able to end before the pilot does."""
    pilot = ready(tmp_path)
    pilot.until = 1000.0
    wide = replace(JOB, spec=JobSpec(resources=Resources(gpus=5)))
    long = replace(JOB, spec=JobSpec(limit=900.0))
    assert [pilot.fits(job, 0.0) for job in (JOB, wide, long)] == [True, False, True]
    assert not pilot.fits(long, 60.0)


def test_which_job_could_start_at_once(tmp_path: Path) -> None:
    """GPUs that the pilot is going to give away are not idle."""
    pilot = ready(tmp_path)
    pilot.measure_room(0.0)
    two, wide = (replace(JOB, spec=JobSpec(resources=Resources(gpus=count))) for count in (2, 4))
    assert pilot.has_idle(wide, 0.0)
    pilot.offered = 2
    assert [pilot.has_idle(job, 0.0) for job in (two, wide)] == [True, False]
    pilot.leaving = True
    assert not pilot.has_idle(two, 0.0)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(0, 3), st.sampled_from([100.0, 1000.0]))),
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([None, 60.0, 900.0]))),
)
def test_a_job_gets_the_place_with_the_least_load(
    sizes: list[tuple[int, int, int, float]], wants: list[tuple[int, float | None]]
) -> None:
    """Of all pilots that fit and have room; of two the first."""
    pilots = [PilotHandle(f"pilot{place}", "tag", Path("/none")) for place in range(len(sizes))]
    for pilot, (gpus, room, used, until) in zip(pilots, sizes, strict=True):
        pilot.get_ready(PilotReady("n1", gpus))
        pilot.room, pilot.until = room, until
        pilot.idle_gpus -= used
    places = FreePlaces(pilots, 0.0)
    for gpus, limit in wants:
        job = replace(JOB, spec=JobSpec(resources=Resources(gpus=gpus), limit=limit))
        fitting = [pilot for pilot in pilots if pilot.room > 0 and pilot.fits(job, 0.0)]
        best = min(fitting, key=lambda pilot: pilot.load, default=None)
        assert places.take(job) is best


def test_short_jobs_are_counted(tmp_path: Path) -> None:
    """Until they are over; a job without a limit is not short."""
    pilot = ready(tmp_path)
    for key, limit in (("1.1", 60.0), ("2.1", None), ("3.1", 599.0)):
        pilot.give(key, DelegatedAttempt(replace(JOB, spec=JobSpec(limit=limit)), 0.0))
    assert pilot.short == 2
    pilot.forget("1.1")
    assert pilot.short == 1


@pytest.mark.parametrize(
    ("fact", "held_up"),
    [
        (SlurmFact("PENDING", "Resources"), True),
        (SlurmFact("PENDING", "Priority"), True),
        (SlurmFact("PENDING", "Dependency"), False),
        (SlurmFact("RUNNING", "None"), False),
        (None, False),
    ],
)
def test_a_pilot_that_waits_for_gpus_of_others(tmp_path: Path, fact: SlurmFact | None, held_up: bool) -> None:
    """It does so when Slurm has said it for a while, and not once it is ready."""
    pilot = PilotHandle("pilot1", "tag", tmp_path)
    pilot.answers = Answers(fact, 2, HELD_UP_SECONDS)
    assert pilot.is_held_up is held_up
    pilot.answers = Answers(fact, 1, 0.0)
    assert not pilot.is_held_up
    pilot.answers = Answers(fact, 2, HELD_UP_SECONDS)
    pilot.get_ready(PilotReady("n1", 4))
    assert not pilot.is_held_up


@pytest.mark.parametrize(
    ("need", "least", "most", "gpus"),
    [(3, 1, None, 3), (100, 1, None, 8), (100, 1, 4, 4), (100, 4, 2, 4), (1, 1, 4, 1)],
)
def test_gpus_of_a_pilot(need: int, least: int, most: int | None, gpus: int) -> None:
    """A whole node where there is work for it, fewer where these had to wait, and enough for the largest job."""
    assert pilot_gpus(NODE, need, least, most) == gpus


def test_a_part_of_a_node_has_its_share_of_memory_and_cores() -> None:
    """The rest is left for other jobs."""
    words = set(pilot_words(ClusterSettings(partition="gpu"), NODE, 2, 1))
    assert {"--partition=gpu", "--gres=gpu:2", "--mem=18000", "--cpus-per-task=16"} <= words


def test_a_private_cluster_gives_whole_nodes() -> None:
    """The ledger of the node shares its GPUs."""
    words = set(pilot_words(ClusterSettings(private=True), NODE, 8, 2))
    assert {"--exclusive", "--gres=gpu:2"} <= words
