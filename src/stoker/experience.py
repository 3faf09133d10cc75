"""What an engine knows from earlier runs, and learns from those that end."""

from __future__ import annotations

from stoker.core.job import Job, limit_of
from stoker.core.memory import Learnt, expected_seconds, observe, signature_of
from stoker.store import Store

WORTH_LEARNING = 1.0
"""Seconds; what takes less is over before anybody could ask when."""
_REMEMBERED = 10_000


class Experience:
    """How long work of each kind took; news is kept until it is recorded together with the end it came from."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._learnt: dict[str, Learnt] = {}
        self._signatures: dict[int, str] = {}
        self._has_learnt = store.has_learnt()

    def expected(self, job: Job) -> float | None:
        """How many seconds a run of the job takes: as the last ones did, and no more than its limit."""
        limit = limit_of(job)
        if not self._has_learnt:
            return limit
        seconds = expected_seconds(self._known(self._signature(job)))
        return limit if seconds is None or (limit is not None and limit < seconds) else seconds

    def learn(self, job: Job, seconds: float) -> tuple[str, Learnt] | None:
        """A run that succeeded took so long; what is now known of such work, where that is worth a record."""
        if seconds < WORTH_LEARNING:
            return None
        signature = self._signature(job)
        self._has_learnt = True
        self._learnt[signature] = observe(self._known(signature), seconds)
        self._signatures.pop(job.id, None)
        return signature, self._learnt[signature]

    def _known(self, signature: str) -> Learnt:
        if signature not in self._learnt:
            _make_room(self._learnt)
            self._learnt[signature] = self._store.learnt(signature)
        return self._learnt[signature]

    def _signature(self, job: Job) -> str:
        if job.id not in self._signatures:
            _make_room(self._signatures)
            self._signatures[job.id] = signature_of(job.command, job.terms.cwd)
        return self._signatures[job.id]


def _make_room(remembered: dict[int, str] | dict[str, Learnt]) -> None:
    if len(remembered) >= _REMEMBERED:
        remembered.clear()
