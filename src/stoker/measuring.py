"""Measures what our attempts use of their GPUs, from what the devices show of processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from stoker.backends.local import LocalBackend
from stoker.backends.processes import parent_of
from stoker.core.attempt import attempt_key
from stoker.core.device import Device, Process, Reading, Snapshot
from stoker.core.job import Job, Placed, Running
from stoker.core.use import Live, Use, reached, seen
from stoker.posts import Post, Posts
from stoker.roster import Roster
from stoker.store import Store

YOUNG = 3.0
"""Seconds for which an attempt is young: much happens to its memory..."""
YOUNG_INTERVAL = 0.25
"""... and it is looked at so often."""
KEEP_INTERVAL = 60.0
"""Seconds after which what was seen of a running attempt is written down, lest an engine's death costs more of it."""
_LATE = 3.0
"""Seconds for which the driver's account of an attempt that is over is waited for."""
_DEEPEST = 64
"""Parents of a process that are asked for until nobody is believed to be among them."""


class Watched(Struct):
    """What is known of one attempt."""

    job: Job
    number: int
    devices: tuple[Device, ...]
    use: Use
    log: str = ""
    memory: int = 0
    pids: set[int] = field(default_factory=set)
    kept: float = 0.0
    ended: float | None = None
    company: bool = False


