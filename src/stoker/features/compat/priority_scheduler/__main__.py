"""The console script, and `python -m stoker.features.compat.priority_scheduler`."""

import sys

from stoker.features.compat import run_program


def main() -> int:
    """The console script."""
    return run_program("stoker.features.compat.priority_scheduler.command")


if __name__ == "__main__":
    sys.exit(main())
