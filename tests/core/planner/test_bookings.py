"""Devices that other users have booked: who may still start there, and what the forecast says."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.core.booking import FARTHEST_SECONDS, MOST_OF_ONE_USER, Booking, standing
from stoker.core.job import limit_of
from stoker.core.planner.displacement import Handover
from stoker.core.planner.forecast import Now, forecast
from stoker.core.planner.occupancy import Preemption
from stoker.core.planner.plan import Plan, plan
from stoker.core.planner.queue import WaitingJobs
from stoker.core.planner.reasons import Booked, KeptFree
from stoker.core.settings import Policy
from stoker.core.spec import JobSpec
from stoker.core.units import DAY
from support.build import a_job, a_need, a_queue, a_snapshot, declared, slot, where

NOW = 1000.0
ONE = a_snapshot(declared("0"), at=NOW)
TWO = a_snapshot(declared("0", "1"), at=NOW)


def booking(*names: str, since: float = NOW + 600.0, until: float = NOW + 1600.0, uid: int = 7) -> Booking:
    return Booking("bob", uid, names, since, until, "deadline")


def planned(queue: WaitingJobs, *bookings: Booking, **more: object) -> Plan:
    """The plan on two devices."""
    return plan(queue, [], TWO, [], Policy(), NOW, bookings=bookings, **more)  # type: ignore[arg-type]


def test_jobs_that_end_before_a_booking_start() -> None:
    """By their limit; others take the other device, or wait."""
    queue = a_queue(a_job(1, limit=599.0), a_job(2, limit=601.0), a_job(3, limit=601.0))
    decided = planned(queue, booking("0"))
    assert where(decided) == {1: "0", 2: "1"} or where(decided) == {1: "1", 2: "0"} or len(where(decided)) == 2
    assert where(planned(a_queue(a_job(2, limit=601.0), a_job(3, limit=601.0)), booking("0"))) == {2: "1"}


def test_the_reason_names_the_booking() -> None:
    """And whether the job could have told its duration."""
    limited, unknown = a_job(1, limit=5000.0), a_job(2)
    expected = Booked("0", "bob", NOW + 600.0, NOW + 1600.0, "deadline", later=True)
    both = [booking("0"), booking("1")]
    assert planned(a_queue(limited), *both).reason(limited) == expected
    assert planned(a_queue(unknown), *both).reason(unknown) == replace(expected, unlimited=True)


def test_a_job_of_unknown_duration_counts_as_a_day() -> None:
    """A booking in the far future keeps no device idle."""
    assert where(planned(a_queue(a_job(1)), booking("0", "1", since=NOW + DAY, until=NOW + 2 * DAY))) == {1: "0"}
    soon = booking("0", "1", since=NOW + DAY - 1, until=NOW + 2 * DAY)
    assert where(planned(a_queue(a_job(1)), soon)) == {}


def test_learnt_durations_count_with_a_margin() -> None:
    """Twice as long and a minute more, but no longer than the limit."""
    for expected, limit, starts in ((269.0, None, True), (271.0, None, False), (271.0, 590.0, True)):
        job = a_job(1, limit=limit)
        decided = planned(a_queue(job), booking("0", "1"), expects=lambda job, seconds=expected: seconds)
        assert bool(decided.starts) is starts


def test_a_shorter_job_of_the_same_lane_passes() -> None:
    """The first job of a lane is too long; the plan looks for one that is not."""
    jobs = [replace(a_job(number, limit=limit), kind="") for number, limit in ((1, 5000.0), (2, 5000.0), (3, 100.0))]
    decided = plan(a_queue(*jobs), [], ONE, [], Policy(order="age"), NOW, bookings=[booking("0")])
    assert where(decided) == {3: "0"}


def test_a_preemptible_job_starts_if_it_can_run_for_a_while() -> None:
    """It leaves in time: five minutes and the time to save are enough."""
    for since, starts in ((NOW + 430.0, {1: "0"}), (NOW + 410.0, {})):
        job = a_job(1, limit=9000.0, spec=JobSpec(a_need(), limit=9000.0, preemptible="save", save_time=120.0))
        assert where(planned(a_queue(job), booking("0", "1", since=since, until=since + 600.0))) == starts


def test_no_job_starts_during_a_booking() -> None:
    """However short it is; the reason is the booking."""
    job = a_job(1, limit=1.0)
    begun = booking("0", "1", since=NOW, until=NOW + 60.0)
    decided = planned(a_queue(job), begun)
    assert not decided.starts
    assert decided.reason(job) == Booked("0", "bob", NOW, NOW + 60.0, "deadline")
    assert where(planned(a_queue(job), replace(begun, since=NOW - 60.0, until=NOW))) == {1: "0"}


def test_no_job_leaves_for_one_that_meets_a_booking() -> None:
    """Nothing is displaced or kept for a job on a device that is booked."""
    long = replace(slot(9, "0", since=NOW - 90_000.0), preemption=Preemption("save", remaining=90_000.0))
    job = a_job(1, limit=300.0)
    for rivals, victims in (([], 1), ([booking("0", since=NOW - 1.0)], 0), ([booking("0", since=NOW + 200.0)], 0)):
        decided = plan(a_queue(job), [long], ONE, [], Policy(), NOW, bookings=rivals)
        assert len(decided.displacements) == victims
    kept = plan(
        a_queue(job),
        [long],
        ONE,
        [],
        Policy(),
        NOW,
        handovers=[Handover(1, ("0",))],
        bookings=[booking("0", since=NOW)],
    )
    assert kept.handovers == ()


def test_the_reservation_looks_past_bookings() -> None:
    """A job too long for the time before a booking keeps no device that a shorter one can use until then."""
    running = [slot(8, "0", until=NOW + 100.0, since=NOW - 10.0)]
    long, short = a_job(1, limit=5000.0), a_job(2, limit=90.0)
    decided = plan(a_queue(long, short), running, ONE, [], Policy(order="age"), NOW, bookings=[booking("0")])
    assert decided.reserved is not None
    assert decided.reserved.moment == NOW + 1600.0
    assert not isinstance(decided.reason(short), KeptFree)


def test_the_forecast_goes_past_a_booking() -> None:
    """A job that does not end before the booking starts at its end."""
    queue = a_queue(a_job(1, limit=700.0), a_job(2, limit=500.0))
    now = Now(queue, [], ONE, [], Policy(order="age"), NOW, bookings=[booking("0")])
    assert forecast(now, limit_of).starts == {2: NOW, 1: NOW + 1600.0}


def test_of_bookings_that_meet_the_older_one_stands() -> None:
    """All engines find the same ones, from the files alone."""
    first, second = replace(booking("0", "1"), made=5.0), replace(booking("1", "2", uid=8), made=6.0)
    third = replace(booking("2", uid=8), made=7.0)
    assert standing({"b": first, "a": second, "c": third}, NOW) == {"b": first, "c": third}
    assert standing({"a": replace(second, made=5.0), "b": first}, NOW).keys() == {"a"}
    assert standing({"b": first}, first.until) == {}


def test_one_user_books_so_much_and_so_far() -> None:
    """Further bookings of the same user do not count."""
    many = {f"{number:03}": booking(str(number)) for number in range(100)}
    assert len(standing(many, NOW)) == MOST_OF_ONE_USER
    far = booking("0", since=NOW + FARTHEST_SECONDS + 1.0, until=NOW + FARTHEST_SECONDS + 2.0)
    assert standing({"a": replace(far, made=NOW)}, NOW) == {}