class Measuring:
    """The attempts that are watched: those that run, and those that ended without the driver's last word on them."""

    def __init__(self, posts: Posts, backend: LocalBackend, roster: Roster, store: Store) -> None:
        self._posts = posts
        self._backend = backend
        self._roster = roster
        self._store = store
        self._watched: dict[str, Watched] = {}
        self._late: list[Watched] = []
        self._seen_at = 0.0
        self._keepers: dict[int, str] = {}
        """Process -> the keeper that it comes from, empty where from none of ours."""

    def interval(self, now: float, usual: float) -> float:
        """Seconds until somebody should look again."""
        young = (post.jobs and post.measured and now - post.head_since < YOUNG for post in self._posts)
        return min(YOUNG_INTERVAL, usual) if any(young) else usual

    def look(self, snapshot: Snapshot, now: float) -> None:
        """Take in what the devices show of our attempts, if that is newer than the last."""
        if snapshot.at <= self._seen_at:
            return
        self._seen_at = snapshot.at
        self._identify(snapshot)
        heads = [(post, self._roster.active(post.jobs[0])) for post in self._posts if post.jobs and post.measured]
        for post, job in heads:
            if job is not None:
                self._look_at(post, job, snapshot, now)
        running = {attempt_key(job.id, job.attempts) for _, job in heads if job is not None}
        self._watched = {key: one for key, one in self._watched.items() if key in running}  # without those lost

    def live(self) -> dict[int, Live]:
        """What the running attempts hold, by job."""
        return {one.job.id: Live(one.memory, one.use.peak, one.use.utilisation) for one in self._watched.values()}

    def peak(self, job: Job) -> int | None:
        """The most that a running attempt held so far, where it was seen at all."""
        watched = self._watched.get(attempt_key(job.id, job.attempts))
        return watched.use.peak or None if watched is not None else None

    def processes(self, job: Job) -> set[int]:
        """The processes of a running attempt that were seen on its GPUs, and its first one."""
        watched = self._watched.get(attempt_key(job.id, job.attempts))
        return watched.pids if watched is not None else set()

    def end(self, job: Job, after: Job, company: bool, now: float) -> None:
        """An attempt is over; what was seen of it is told once the driver had the time to say its last word."""
        watched = self._watched.pop(attempt_key(job.id, job.attempts), None)
        if watched is not None:
            watched.job, watched.ended, watched.company = after, now, company
            self._late.append(watched)

    def finished(self, snapshot: Snapshot, now: float) -> Iterator[Watched]:
        """The attempts that are over and of which no more will be heard; each is told once."""
        late, self._late = self._late, []
        for one in late:
            assert one.ended is not None
            accounts = [snapshot.reading(device.id).accounts for device in one.devices]
            if snapshot.at > one.ended:
                self._account(one, snapshot)
            elif any(account is not None for account in accounts) and now - one.ended < _LATE:
                self._late.append(one)
                continue
            yield one

    def left(self) -> list[Watched]:
        """The attempts that are over, whether or not more could be heard of them."""
        late, self._late = self._late, []
        return late

    def overdue(self, now: float) -> Iterator[Watched]:
        """Running attempts of which nothing was written down for a while."""
        for one in self._watched.values():
            if now - one.kept >= KEEP_INTERVAL and one.use.looks:
                one.kept = now
                yield one

    def _look_at(self, post: Post, job: Job, snapshot: Snapshot, now: float) -> None:
        if not isinstance(job.state, Running):
            return
        one = self._watch(post, job, now)
        shown = [(device, snapshot.reading(device.id)) for device in post.devices]
        if any(reading.problem for _, reading in shown):
            return
        held = [self._held(post, reading, one) for _, reading in shown]
        loads = [reading.utilisation for _, reading in shown if reading.utilisation is not None]
        utilisation = round(sum(loads) / len(loads)) if loads and not post.company else None
        one.memory = max(held, default=0)
        one.use = seen(one.use, max(0.0, now - job.state.since), one.memory, utilisation)
        self._account(one, snapshot)

    def _watch(self, post: Post, job: Job, now: float) -> Watched:
        """What is known of an attempt; another engine may have begun to measure it."""
        key = attempt_key(job.id, job.attempts)
        if key not in self._watched:
            use = self._store.uses(job.id).get(job.attempts, Use()) if post.adopted else Use()
            log = job.state.log if isinstance(job.state, Placed) else ""
            self._watched[key] = Watched(job, job.attempts, post.devices, use, log, kept=now)
            if born := self._backend.process_of(post.keeper, key):
                self._watched[key].pids.add(born)
        return self._watched[key]

    def _held(self, post: Post, reading: Reading, one: Watched) -> int:
        """Bytes that an attempt holds on a device: what its processes hold, else all of it where it is alone there."""
        ours = [process for process in reading.processes if self._keepers.get(process.pid) == post.keeper]
        one.pids.update(process.pid for process in ours)
        if any(process.memory is None for process in ours) or (not ours and _is_silent(reading)):
            return 0 if post.company else reading.used or 0
        return sum(process.memory or 0 for process in ours)

    def _account(self, one: Watched, snapshot: Snapshot) -> None:
        """Peaks as the driver kept them: of processes that run together all of them, of others the largest."""
        for device in one.devices:
            accounts = [each for each in snapshot.reading(device.id).accounts or () if each.pid in one.pids]
            together = sum(account.peak for account in accounts if account.running)
            one.use = reached(one.use, max([together, *(account.peak for account in accounts)]))

    def _identify(self, snapshot: Snapshot) -> None:
        """Find the keeper of every process that was not there before; the numbers of those that left are void."""
        roots = {root: post.keeper for post in self._posts if (root := self._backend.root_of(post.keeper))}
        shown = {process.pid for process in _processes(snapshot)}
        known = {pid: keeper for pid, keeper in self._keepers.items() if pid in shown and keeper}
        self._keepers = known | {pid: _keeper_of(pid, roots) for pid in shown - known.keys()}


def _processes(snapshot: Snapshot) -> Iterable[Process]:
    return (process for reading in snapshot.readings.values() for process in reading.processes)


def _is_silent(reading: Reading) -> bool:
    """Whether the driver does not list who is there, though somebody is."""
    return not reading.processes and bool(reading.used)


def _keeper_of(pid: int, roots: dict[int, str]) -> str:
    for _ in range(_DEEPEST):
        if pid in roots:
            return roots[pid]
        parent = parent_of(pid)
        if not parent:
            return ""
        pid = parent
    return ""
