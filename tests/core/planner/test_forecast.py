"""Expected starts and ends of jobs follow the plan."""

from __future__ import annotations

from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.job import Job, limit_of
from stoker.core.planner.forecast import Forecast, Now, forecast
from stoker.core.planner.occupancy import Slot
from stoker.core.settings import Policy
from stoker.core.spec import Resources
from support.build import GIB, a_job, a_lease, a_need, a_queue, a_reading, a_snapshot, declared, simulated, slot
from support.world import World

TWO = a_snapshot(declared("0", "1"))
AGE = Policy(order="age")


def forecast_of(*jobs: Job, slots: list[Slot] | None = None, moment: float = 10.0, horizon: int = 64) -> Forecast:
    """The forecast for jobs on two devices, each expected to take as long as its limit."""
    return forecast(Now(a_queue(*jobs), slots or [], TWO, [], Policy(), moment), limit_of, horizon)


@settings(max_examples=60, derandomize=True)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([a_need(1), a_need(2), a_need(3), a_need(1, gib=7)]),
            st.sampled_from([90.0, 700.0, 3000.0, 20000.0]),
            st.integers(0, 1),
            st.sampled_from(["", "a", "b"]),
        ),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from(["fair", "age", "shortest"]),
    st.integers(0, 3),
)
def test_the_forecast_is_what_happens(
    some: list[tuple[Resources, float, int, str]], order: Literal["fair", "age", "shortest"], turns: int
) -> None:
    """Where all jobs take as long as expected and none comes, each starts and ends when the forecast says."""
    world = World(simulated(24, 24, 24), Policy(order=order, patience=0.0), clock=1000.0)
    for need, run_time, priority, kind in some:
        world.submit(need, run_time, priority=priority, limited=True, kind=kind)
        world.clock += 40.0
    for _ in range(turns):
        world.turn()
        if world.workers:
            world.end_next()
    seen = a_snapshot(world.devices, at=world.clock + 0.5)
    expected = forecast(Now(world.waiting, world.slots(), seen, [], world.policy, world.clock), limit_of)
    waiting = {job.id for job in world.jobs}
    world.turn()
    while world.workers:
        world.end_next()
        world.turn()
    assert expected.starts == {job_id: world.started_at[job_id] for job_id in waiting}
    assert {job_id: expected.ends[job_id] for job_id in waiting} == {
        job_id: world.started_at[job_id] + world.run_times[job_id] for job_id in waiting
    }


def test_jobs_start_when_those_before_them_end() -> None:
    """Two devices, three jobs: the third follows the shorter of the two."""
    expected = forecast_of(a_job(1, limit=30.0), a_job(2, limit=50.0), a_job(3, limit=5.0))
    assert expected.starts == {1: 10.0, 2: 10.0, 3: 40.0}
    assert expected.ends == {1: 40.0, 2: 60.0, 3: 45.0}
    assert expected.empty == 60.0


def test_running_jobs_count_until_their_expected_end() -> None:
    """Running jobs are part of the forecast."""
    expected = forecast_of(a_job(3, limit=5.0), slots=[slot(1, "0", until=100.0), slot(2, "1", until=70.0)])
    assert expected.starts == {3: 70.0}
    assert expected.ends == {1: 100.0, 2: 70.0, 3: 75.0}


def test_no_forecast_behind_jobs_of_unknown_length() -> None:
    """A job behind others of unknown length has no expected start, and the queue no expected end."""
    expected = forecast_of(a_job(3, limit=5.0), slots=[slot(1, "0"), slot(2, "1")])
    assert expected == Forecast()


def test_no_end_of_the_queue_behind_a_lease_of_others() -> None:
    """A job that waits for the lease of another engine may start at any time, so the queue has no expected end."""
    now = Now(a_queue(a_job(3, limit=5.0)), [slot(1, "1", until=30.0)], TWO, [a_lease("0")], Policy(), 10.0)
    wide = Now(a_queue(a_job(3, a_need(2), limit=5.0)), now.slots, TWO, now.leases, Policy(), 10.0)
    assert (forecast(now, limit_of).empty, forecast(wide, limit_of).empty) == (35.0, None)


def test_a_start_is_forecast_where_only_the_end_is_unknown() -> None:
    """A job without a limit starts when it is its turn."""
    expected = forecast_of(a_job(3), slots=[slot(1, "0", until=30.0), slot(2, "1")])
    assert (expected.starts, expected.ends, expected.empty) == ({3: 30.0}, {1: 30.0}, None)


