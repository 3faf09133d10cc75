"""The command line; the module of a command is loaded only when it is typed."""

import gc
import os
import signal

LOADED_OBJECTS = 50_000
"""More than a command and its modules create: none of them are garbage, and collecting takes a tenth of the time."""


def main() -> None:
    """The console script; a Ctrl-C while it loads just ends it."""
    gc.set_threshold(LOADED_OBJECTS)
    impatient = signal.getsignal(signal.SIGINT)
    if impatient is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "_STOKER_COMPLETE" in os.environ:
        from stoker.cli.completion import complete_at_once

        if complete_at_once():
            return
    from stoker.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, impatient)
        run()
    except KeyboardInterrupt:  # outside of the part that handles it
        os._exit(128 + signal.SIGINT)
