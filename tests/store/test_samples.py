"""Samples of GPUs in the store."""

from __future__ import annotations

from stoker.store.samples import KEPT_MINUTES, Sample, samples_between
from stoker.store.writer import Store

FIRST = 30_000_000
SECONDS = FIRST * 60.0


def a_sample(minute: int = 0, device: str = "GPU-0", load: int | None = 50, reserved: int = 7) -> Sample:
    return Sample(FIRST + minute, device, load, 5, reserved, 60, 200.0)


def write(store: Store, *samples: Sample) -> None:
    store.record([], samples=samples)


def test_samples_are_read_by_period(store: Store) -> None:
    """Oldest first, all devices."""
    write(store, a_sample(1), a_sample(0, "GPU-1"), a_sample(0), a_sample(9))
    assert samples_between(store, SECONDS, SECONDS + 119) == [a_sample(0), a_sample(0, "GPU-1"), a_sample(1)]


def test_long_periods_have_fewer_points(store: Store) -> None:
    """Of each step the mean load and the largest memory; what is unknown does not count."""
    write(store, a_sample(0, load=10, reserved=3), a_sample(1, load=20, reserved=9), a_sample(2, load=None))
    one, other = samples_between(store, SECONDS, SECONDS + 600, step=2)
    assert one == a_sample(0, load=15, reserved=9)
    assert other == a_sample(2, load=None)


def test_two_engines_see_the_same_gpu(store: Store) -> None:
    """Each knows only what it reserved itself, and an unknown load replaces no known one."""
    write(store, a_sample(load=80, reserved=6))
    write(store, a_sample(load=None, reserved=0))
    assert samples_between(store, SECONDS, SECONDS) == [a_sample(load=80, reserved=6)]


def test_old_samples_are_deleted(store: Store) -> None:
    """With the write of new ones."""
    write(store, *(a_sample(minute) for minute in range(3)))
    write(store, a_sample(KEPT_MINUTES + 2))
    assert [one.minute - FIRST for one in samples_between(store, 0, 2 * SECONDS)] == [2, KEPT_MINUTES + 2]
