"""Foreign processes that only hold memory."""

from __future__ import annotations

from stoker.core.device import Process, Reading, Snapshot
from stoker.sites.machine.strangers import AFTER_JOBS, SAME_BYTES, StillProcesses
from support.build import GIB, simulated

CARD = simulated(24)


class Watch:
    """Looks at a card with processes, one second after the other."""

    def __init__(self) -> None:
        self._still = StillProcesses()
        self.at = 100.0

    def since(self, *processes: Process, busy: int | None = 0, leased: bool = False, seconds: float = 1.0) -> object:
        """Since when they are still, as the next look says."""
        self.at += seconds
        snapshot = Snapshot(self.at, CARD, {"0": Reading(GIB, busy, processes=processes)})
        return self._still.marked(snapshot, CARD[0].claims if leased else ()).reading("0").still_since


BOB = Process(7, GIB, "bob")


def test_a_process_is_still_from_its_first_look() -> None:
    """As long as its memory and the utilisation do not change much."""
    watch = Watch()
    first = watch.since(BOB)
    assert first == watch.at
    assert watch.since(Process(7, GIB + SAME_BYTES, "bob"), busy=5) == first
    assert watch.since(Process(7, GIB + SAME_BYTES + 1, "bob")) == watch.at


def test_all_of_them_count() -> None:
    """The last that came or moved; one of unknown memory is never still, one that draws does not matter."""
    watch = Watch()
    first = watch.since(BOB, Process(9, None, "gdm", graphics=True))
    assert watch.since(BOB, Process(8, GIB, "carol")) == watch.at
    assert watch.since(BOB) == first
    assert watch.since(BOB, Process(8, None, "carol")) is None
    assert watch.since() is None


def test_a_process_that_computes_is_not_still() -> None:
    """Nor one on a card whose utilisation is unknown."""
    watch = Watch()
    watch.since(BOB)
    assert watch.since(BOB, busy=6) == watch.at
    assert watch.since(BOB, busy=None) == watch.at


def test_jobs_on_the_card_say_nothing_of_it() -> None:
    """While they run, and a moment longer."""
    watch = Watch()
    first = watch.since(BOB)
    assert watch.since(BOB, busy=100, leased=True) == first
    assert watch.since(BOB, busy=100) == first
    assert watch.since(BOB, busy=100, seconds=AFTER_JOBS) == watch.at
