"""An attempt on the virtual machine: how far it got, how fast it goes, and what it holds."""

from __future__ import annotations

from stoker.core.job import Job
from stoker.core.plan import Start
from stoker.core.replay.work import YOUNG_SHARE, Work, ripens_after


class Run:
    """An attempt under way. Its progress is brought up to date whenever its speed changes, and only then."""

    __slots__ = (
        "company", "devices", "held", "job", "left", "left_when_ripe", "need", "since", "speed", "started", "until",
        "work",
    )  # fmt: skip

    def __init__(self, work: Work, job: Job, start: Start, now: float, seconds: float | None) -> None:
        """`seconds` is how long somebody who plans believes that it takes."""
        self.work = work
        self.job = job
        self.devices = start.devices
        self.need = start.need
        self.started = now
        self.until = None if seconds is None else now + seconds
        self.company = False
        """Whether somebody else was on its devices at any time."""
        self.held = int(YOUNG_SHARE * work.peak)
        """Bytes on each device."""
        self.speed = 1.0
        self.since = now
        self.left = work.seconds
        """Seconds that it would take alone, from `since` on."""
        self.left_when_ripe = work.seconds - ripens_after(work)
        """The same at the moment when it takes all its memory; 0 once it has."""

    @property
    def due(self) -> float:
        """When the next thing happens to it, if its company stays."""
        return self.since + max(0.0, self.left - self.left_when_ripe) / self.speed

    @property
    def wanted(self) -> int:
        """Bytes on each device when it has taken all."""
        return int(self.work.peak * self.work.swell) if self.company else self.work.peak

    @property
    def is_ripe(self) -> bool:
        """Whether it has taken all its memory."""
        return not self.left_when_ripe

    def proceed(self, now: float) -> None:
        """Note how far it got."""
        self.left -= (now - self.since) * self.speed
        self.since = now

    def change_speed(self, speed: float, now: float) -> None:
        """Go on at another speed."""
        if speed != self.speed:
            self.proceed(now)
            self.speed = speed

    def ripen(self) -> None:
        """Take all the memory that it needs."""
        self.held = self.wanted
        self.left_when_ripe = 0.0
