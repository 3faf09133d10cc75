"""Running jobs give way to other engines: to sessions of the same user, and to users who used less lately."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from stoker.core.job import Running, state_word
from stoker.core.planner.displacement import MOST_PREEMPTIONS
from stoker.core.planner.fairshare import DEMAND_SECONDS, LEAD_GPU_SECONDS, Demand, Held, given_up, is_owed, spare_gpus
from stoker.devices.detect import DeclaredDevices
from stoker.ledger import Ledger, prepare_ledger
from stoker.sites.machine.fairshare import USER_RELIEF_SECONDS
from stoker.sites.machine.observation import REFRESH_INTERVAL
from support import ledger_programs as programs
from support.fakes import EngineOnFakeRunner
from support.users import User, made_users, next_line, reachable_directory, running_as

HOUR = 3600.0
MINE = Demand(1, "me", usage=10_000.0, since=900.0)


def test_to_whom_running_jobs_give_way() -> None:
    """Who used much less and has waited, and urgent engines of the same user."""
    now = 1000.0
    waited = now - DEMAND_SECONDS
    assert is_owed(Demand(2, "bob", MINE.usage - LEAD_GPU_SECONDS, waited), MINE, now)
    assert not is_owed(Demand(2, "bob", MINE.usage - LEAD_GPU_SECONDS + 1, waited), MINE, now)
    assert not is_owed(Demand(2, "bob", 0.0, waited + 1), MINE, now)
    assert not is_owed(Demand(2, "bob", 0.0, now, urgent=True), MINE, now), "only its own user counts it as urgent"
    assert is_owed(Demand(1, "me", MINE.usage, now, urgent=True), MINE, now)
    assert not is_owed(Demand(1, "me", MINE.usage, waited), MINE, now)


def test_the_newest_jobs_are_given_up() -> None:
    """As many as one job of the demand needs, on devices that it can use; none if that is not enough."""
    held = [Held(1, 10.0, ("A",)), Held(2, 30.0, ("B",)), Held(3, 20.0, ("C", "D"))]
    assert given_up(Demand(2, "bob", 0.0, 0.0, gpus=4), 0, held) == [2]
    assert given_up(Demand(2, "bob", 0.0, 0.0, gpus=4, least=3), 0, held) == [2, 3]
    assert given_up(Demand(2, "bob", 0.0, 0.0, gpus=4, least=3), 2, held) == [2]
    assert given_up(Demand(2, "bob", 0.0, 0.0, claims=("A", "D")), 0, held) == [3]
    assert given_up(Demand(2, "bob", 0.0, 0.0, gpus=5, least=5), 0, held) == []
    assert given_up(Demand(2, "bob", 0.0, 0.0), 1, held) == []


def test_a_user_keeps_an_equal_share() -> None:
    """However many users ask, and whatever they say that they used."""
    assert [spare_gpus(4, held, 2) for held in (4, 3, 2, 1, 0)] == [2, 1, 0, 0, 0]
    assert [spare_gpus(4, 4, users) for users in (1, 3, 4, 5)] == [0, 3, 3, 4]
    assert spare_gpus(1, 1, 2) == 1, "the users of a single GPU take turns"


@contextlib.contextmanager
def demand(world: EngineOnFakeRunner, *, urgent: bool, gpus: int = 1) -> Iterator[None]:
    """Another engine of this user waits for devices."""
    ledger = Ledger(world.ledger.path)
    held = ledger.demand(Demand(0, "", 0.0, world.clock(), gpus, urgent=urgent))
    try:
        yield
    finally:
        ledger.retract(held)


def both_run(world: EngineOnFakeRunner, count: int = 2, **spec: object) -> list[str]:
    """A job on each device, each an hour younger than the one before; all have run for long."""
    keys = []
    for _ in range(count):
        (job_id,) = world.add(**{"preemptible": "save", **spec})  # type: ignore[arg-type]
        keys.append(world.run(job_id))
        world.clock.pass_seconds(HOUR)
    world.turn()
    return keys


def look(world: EngineOnFakeRunner) -> None:
    """Let the engine read the ledger again."""
    world.clock.pass_seconds(REFRESH_INTERVAL)
    world.turn(2)


def test_a_session_gets_the_gpu_of_the_newest_job(world: EngineOnFakeRunner) -> None:
    """Though nothing waits in the queue; the job waits until the session has begun, and says so."""
    _, newest = both_run(world)
    with demand(world, urgent=True):
        look(world)
        look(world)
        assert [call[1] for call in world.runner.called("give_way")] == [newest]
        state = world.job(2).state
        assert isinstance(state, Running)
        assert state.giving_way is not None
        assert (state.giving_way.to, state.giving_way.note) == (0, "for your session")
        world.runner.exited(newest, 75, "preempted")
        look(world)
        assert state_word(world.job(2)) == "waiting"
        look(world)
        assert state_word(world.job(2)) == "waiting"
    look(world)
    assert state_word(world.job(2)) == "starting"


def test_devices_that_go_to_sessions_are_not_taken_from_a_job_for_another(world: EngineOnFakeRunner) -> None:
    """A short job of the queue would not get them: it waits, and starts once they no longer do."""
    _, newest = both_run(world)
    with demand(world, urgent=True, gpus=2):
        (short,) = world.add(limit=60.0)
        look(world)
        look(world)
        assert [call[1] for call in world.runner.called("give_way")] == [newest]
        state = world.job(2).state
        assert isinstance(state, Running)
        assert state.giving_way is not None
        assert state.giving_way.to == 0
        world.runner.exited(newest, 75, "preempted")
        look(world)
        assert state_word(world.job(short)) == "waiting"
    look(world)
    assert state_word(world.job(short)) == "starting"


def test_an_engine_that_is_not_urgent_waits(world: EngineOnFakeRunner) -> None:
    both_run(world)
    with demand(world, urgent=False):
        look(world)
    assert world.runner.called("give_way") == []


def test_a_job_that_just_started_does_not_leave(world: EngineOnFakeRunner) -> None:
    for job_id in world.add(2, preemptible="save"):
        world.run(job_id)
    with demand(world, urgent=True):
        look(world)
    assert world.runner.called("give_way") == []


@contextlib.contextmanager
def shared_machine(gpus: int) -> Iterator[EngineOnFakeRunner]:
    """An engine whose ledger all users can reach."""
    with reachable_directory() as directory:
        ledger = Ledger(prepare_ledger(directory / "ledger"))
        state = directory / "state"
        state.mkdir(mode=0o700)
        made = EngineOnFakeRunner(state, DeclaredDevices([str(gpu) for gpu in range(gpus)]), ledger)
        yield made
        made.close()


@pytest.fixture
def shared() -> Iterator[EngineOnFakeRunner]:
    with shared_machine(2) as made:
        yield made


def test_a_user_who_used_less_gets_one_gpu_an_hour(shared: EngineOnFakeRunner) -> None:
    """A demand that never takes what it gets costs no more: the jobs go on, and give way again only an hour later."""
    with made_users(1) as (bob,):
        both_run(shared)
        with running_as(bob, programs.wait_for_gpus, shared.ledger.path, "0", "2") as waiter:
            next_line(waiter)
            look(shared)
            (call,) = shared.runner.called("give_way")
            state = shared.job(2).state
            assert isinstance(state, Running)
            assert state.giving_way is not None
            assert state.giving_way.note == f"for {bob.name}, who used less lately"
            shared.runner.exited(call[1], 75, "preempted")
            look(shared)
            assert state_word(shared.job(2)) == "waiting"
            for _ in range(20):  # its time to take the device is over
                look(shared)
            assert state_word(shared.job(2)) == "starting"
            assert len(shared.runner.called("give_way")) == 1
            shared.clock.pass_seconds(USER_RELIEF_SECONDS)
            look(shared)
            assert len(shared.runner.called("give_way")) == 2


@contextlib.contextmanager
def colluding(world: EngineOnFakeRunner, *users: User) -> Iterator[None]:
    """Users who say that they used nothing, and always want all GPUs."""
    with contextlib.ExitStack() as stack:
        for user in users:
            waiter = stack.enter_context(running_as(user, programs.wait_for_gpus, world.ledger.path, "0", "4"))
            next_line(waiter)
        yield


def asked(world: EngineOnFakeRunner) -> list[str]:
    return [call[1] for call in world.runner.called("give_way")]


def test_users_who_act_together_get_no_more_than_their_shares() -> None:
    """They take what they get and ask again each hour: of four GPUs, one stays with each of the three users."""
    with shared_machine(4) as world, made_users(2) as (eve, mallory), contextlib.ExitStack() as held:
        keys = both_run(world, 4)
        with colluding(world, eve, mallory):
            look(world)
            look(world)
            assert sorted(asked(world)) == sorted(keys[2:]), "a job for each of them, the newest first"
            taken: list[str] = []
            for _ in range(6):
                for key in asked(world)[len(taken) :]:
                    device = world.job(int(key.partition(".")[0])).state
                    assert isinstance(device, Running)
                    world.runner.exited(key, 75, "preempted")
                    look(world)
                    holder = (eve, mallory)[len(taken) % 2]
                    name = f"name:{device.devices[0]}"
                    claimed = held.enter_context(running_as(holder, programs.hold, world.ledger.path, name))
                    assert next_line(claimed)
                    taken.append(key)
                world.clock.pass_seconds(USER_RELIEF_SECONDS)
                look(world)
                look(world)
            assert taken == [keys[3], keys[2], keys[1]] or taken == [keys[2], keys[3], keys[1]]
        assert state_word(world.job(1)) == "running"


def test_users_who_act_together_and_take_nothing() -> None:
    """No more than their shares stands idle at once, the jobs go on, and none leaves more often than four times."""
    with shared_machine(4) as world, made_users(2) as (eve, mallory):
        both_run(world, 4)
        with colluding(world, eve, mallory):
            for _ in range(12):
                world.clock.pass_seconds(USER_RELIEF_SECONDS)
                look(world)
                for key in asked(world):
                    left = world.jobs.attempt(key)
                    if left is not None and isinstance(left.state, Running) and left.state.giving_way is not None:
                        world.runner.exited(key, 75, "preempted")
                look(world)
                running = [job for job in range(1, 5) if state_word(world.job(job)) in ("running", "starting")]
                assert len(running) >= 2
                for _ in range(20):
                    look(world)
                for job in range(1, 5):
                    if state_word(world.job(job)) == "starting":
                        world.run(job)
                assert all(state_word(world.job(job)) == "running" for job in range(1, 5))
        assert max(world.job(job).preemptions for job in range(1, 5)) <= MOST_PREEMPTIONS
