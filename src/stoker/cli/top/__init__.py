"""The live view of the queue on a full screen."""

from __future__ import annotations

import contextlib
import os
import sys

from stoker.core.errors import UsageError
from stoker.store.filters import NO_FILTER, Filter
from stoker.store.paths import Paths


def show_top(paths: Paths, *, readonly: bool = False, chosen: Filter = NO_FILTER) -> int:
    """The live view until the user leaves it."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the live view needs a terminal", "for programs: stoker status --json")
    if os.environ.get("TERM", "") in ("", "dumb"):
        raise UsageError("the live view needs a terminal that can move its cursor (TERM)", "instead: stoker status")
    from stoker.cli.top.app import Top
    from stoker.cli.top.source import QueueReader

    with contextlib.closing(QueueReader(paths, chosen)) as source:
        source.start()
        view = Top(source, readonly=readonly, chosen=chosen)
        view.run()
    return view.return_code or 0
