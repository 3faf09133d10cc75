"""Workers on their devices under leases."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping

from msgspec import Struct, field

from stoker.core.device import Device
from stoker.core.errors import StokerError
from stoker.core.job import Job, Running, limit_of, started_at
from stoker.core.lease import Claim, Lease
from stoker.core.planner.occupancy import Slot, claims_on
from stoker.core.planner.queue import shape_of
from stoker.core.spec import Need
from stoker.ledger import HeldLease, Ledger
from stoker.runner.local import LocalBackend

AHEAD_SECONDS = 0.25
"""How much work is handed over ahead at most, by what attempts took so far..."""

AHEAD_LIMIT = 64
"""... and how many attempts."""

OVERDUE = 0.5
"""Seconds after which what waits behind a running attempt is asked back, since others may be free."""

_WEIGHT_OF_NEWS = 0.2


class Post(Struct):
    """One keeper, the devices it holds, and the jobs it has: the first runs, the others wait behind it."""

    keeper: str
    need: Need
    devices: tuple[Device, ...]
    lease: str = ""
    """Path of the lease, empty where nothing had to be claimed."""
    adopted: bool = False
    """Whether another engine hired the keeper: what it inherited, such as a terminal, is not ours."""
    jobs: deque[int] = field(default_factory=deque)
    head_since: float = 0.0
    company: bool = False
    """Whether somebody else was on its devices at any time since the running attempt began."""
    peak: int = 0
    """The most bytes that the running attempt was seen to hold on one of them."""
    recalled: bool = False
    attended: bool = False
    """Whether the keeper holds what keeps the MPS daemon of its GPU from being stopped."""

    @property
    def device_ids(self) -> tuple[str, ...]:
        """Ids of the devices held."""
        return tuple([device.id for device in self.devices])

    @property
    def claims(self) -> tuple[Claim, ...]:
        """What its lease claims."""
        return _claims(self.devices, self.need)

    @property
    def shares(self) -> bool:
        """Whether its lease leaves room for others, which one on whole cards does not, whatever its need suffers."""
        return any(claim.memory is not None for claim in self.claims)

    @property
    def capacities(self) -> Mapping[str, int | None]:
        """How much memory there is behind each claim."""
        return _capacities(self.devices)

    @property
    def measured(self) -> bool:
        """Whether a driver has to be asked, before the next attempt, if the memory has really been given back."""
        return any(device.measured for device in self.devices)

    def recognise(self, devices: tuple[Device, ...]) -> None:
        """These are the devices of an attempt that another engine began; nobody knows who was there before."""
        self.devices = devices
        self.company = self.company or self.shares

    def suits(self, need: Need, device_ids: tuple[str, ...]) -> bool:
        """Whether the lease held covers another job as it is."""
        return self.device_ids == device_ids and (self.need == need or _claims(self.devices, need) == self.claims)

    def take(self, job: int, now: float) -> None:
        """Another attempt was handed over."""
        if not self.jobs:
            self.head_since, self.company, self.peak = now, False, 0
        self.jobs.append(job)

    def finish(self, job: int, now: float) -> None:
        """An attempt is over or came back."""
        if self.jobs[0] == job:
            self.head_since, self.company, self.peak = now, False, 0
        self.jobs.remove(job)
        if len(self.jobs) <= 1:
            self.recalled = False

    def overdue(self, now: float) -> bool:
        """Whether attempts wait behind one that turned out to be long."""
        return len(self.jobs) > 1 and not self.recalled and now - self.head_since > OVERDUE

    def room(self, pace: float | None, short: float, now: float) -> int:
        """How many more attempts may be handed over ahead, where they take so long and less than that is short."""
        if pace is None or pace > short or self.measured or now - self.head_since > OVERDUE:
            return 0
        depth = min(AHEAD_LIMIT, max(1, int(AHEAD_SECONDS / max(pace, 1e-6))))
        return max(0, depth - (len(self.jobs) - 1))


def _to_nobody(_: Post) -> bool:
    return False


class Posts:
    """All posts of an engine, and the keepers that have none at the moment."""

    def __init__(
        self,
        backend: LocalBackend,
        ledger: Ledger,
        label: str,
        expects: Callable[[Job], float | None] = limit_of,
    ) -> None:
        """`expects` tells how many seconds a job takes."""
        self._backend = backend
        self._expects = expects
        self._ledger = ledger
        self._label = label
        self._posts: dict[str, Post] = {}
        self._idle: list[str] = []
        self._paces: dict[Need, float] = {}

    def __getitem__(self, keeper: str) -> Post:
        return self._posts[keeper]

    def __contains__(self, keeper: str) -> bool:
        return keeper in self._posts

    def __iter__(self) -> Iterator[Post]:
        return iter(self._posts.values())

    @property
    def leases(self) -> set[str]:
        """Names of the leases that are ours."""
        return {post.lease.rpartition("/")[2] for post in self}

    @property
    def adopted(self) -> list[Post]:
        """Those that other engines had opened."""
        return [post for post in self if post.adopted]

    @property
    def ahead(self) -> bool:
        """Whether attempts wait behind others."""
        return any(len(post.jobs) > 1 for post in self)

    def slots(
        self, held: Callable[[int], Job | None], short: float, now: float, promised: Callable[[Post], bool] = _to_nobody
    ) -> list[Slot]:
        """The busy posts as the plan sees them; attempts that take less than `short` may be handed over ahead.

        But none on devices that are promised to somebody who goes first.
        """
        heads = [(post, held(post.jobs[0])) for post in self if post.jobs]
        return [
            self._slot(post, head, 0.0 if promised(post) else short, now) for post, head in heads if head is not None
        ]

    def open(self, need: Need, devices: tuple[Device, ...], now: float) -> Post | None:
        """A post on just these devices; None where somebody else was faster to claim them."""
        device_ids = tuple([device.id for device in devices])
        for post in self:
            if not post.jobs and post.suits(need, device_ids) and not self._backend.worn_out(post.keeper):
                return post
        self._make_way(device_ids)
        claims = _claims(devices, need)
        held = self._ledger.claim(claims, self._label, now, _capacities(devices)) if claims else None
        if claims and held is None:
            return None
        post = Post(self._employ(held), need, devices, lease=str(held.path) if held is not None else "")
        self._posts[post.keeper] = post
        return post

    def note_company(self, others: Iterable[Lease]) -> None:
        """See who shares devices by now: attempts of ours with each other, and with those of other engines."""
        foreign = {claim.name for lease in others for claim in lease.claims}
        busy = [post for post in self if post.jobs]
        held = Counter(claim.name for post in busy for claim in post.claims)
        for post in busy:
            names = {claim.name for claim in post.claims}
            post.company = post.company or not names.isdisjoint(foreign) or any(held[name] > 1 for name in names)

    def meet(self) -> None:
        """See in the ledger itself who shares devices: the last look at it may be a second old."""
        ours = self.leases
        self.note_company([lease for name, lease in self._ledger.live().leases.items() if name not in ours])

    def occupy(self, post: Post) -> None:
        """Add a post that another engine had opened."""
        self._posts[post.keeper] = post

    def close_idle(self) -> None:
        """Give the devices of idle posts back to everybody; their keepers wait for other work."""
        for post in [post for post in self if not post.jobs]:
            self._close(post)

    def spread(self, now: float, promised: Callable[[Post], bool] = _to_nobody) -> None:
        """Ask for what waits behind an attempt that turned out long, or before somebody who goes first."""
        for post in self:
            if post.overdue(now) or promised(post):
                self.recall(post)

    def recall(self, post: Post) -> None:
        """Ask for what was handed over ahead."""
        if len(post.jobs) > 1 and not post.recalled:
            post.recalled = True
            self._backend.recall(post.keeper)

    def lose(self, keeper: str) -> Post | None:
        """A keeper died: its post is gone, if it had one. Its lease stays for as long as anything of the job lives."""
        if keeper in self._idle:
            self._idle.remove(keeper)
        return self._posts.pop(keeper, None)

    def learn(self, need: Need, seconds: float) -> None:
        """An attempt took so long: what the next ones with the same need may take."""
        before = self._paces.get(need, seconds)
        self._paces[need] = before + _WEIGHT_OF_NEWS * (seconds - before)

    def dismiss_all(self) -> set[str]:
        """Send idle keepers away and return their names; busy ones go on."""
        self.close_idle()
        for keeper in self._idle:
            self._backend.dismiss(keeper)
        return set(self._idle)

    def _make_way(self, device_ids: tuple[str, ...]) -> None:
        """Close idle posts of ours that stand on devices which are wanted in another way."""
        for post in [post for post in self if not post.jobs and not set(device_ids).isdisjoint(post.device_ids)]:
            self._close(post)

    def _close(self, post: Post) -> None:
        del self._posts[post.keeper]
        self._withdraw(post)
        if post.adopted or self._backend.worn_out(post.keeper):
            self._backend.dismiss(post.keeper)
        else:
            self._backend.release(post.keeper)
            self._idle.append(post.keeper)

    def _slot(self, post: Post, head: Job, short: float, now: float) -> Slot:
        pace = None if self._backend.worn_out(post.keeper) else self._paces.get(post.need)
        room = post.room(pace, short, now)
        until, caps, since = self._until(head), shape_of(head).caps, started_at(head)
        return Slot(post.keeper, head.id, post.need, post.device_ids, until, room, caps, since, post.peak)

    def _until(self, head: Job) -> float | None:
        """When the running attempt will end, where a limit or experience tells."""
        if not isinstance(head.state, Running) or (seconds := self._expects(head)) is None:
            return None
        return head.state.since + seconds

    def _employ(self, held: HeldLease | None) -> str:
        """A keeper for a lease that was just claimed; without a keeper there shall be no lease."""
        try:
            keeper = self._idle.pop() if self._idle else self._backend.hire()
        except BaseException:
            if held is not None:
                self._ledger.release(held)
            raise
        if held is not None:
            self._backend.equip(keeper, str(held.path), held.fd)
        return keeper

    def _withdraw(self, post: Post) -> None:
        if post.lease:
            self._ledger.withdraw(post.lease)
            post.lease = ""


def _claims(devices: tuple[Device, ...], need: Need) -> tuple[Claim, ...]:
    return tuple([claim for device in devices for claim in claims_on(device, need)])


def _capacities(devices: tuple[Device, ...]) -> Mapping[str, int | None]:
    return {name: device.memory for device in devices for name in device.claims}


INTERVAL = 10.0
"""Seconds between two looks..."""

FRESH_SECONDS = 3600.0
"""... and between two touches, since cleaners of temporary files go by age."""


class Tenure:
    """Looks after the leases of posts at work."""

    def __init__(self, posts: Posts, backend: LocalBackend, ledger: Ledger, label: str) -> None:
        self._posts = posts
        self._backend = backend
        self._ledger = ledger
        self._label = label
        self._look_at = 0.0
        self._touch_at = 0.0
        self.trouble = ""
        """What was wrong at the last look, in words."""

    def check(self, now: float) -> bool:
        """Look when it is time; whether there is other trouble than before."""
        if now < self._look_at:
            return False
        self._look_at = now + INTERVAL
        self._freshen(now)
        before, self.trouble = self.trouble, "; ".join(self._regain(now))
        return self.trouble != before

    def _freshen(self, now: float) -> None:
        if now >= self._touch_at:
            self._touch_at = now + FRESH_SECONDS
            for post in self._leased():
                self._ledger.freshen(post.lease)

    def _regain(self, now: float) -> Iterator[str]:
        for post in self._leased():
            if self._ledger.is_gone(post.lease) and not self._backend.is_dead(post.keeper):
                labels = ", ".join(device.label for device in post.devices)
                yield f"the lease on GPU {labels} was removed by somebody{self._claimed_anew(post, now)}"

    def _claimed_anew(self, post: Post, now: float) -> str:
        """How it went, ready to end a sentence.

        From now on the keeper alone holds the lease: what the job has started by then cannot inherit it any more.
        """
        try:
            held = self._ledger.claim(post.claims, self._label, now, post.capacities, post.lease.rpartition("/")[2])
        except StokerError as error:
            return f" and cannot be claimed anew: {error.message}; {error.hint}"
        if held is None:
            return f", and {self._rival(post)} has it now"
        self._backend.equip(post.keeper, post.lease, held.fd)
        return "; it was claimed anew"

    def _rival(self, post: Post) -> str:
        names = {claim.name for claim in post.claims}
        owners = [lease.owner for lease in self._ledger.live().leases.values() if _is_on(lease, names)]
        return " or ".join(sorted(set(owners))) or "somebody"

    def _leased(self) -> list[Post]:
        return [post for post in self._posts if post.lease and post.jobs and post.claims]


def _is_on(lease: Lease, names: set[str]) -> bool:
    return any(claim.name in names for claim in lease.claims)
