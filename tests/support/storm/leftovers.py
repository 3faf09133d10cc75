"""Leftovers when all is over: there must be no process, lease, lock or worker."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from support.storm.killer import Killer
from support.storm.processes import locked_files, marked
from support.wait import wait_until

LEAVING_SECONDS = 20.0
"""How long those that are about to leave may take."""
STAYING = (".new", ".usage")
"""Unfinished files of killed processes, which the first claim after a minute removes; and the GPU-hours of a user."""


def leftovers(killer: Killer, ledger: Path, marker: str, allowed: Iterable[str] = ()) -> list[str]:
    """Files, locks and processes that should not be there; the marker is a word in the environment of all jobs."""

    def left() -> list[str]:
        state = killer.state
        folders = (state / "workers", state / "engines", ledger)  # without a job on a GPU there is no ledger
        files = [path for folder in folders if folder.exists() for path in folder.iterdir()]
        wrong = [path for path in files if path.name not in allowed and path.suffix not in STAYING]
        pids = {*marked(marker), *(pid for _, pid in killer.holders())}
        locks = [f"lock of {path}" for path in locked_files(state, ledger)]
        return [*map(str, wrong), *(f"process {pid}" for pid in sorted(pids)), *locks]

    with contextlib.suppress(AssertionError):
        wait_until(lambda: not left(), LEAVING_SECONDS)
    return [f"left over: {what}" for what in left()]
