"""The engine's part: publish running jobs, waiting jobs and usage for all users of the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.app.jobs.config import load_config
from stoker.core.errors import StokerError
from stoker.core.job import Job, Running, id_text
from stoker.core.planner.queue import WaitingGroup
from stoker.core.text import title
from stoker.features.lab.formats import BOARD, MOST_KINDS, BoardJob, WaitingKind, decode_board, encode_board
from stoker.ledger import HeldPost, Ledger, LedgerUnusable
from stoker.ledger.files import LARGEST, MOST_GPUS
from stoker.store.reader import Reader
from stoker.store.status_file import EngineStatus

if TYPE_CHECKING:  # a short run needs none
    from stoker.features.lab.own_usage import UsageFileWriter

INTERVAL = 2.0
"""Seconds between two boards."""
REFRESH_INTERVAL = 60.0
"""Seconds after which an unchanged board is published again, in case a cleaner removed it."""
FIRST_LOOK = 5.0
"""Seconds after which an engine first adds up usage, so that short runs do not wait for it."""


class LabPublisher:
    """Publishes what one engine does. A ledger that cannot be used is reported where a claim fails."""

    def __init__(self, ledger: Path, state: Path, store: Reader) -> None:
        self._ledger = Ledger(ledger)
        self._ledger.posts(BOARD, decode_board)  # removes those that killed engines of this user left
        self._state = state
        self._store = store
        self._usage: UsageFileWriter | None = None
        self._usage_due = 0.0
        self._shared: tuple[dict[str, str], bool] | None = None
        """If a job ran: the names of GPUs by their ids, and whether names of groups are told."""
        self._board: HeldPost | None = None
        self._board_at = 0.0

    def publish(
        self, status: EngineStatus, running: Sequence[tuple[Job, int | None]], waiting: Collection[WaitingGroup]
    ) -> None:
        if status.nested:
            return
        share = status.settings.share if status.settings else _configured_share()
        if share == "nothing":
            self._shared = None
            self._retract_board()
            self._opened_usage().withdraw()
            return
        names = {device.id: device.claims[0] for device in status.devices if device.claims}
        if running:
            self._shared = names, share == "names"
        self._usage_due = self._usage_due or status.at + FIRST_LOOK
        if status.at >= self._usage_due:
            self._opened_usage().publish(status.at, names, groups=share == "names")
        if status.at - self._board_at >= INTERVAL:
            jobs = list(_board_jobs(status, running, names=share == "names"))
            kinds = waiting_kinds(waiting)
            more = sum(kind.jobs for kind in kinds[MOST_KINDS:])
            self._publish_board(encode_board(jobs, kinds, more), status.at)

    def close(self) -> None:
        self._retract_board()
        if self._shared is not None:  # the next engine of this queue may start much later
            names, groups = self._shared
            self._opened_usage().publish(time.time(), names, groups=groups, last=True)

    def _opened_usage(self) -> UsageFileWriter:
        if self._usage is None:
            from stoker.features.lab.own_usage import UsageFileWriter

            self._usage = UsageFileWriter(self._ledger, self._state, self._store)
        return self._usage

    def _retract_board(self) -> None:
        if self._board is not None:
            self._ledger.retract(self._board)
            self._board = None

    def _publish_board(self, contents: bytes, now: float) -> None:
        if self._board and self._board.contents == contents and now - self._board_at < REFRESH_INTERVAL:
            return
        with suppress(LedgerUnusable):
            self._board = self._ledger.post(BOARD, contents, self._board)
        self._board_at = now


@cache
def _configured_share() -> str:
    """The setting for a foreground run, which publishes no settings."""
    try:
        return load_config(os.environ, None).engine.share
    except StokerError:
        return "nothing"


def _board_jobs(status: EngineStatus, running: Sequence[tuple[Job, int | None]], *, names: bool) -> Iterator[BoardJob]:
    for job, pid in running:
        if not isinstance(job.state, Running) or pid is None or not job.state.devices:
            continue
        use = status.uses.get(job.id)
        load = None if use is None or use.utilisation is None else min(100, use.utilisation)
        yield BoardJob(id_text(job), pid, job.state.since, load, title(job) if names else "")


def waiting_kinds(groups: Collection[WaitingGroup]) -> list[WaitingKind]:
    """The waiting jobs by what they want of GPUs, the most first."""
    kinds: dict[tuple[int, int | None], WaitingKind] = {}
    for group in groups:
        wanted = group.job_kind.resources
        key = min(wanted.gpus, MOST_GPUS), None if wanted.memory is None else min(wanted.memory, LARGEST)
        since, count = next(iter(group)).submitted, len(group)
        if (before := kinds.get(key)) is not None:
            since, count = min(since, before.since), count + before.jobs
        kinds[key] = WaitingKind(count, key[0], since, key[1])
    return sorted(kinds.values(), key=lambda kind: -kind.jobs)
