"""Count how the jobs of a run ended and how long GPUs were busy."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct, field

from stoker.core.errors import UsageError
from stoker.core.job import Ended, Exited, Job, JobEvent, Lost, Started
from stoker.core.outcomes import Result

KEPT_FAILURES = 1000


class BusyTime:
    """Time in which devices were busy, counted once however many attempts shared one; takes events in their order."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """Summed over all devices."""
        self._since: dict[str, float] = {}
        self._jobs: dict[str, set[int]] = {}

    def note(self, job_event: JobEvent) -> None:
        """Add an event."""
        match job_event.event:
            case Started(at=at):
                self._begin(job_event, at)
            case Exited(at=at) | Lost(at=at) if job_event.started is not None:
                self._begin(job_event, job_event.started)  # an adopted attempt has no event of its start
                self._end(job_event, at)

    def _begin(self, job_event: JobEvent, at: float) -> None:
        for device in job_event.devices:
            self._since[device.id] = min(at, self._since.get(device.id, at))
            self._jobs.setdefault(device.id, set()).add(job_event.job.id)

    def _end(self, job_event: JobEvent, at: float) -> None:
        for device in job_event.devices:
            self._jobs[device.id].discard(job_event.job.id)
            if not self._jobs[device.id]:
                self.seconds += max(0.0, at - self._since.pop(device.id))


class Tally(Struct):
    """Everything a summary needs; of the jobs only those that failed are kept."""

    given: int = 0
    skipped: int = 0
    """Not run because they had succeeded before."""
    elsewhere: int = 0
    """Not run because another run has them."""
    unusable: int = 0
    """Lines that could not become a job."""
    results: Counter[Result] = field(default_factory=Counter)
    retried: int = 0
    gpu_seconds: float = 0.0
    """Summed over all attempts: seconds in which several share a GPU count for each of them."""
    busy: BusyTime = field(default_factory=BusyTime)
    """The time in which each GPU was busy: seconds in which several attempts share it count once."""
    done_seconds: float = 0.0
    """Running time of all attempts that succeeded."""
    failures: list[Job] = field(default_factory=list)
    last_ended: Job | None = None
    expected: int | None = None
    """How many jobs there will be in all, once that is known."""

    @property
    def ended(self) -> int:
        return self.results.total()

    @property
    def failed(self) -> int:
        """Jobs that ended without success, and lines that could not become a job."""
        return self.ended - self.results["done"] + self.unusable

    @property
    def typical_seconds(self) -> float | None:
        """How long a success takes on average, None before the first: failures are often short and tell nothing."""
        return self.done_seconds / done if (done := self.results["done"]) else None

    def note(self, job_event: JobEvent) -> None:
        """Add an event."""
        job = job_event.job
        event = job_event.event
        self.busy.note(job_event)
        if isinstance(event, Exited | Lost):
            ran = 0.0 if job_event.started is None else event.at - job_event.started
            self.gpu_seconds += ran * len(job_event.devices)
            self.done_seconds += ran if isinstance(job.state, Ended) and job.state.result == "done" else 0.0
            self.retried += not isinstance(job.state, Ended)
        if isinstance(job.state, Ended):
            self.results[job.state.result] += 1
            self.last_ended = job
            if job.state.result != "done" and len(self.failures) < KEPT_FAILURES:
                self.failures.append(job)


class Halt(Struct, frozen=True):
    """When to stop early: after a number or a share of failures, successes or ends."""

    now: bool
    why: str
    number: float
    percent: bool

    def reached(self, tally: Tally) -> bool:
        counts = {"fail": tally.failed, "success": tally.results["done"], "done": tally.ended}
        count = counts[self.why]
        if not self.percent:
            return count >= self.number
        return tally.expected is not None and count > 0 and 100 * count >= self.number * tally.expected


def parse_halt(text: str) -> Halt | None:
    """GNU parallel's `now|soon,fail|success|done=N[%]`, or `never`."""
    if text == "never":
        return None
    when, _, rest = text.partition(",")
    why, _, amount = rest.partition("=")
    number = amount.removesuffix("%")
    is_known = when in ("now", "soon") and why in ("fail", "success", "done")
    if not is_known or not number.isdecimal() or not int(number):
        raise UsageError(f"--halt {text!r} is not understood", "write it as soon,fail=1 or now,fail=20%")
    return Halt(when == "now", why, float(number), amount.endswith("%"))
