"""Whether our leases are still there: what somebody removed is claimed anew, before another takes the devices."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.backends.local import LocalBackend
from stoker.core.errors import StokerError
from stoker.core.lease import Lease
from stoker.ledger import Ledger
from stoker.posts import Post, Posts

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
