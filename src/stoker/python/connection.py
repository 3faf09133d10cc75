"""Where the queue is; it is opened for each operation, so that threads and forks share no connection."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from stoker.core.errors import NoSuchJob
from stoker.core.job import Job
from stoker.store.paths import Paths, find_paths
from stoker.store.writer import Store, open_store


class Link(NamedTuple):
    """A queue, and the simulated GPUs that its engine is to have, if any."""

    paths: Paths
    sim: str | None

    @contextlib.contextmanager
    def opened(self) -> Iterator[Store]:
        """The store, open until the end of the block."""
        with contextlib.closing(open_store(self.paths)) as store:
            yield store

    def job(self, job_id: int) -> Job:
        with self.opened() as store:
            return known(store.job(job_id), job_id)


def find_link() -> Link:
    """The queue that the environment names."""
    sim = os.environ.get("STOKER_SIM") or None
    return Link(find_paths(os.environ, os.uname().nodename, simulated=sim is not None), sim)


def known(job: Job | None, job_id: int) -> Job:
    """The job; an error where it does not exist."""
    if job is None:
        raise NoSuchJob(f"there is no job {job_id}", "stoker status and stoker history show what there is")
    return job
