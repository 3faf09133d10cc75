"""Tell other users which jobs of this engine are behind its leases."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from stoker.core.job import Job, Running, id_text, limit_of
from stoker.core.launch import attempt_key
from stoker.ledger import HeldNotice, Ledger, LedgerNotice, LedgerUnusable
from stoker.ledger.formats import MOST_LEASES, LeaseJob
from stoker.runner.interface import ProcessIds
from stoker.sites.machine.allocations import Allocation

REPEAT_SECONDS = 60.0
"""Seconds after which it is published again, in case it was removed from the ledger."""


class Notices:
    """This engine's notice in the ledger; screens of other users show it."""

    def __init__(self, ledger: Ledger, processes: ProcessIds, job_of: Callable[[int], Job | None]) -> None:
        self._ledger = ledger
        self._processes = processes
        self._job_of = job_of
        self._published: HeldNotice | None = None
        self._published_at = 0.0

    def publish(self, allocations: Iterable[Allocation], waiting: int, now: float) -> None:
        """Publish it if it has changed. A ledger that cannot be used is reported where a claim fails."""
        leased = [allocation for allocation in allocations if allocation.lease and allocation.jobs][:MOST_LEASES]
        told = ((allocation, self._job_of(allocation.jobs[0])) for allocation in leased)
        leases = {
            allocation.lease.rpartition("/")[2]: self._lease_job(allocation.worker, job)
            for allocation, job in told
            if job
        }
        notice = LedgerNotice(waiting=waiting, leases=leases)
        before = self._published
        if before is not None and before.notice == notice and now - self._published_at < REPEAT_SECONDS:
            return
        with suppress(LedgerUnusable):
            self._published = self._ledger.notify(notice, before)
            self._published_at = now

    def withdraw(self) -> None:
        if self._published is not None:
            self._ledger.retract(self._published)
            self._published = None

    def _lease_job(self, worker: str, job: Job) -> LeaseJob:
        limit = limit_of(job)
        until = job.state.since + limit if isinstance(job.state, Running) and limit is not None else None
        pid = self._processes.process_of(worker, attempt_key(job.id, job.attempts))
        return LeaseJob(id_text(job), pid or 0, until)
