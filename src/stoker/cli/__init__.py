"""The command line: one small module per verb, loaded only when it is typed."""

import gc
import os
import signal

LOADED_OBJECTS = 50_000
"""More than a verb and its modules consist of: nothing of that is garbage, but looking takes a tenth of the time."""


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

    signal.signal(signal.SIGINT, impatient)
    run()
