"""The ref of an attempt on this machine: its worker, its lease, and where its part of the log begins."""

from __future__ import annotations

from typing import NamedTuple

_NONE = "-"


class WorkerRef(NamedTuple):
    """What an engine needs to adopt an attempt of a dead engine."""

    worker: str
    lease: str = ""
    """Name of the lease in the ledger, empty where nothing had to be claimed."""
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
