"""`stoker message`: tell all users of the machine something."""

from __future__ import annotations

import os
import time

import click

from stoker.app.jobs.local_time import clock_text
from stoker.cli.console import print_line, say
from stoker.cli.options import StokerCommand
from stoker.core.errors import UsageError
from stoker.core.units import DAY, parse_duration
from stoker.ledger import Ledger, ledger_path
from stoker.ledger.coordinators import is_coordinator
from stoker.ledger.files import WHAT_LIMIT
from stoker.ledger.lasting import LONGEST_MESSAGE_SECONDS, Announcement


@click.command(name="message", cls=StokerCommand)
@click.argument("text", required=False)
@click.option("--for", "lasts", metavar="TIME", help="How long commands show it, default 1d.")
@click.option("--clear", is_flag=True, help="End your message; as root those of others, too.")
def command(*, text: str | None, lasts: str | None, clear: bool) -> int:
    """Tell all users of this machine something, as root or coordinator; without TEXT, show what they are told.

    Every command shows it on standard error, unless its output is for programs (--json, --plain, --parsable).

    \b
      sudo stoker message "maintenance at 18:00"
      stoker message --clear
    """
    if clear and text is not None:
        raise UsageError("--clear takes no text", "leave out one of them")
    ledger = Ledger(ledger_path(os.environ))  # also with simulated GPUs: commands show what the machine's says
    uid, now = os.geteuid(), time.time()
    if text is None and not clear:
        for message in ledger.live().messages:
            print_line(f"{clock_text(message.at, now)} {message.owner}: {message.text}")
        return 0
    if not is_coordinator(uid):
        raise UsageError("only root and coordinators (see docs/lab.md) can tell all users something", "ask one of them")
    seconds = DAY if lasts is None else parse_duration(lasts)
    if seconds > LONGEST_MESSAGE_SECONDS:
        raise UsageError(f"--for {lasts} is too long", f"at most {LONGEST_MESSAGE_SECONDS / DAY:.0f} days")
    if text is not None and not 0 < len(text) <= WHAT_LIMIT:
        raise UsageError(f"a message has 1 to {WHAT_LIMIT} characters", "write less")
    ledger.agreements.tell(Announcement(uid, "", "" if text is None else text, now, now + seconds))
    until = clock_text(now + seconds, now)
    say("your message is not shown any more" if clear else f"all users see this until {until}")
    return 0
