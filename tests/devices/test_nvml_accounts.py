"""What is asked of the driver's accounting, and what is kept of its answers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pynvml
import pytest

from stoker.core.device import Account
from stoker.devices.nvml_probe import AccountBook
from support.nvml import (
    GIB,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    Bench,
    FakeAccount,
    FakeGpu,
    FakeMachine,
    FakeProcess,
    compiled,
    driver_of,
)

ME = os.getpid()
GONE = 1_000_000_000
"""Larger than any PID that Linux gives out."""
STATS = "nvmlDeviceGetAccountingStats"


@pytest.fixture
def driver(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    bench = Bench(compiled(tmp_path_factory.getbasetemp()), tmp_path / "state")
    with driver_of(bench, monkeypatch) as driver:
        yield driver


@pytest.fixture
def book() -> AccountBook:
    return AccountBook()


def machine(
    *accounts: FakeAccount,
    running: tuple[FakeProcess, ...] = (),
    on: bool = True,
    faults: Mapping[str, int] | None = None,
) -> FakeMachine:
    """A machine of one GPU with such accounts and processes."""
    room = 4000 if on else 0
    return FakeMachine((FakeGpu("GPU-1", accounting=room, accounts=accounts, processes=running, faults=faults or {}),))


def read(book: AccountBook, now: float = 0.0, running: tuple[int, ...] = ()) -> tuple[Account, ...] | None:
    return book.read(pynvml.nvmlDeviceGetHandleByIndex(0), running, now)


def test_accounting_that_is_off_is_none(driver: Bench, book: AccountBook) -> None:
    """Accounting that is off differs from accounting without processes."""
    driver.write(machine(on=False))
    assert read(book) is None
    driver.write(machine())
    assert read(book, 30) == ()


@pytest.mark.parametrize("symbol", ["Mode", "Pids"])
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
def test_accounting_that_may_not_be_asked_is_none(driver: Bench, book: AccountBook, symbol: str, code: int) -> None:
    """What is not supported or not permitted is as if it were off."""
    driver.write(machine(running=(FakeProcess(ME, GIB),), faults={f"nvmlDeviceGetAccounting{symbol}": code}))
    assert read(book, running=(ME,)) is None


def test_trouble_is_not_hidden(driver: Bench, book: AccountBook) -> None:
    """An error that means more than a missing value is raised, so that the GPU gets a problem."""
    driver.write(machine(running=(FakeProcess(ME, GIB),), faults={STATS: GPU_IS_LOST}))
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        read(book, running=(ME,))


def test_the_mode_is_asked_twice_a_minute(driver: Bench, book: AccountBook) -> None:
    """Accounting that is switched on is noticed within half a minute, and at once when it is switched off."""
    driver.write(machine(on=False))
    assert read(book, 100) is None
    driver.write(machine())
    assert read(book, 129) is None
    assert read(book, 130) == ()
    driver.write(machine(on=False))
    assert read(book, 131) is None


def test_a_clock_that_is_set_back_does_not_stop_the_question(driver: Bench, book: AccountBook) -> None:
    """The mode is asked again although the time of day jumped to the past."""
    driver.write(machine(on=False))
    assert read(book, 10_000) is None
    driver.write(machine())
    assert read(book, 100) == ()


def test_who_runs_has_an_account(driver: Bench, book: AccountBook) -> None:
    """A process on the GPU has its peak and mean utilisation from the first reading on."""
    driver.write(machine(running=(FakeProcess(ME, GIB, load=40),)))
    assert read(book, running=(ME,)) == (Account(ME, GIB, 40, True),)


def test_utilisation_may_be_unknown(driver: Bench, book: AccountBook) -> None:
    """Where the driver has no mean of the utilisation it is None; without a peak there is no account at all."""
    driver.write(machine(FakeAccount(ME, GIB, utilisation=0xFFFFFFFF), FakeAccount(1, 2**64 - 1)))
    assert read(book, running=(ME, 1)) == (Account(ME, GIB, None, True),)


def test_nobody_asks_for_the_long_gone(driver: Bench, book: AccountBook) -> None:
    """Of thousands of old processes none is asked for, neither at the first reading nor later."""
    old = tuple(FakeAccount(GONE + index, GIB) for index in range(4000))
    driver.write(machine(*old, faults={STATS: UNKNOWN}))
    assert read(book, 0) == read(book, 1) == ()


def test_an_end_is_told_for_a_minute(driver: Bench, book: AccountBook) -> None:
    """The account of a process that ran at the last reading is kept with its last peak for a minute."""
    ghost = FakeProcess(GONE, GIB, ghost=True)
    driver.write(machine(running=(ghost,)))
    assert read(book, 0, (GONE,)) == (Account(GONE, GIB, 0, True),)
    driver.write(machine(FakeAccount(GONE, 7 * GIB, utilisation=55)))
    last = (Account(GONE, 7 * GIB, 55, False),)
    assert read(book, 10) == last
    driver.write(machine(FakeAccount(GONE, 7 * GIB), faults={STATS: UNKNOWN}))
    assert read(book, 70) == last
    assert read(book, 71) == ()


def test_who_came_and_went_between_two_looks_is_told(driver: Bench, book: AccountBook) -> None:
    """A short job between two readings is found by its account."""
    old = FakeAccount(GONE, GIB)
    driver.write(machine(old))
    assert read(book, 0) == ()
    driver.write(machine(old, FakeAccount(GONE + 1, 3 * GIB)))
    assert read(book, 1) == (Account(GONE + 1, 3 * GIB, 0, False),)


def test_a_number_that_comes_again_is_a_new_process(driver: Bench, book: AccountBook) -> None:
    """Once a PID runs again, what was kept of its earlier process is forgotten."""
    driver.write(machine())
    read(book, 0)
    driver.write(machine(FakeAccount(GONE, 9 * GIB)))
    assert read(book, 1) == (Account(GONE, 9 * GIB, 0, False),)
    driver.write(machine(FakeAccount(GONE, 9 * GIB), running=(FakeProcess(GONE, GIB, ghost=True),)))
    assert read(book, 2, (GONE,)) == (Account(GONE, GIB, 0, True),)
