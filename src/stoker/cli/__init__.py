"""The command line; the module of a command is loaded only when it is typed."""

import gc
import os
import signal

LOADED_OBJECTS = 50_000
"""More than a command and its modules create: none of them are garbage, and collecting takes a tenth of the time."""

NO_MEMORY = ("failed to map segment", "annot allocate memory")
"""Words of the loader if memory for a library is missing."""


def main() -> None:
    """The console script; a Ctrl-C while it loads just ends it."""
    gc.set_threshold(LOADED_OBJECTS)
    impatient = signal.getsignal(signal.SIGINT)
    if impatient is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        if "_STOKER_COMPLETE" in os.environ:
            from stoker.cli.completion import complete_at_once

            if complete_at_once():
                return
        from stoker.cli.main import main as run

        signal.signal(signal.SIGINT, impatient)
        run()
    except KeyboardInterrupt:  # outside of the part that handles it
        os._exit(128 + signal.SIGINT)
    except (MemoryError, ImportError) as error:
        if isinstance(error, ImportError) and not any(word in str(error) for word in NO_MEMORY):
            raise
        os.write(2, b"stoker: there is not enough memory to run (ulimit -v, or the limit of a container)\n")
        os._exit(125)
