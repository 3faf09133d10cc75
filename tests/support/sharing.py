"""A machine that several users want, in simulated time: engines that know of each other only by their wants."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from stoker.core.planner.fairshare import Demand, Offers, decayed, demands_ahead, usage_of, yield_devices

TICK = 0.05
LOOK_INTERVAL = 0.25


@dataclass
class Waiter:
    """One user's engine: job lengths to run one after the other, and what it ran so far."""

    uid: int
    lengths: list[float]
    stuck: bool = False
    runs: list[tuple[int, float, float]] = field(default_factory=list)
    offers: Offers = field(default_factory=dict)
    look_at: float = 0.0
    _counted: int = 0
    _usage: float = 0.0
    _usage_at: float = 0.0

    @property
    def name(self) -> str:
        """The name of its want."""
        return f"{self.uid}.demand"

    def demand(self, now: float, devices: int) -> Demand:
        """What it tells the others."""
        gpus = min(len(self.lengths), devices)
        return Demand(self.uid, f"user {self.uid}", self._used(now), since=0.0, gpus=gpus)

    def served(self, start: float, end: float) -> float:
        """GPU-seconds between two moments."""
        return sum(max(0.0, min(ended, end) - max(began, start)) for _, began, ended in self.runs)

    def _used(self, now: float) -> float:
        """All that was used; what is long over is kept as one number that ages."""
        self._usage, self._usage_at = decayed(self._usage, now - self._usage_at), now
        while self._counted < len(self.runs) and self.runs[self._counted][2] <= now:
            self._usage += usage_of([self.runs[self._counted]], now)
            self._counted += 1
        return self._usage + usage_of(self.runs[self._counted :], now)


@dataclass
class Machine:
    """Devices, who holds each and until when, and what everybody said last."""

    waiters: list[Waiter]
    devices: int
    random: Random
    now: float = 0.0
    held: dict[str, tuple[Waiter, float]] = field(default_factory=dict)
    told: dict[str, Demand] = field(default_factory=dict)

    def tick(self) -> None:
        """Let a moment pass: attempts end, and engines look in no particular order when it is their time."""
        self.now += TICK
        ended = [device for device, (_, until) in self.held.items() if until <= self.now]
        for device in ended:
            waiter, _ = self.held.pop(device)
            waiter.look_at = self.now
        for waiter in self.random.sample(self.waiters, len(self.waiters)):
            if waiter.look_at <= self.now and not waiter.stuck:
                waiter.look_at = self.now + LOOK_INTERVAL
                self._look(waiter)

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end = self.now + seconds
        while self.now < end:
            self.tick()

    def run_while_all_wait(self) -> None:
        """Let time pass until somebody has nothing more to start."""
        while all(waiter.lengths for waiter in self.waiters):
            self.tick()

    def _look(self, waiter: Waiter) -> None:
        self.told.pop(waiter.name, None)
        if not waiter.lengths:
            return
        demand = waiter.demand(self.now, self.devices)
        free = [device for device in map(str, range(self.devices)) if device not in self.held]
        step = yield_devices(demands_ahead(self.told, waiter.name, demand), free, waiter.offers, self.now)
        waiter.offers = step.offers
        for device in free:
            if device not in step.left and waiter.lengths:
                length = waiter.lengths.pop()
                self.held[device] = (waiter, self.now + length)
                waiter.runs.append((1, self.now, self.now + length))
        if waiter.lengths:
            self.told[waiter.name] = demand