def test_the_end_of_an_overdue_job_is_unknown() -> None:
    """Its end is unknown; for the jobs behind it, it is late by as much again, as for the plan."""
    expected = forecast_of(a_job(3), slots=[slot(1, "0", until=4.0), slot(2, "1")])
    assert (expected.starts, expected.ends) == ({3: 16.0}, {})


def test_a_wide_job_gets_the_moment_it_is_kept_free_for() -> None:
    """Small ones that would delay it come after it."""
    wide, small = a_job(2, a_need(2), limit=10.0), a_job(3, limit=100.0)
    expected = forecast_of(wide, small, slots=[slot(1, "0", until=50.0)])
    assert expected.starts == {2: 50.0, 3: 60.0}


def test_the_horizon_limits_the_forecast() -> None:
    """A long queue costs no more than the horizon; its end follows from the remaining work."""
    jobs = [a_job(number, limit=10.0) for number in range(1, 101)]
    expected = forecast_of(*jobs, horizon=8)
    assert len(expected.starts) == 8
    assert expected.empty == 10.0 + 100 * 10.0 / 2


def test_foreign_processes_and_leases_of_others_stay() -> None:
    """The end of foreign processes and leases is unknown, so jobs that wait for them have no forecast."""
    snapshot = a_snapshot(simulated(24, 24), gpu1=a_reading(5.0, "bob"))
    now = Now(a_queue(a_job(3)), [slot(1, "0", until=30.0)], snapshot, [a_lease("0")], Policy(), 10.0)
    assert forecast(now, limit_of).starts == {}


def test_devices_that_our_jobs_leave_count_as_empty() -> None:
    """The memory of a job that has ended by then is free."""
    snapshot = a_snapshot(simulated(24), gpu0=a_reading(20.0, "me"))
    job = a_job(3, a_need(gib=10))
    now = Now(a_queue(job), [slot(1, "0", resources=a_need(gib=20), until=30.0)], snapshot, [], Policy(), 10.0)
    assert job.spec.resources.memory == 10 * GIB
    assert forecast(now, limit_of).starts == {3: 30.0}


@given(st.lists(st.tuples(st.integers(1, 2), st.floats(1.0, 100.0)), min_size=1, max_size=12))
def test_no_device_is_given_to_two_at_a_time(wanted: list[tuple[int, float]]) -> None:
    """At no time in the forecast are more devices in use than exist."""
    jobs = [a_job(number, a_need(gpus), limit=limit) for number, (gpus, limit) in enumerate(wanted, 1)]
    expected = forecast_of(*jobs)
    assert expected.starts.keys() == {job.id for job in jobs}
    for moment in expected.starts.values():
        running = [job for job in jobs if expected.starts[job.id] <= moment < expected.ends[job.id]]
        assert sum(job.spec.resources.gpus for job in running) <= 2


def test_a_long_queue_is_told_by_how_much_runs_at_once() -> None:
    """Jobs that share GPUs get through a queue faster than one at a time would; one long job does not slow it."""
    jobs = [a_job(number, a_need(gib=8), limit=10.0) for number in range(2, 302)]
    long = slot(1, "0", resources=a_need(gib=8), until=10.0 + 90.0)
    now = Now(a_queue(*jobs), [long], a_snapshot(simulated(24, 24)), [], Policy(reserve=0), 10.0)
    expected = forecast(now, limit_of, horizon=60)
    assert expected.empty is not None
    assert 300 * 10 / 6 < expected.empty - 10.0 < 300 * 10 / 5 + 30


def test_work_of_unknown_length_may_be_taken_to_be_typical() -> None:
    """The end of all is then a guess, and so are starts; no end is told of a job that nobody knows."""
    now = Now(a_queue(a_job(3), a_job(4, limit=5.0)), [slot(1, "0"), slot(2, "1", until=12.0)], TWO, [], AGE, 10.0)
    expected = forecast(now, limit_of, typical=20.0)
    assert expected.starts == {3: 12.0, 4: 30.0}
    assert expected.ends == {2: 12.0, 4: 35.0}
    assert expected.empty == 35.0


def test_a_forecast_names_the_devices() -> None:
    """Those of the plan at the expected start; a running job stays where it is."""
    expected = forecast_of(a_job(2, limit=50), a_job(3, limit=50), slots=[slot(1, "0", until=100)])
    assert expected.places == {2: ("1",), 3: ("1",)}
    assert expected.starts == {2: 10.0, 3: 60.0}
