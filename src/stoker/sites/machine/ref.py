"""The ref of an attempt on this machine: its worker, its lease, and where its part of the log begins."""

from __future__ import annotations

from typing import NamedTuple

_NONE = "-"


class WorkerRef(NamedTuple):
    """The parts of a ref, by which an engine adopts an attempt of a dead engine."""

    worker: str
    lease: str = ""
    """Name of the lease in the ledger, empty if nothing had to be claimed.

    A lease in the ledger of a parent job begins with the name of that job's worker and a slash.
    """
    log_start: int = 0
    """Size of the log before the attempt: another job may have written to the same file."""

    @property
    def text(self) -> str:
        """As it is stored."""
        return f"{self.worker} {self.lease or _NONE} {self.log_start}"


def read_ref(text: str) -> WorkerRef:
    """The ref that `text` was made of."""
    words = text.split()
    worker, lease, log_start = (*words, *(_NONE, "0")[len(words) - 1 :])
    return WorkerRef(worker, "" if lease == _NONE else lease, int(log_start))


def is_nested(text: str) -> bool:
    """Whether the attempt of a ref ran inside another job, whose GPU time includes its own."""
    return "/" in read_ref(text).lease


def lease_name(lease: str, within: str) -> str:
    """The name of a lease, given by its path, for a ref; `within` is the worker of the parent job, if there is one."""
    name = lease.rpartition("/")[2]
    return f"{within}/{name}" if within and name else name


def adopted_lease(name: str, within: str) -> str:
    """The name of a lease in our own ledger; empty if the lease is in the ledger of another parent job."""
    parent, _, own = name.rpartition("/")
    return own if parent == within else ""
