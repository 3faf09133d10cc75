"""The command line: one small module per verb, loaded only when it is typed."""

import signal


def main() -> None:
    """The console script; a Ctrl-C while it loads just ends it."""
    impatient = signal.getsignal(signal.SIGINT)
    if impatient is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from stoker.cli.main import main as run

    signal.signal(signal.SIGINT, impatient)
    run()
