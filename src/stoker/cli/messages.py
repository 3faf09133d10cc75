"""Messages to all users of the machine, which every command shows."""

from __future__ import annotations

import os

from stoker.cli.console import say
from stoker.core.places import LEDGER_PLACES

QUIET = frozenset(("--json", "--parsable", "--plain", "-q", "--quiet", "message", "--help", "-h", "--version", "-V"))
"""Words of a command line that show no messages: programs read the output, or the command shows them itself."""
MOST_MESSAGES = 3
_INSIDE = ("STOKER_JOB_ID", "_STOKER_COMPLETE")
"""Variables of jobs and of completion in a shell: no person reads there."""


def show_messages() -> None:
    """Write the messages of root and coordinators to standard error; a directory without any costs one look."""
    chosen = os.environ.get("STOKER_LEDGER", "")
    for place in (chosen,) if chosen else LEDGER_PLACES:
        try:
            names = os.listdir(place)
        except OSError:
            continue
        if any(name.endswith(".message") for name in names) and not any(map(os.environ.get, _INSIDE)):
            _show(place)
        return


def _show(place: str) -> None:
    from pathlib import Path

    from stoker.app.jobs.local_time import start_text
    from stoker.ledger import Ledger, LedgerUnusable

    try:
        messages = Ledger(Path(place)).agreements.messages()
    except (OSError, LedgerUnusable):
        return
    for message in messages[:MOST_MESSAGES]:
        say(f"message of {message.owner}, {start_text(message.at, message.at - 1)}: {message.text}")
