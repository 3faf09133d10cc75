"""Room behind running attempts, where the next jobs wait so that a slot never stands idle."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from stoker.core.fit import suits
from stoker.core.occupancy import Occupancy, Slot
from stoker.core.reasons import Drained, Unusable
from stoker.core.terms import Need
from stoker.core.waiting import Cap


class HandOver:
    """Gives room out evenly, and none on a device that an earlier job waits for.

    That keeps the order of the queue: whoever is handed over has the device before anybody else can.
    """

    def __init__(self, slots: Sequence[Slot], occupancy: Occupancy) -> None:
        self._occupancy = occupancy
        self._wanted: set[str] = set()
        self._roomy: dict[tuple[Need, tuple[Cap, ...]], list[tuple[int, int, Slot]]] = {}
        sound = {view.device.id for view in occupancy.views if not isinstance(view.closed, Unusable | Drained)}
        for index, slot in enumerate(slots):
            if slot.room > 0 and sound.issuperset(slot.devices):
                self._roomy.setdefault((slot.need, slot.caps), []).append((-slot.room, index, slot))
        for line in self._roomy.values():
            heapify(line)

    def take(self, need: Need, caps: tuple[Cap, ...]) -> Slot | None:
        """The slot with the most room left among those that run the very same need.

        What counts for the same limits runs after the other, never beside it, so that no limit speaks.
        """
        line = self._roomy.get((need, caps), [])
        while line and not self._wanted.isdisjoint(line[0][2].devices):
            heappop(line)
        if not line:
            return None
        minus_room, index, slot = line[0]
        if minus_room == -1:
            heappop(line)
        else:
            heapreplace(line, (minus_room + 1, index, slot))
        return slot

    def close_all(self) -> None:
        """Keep later jobs from every slot."""
        self._roomy.clear()

    def close(self, need: Need) -> None:
        """Keep later jobs from every device that one with this need waits for."""
        if need.gpus:
            self._wanted.update(view.device.id for view in self._occupancy.views if suits(view.device, need))
