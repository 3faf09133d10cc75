"""The import name and the `python -m` form of the older simple_hypersearch."""

import sys

from stoker.features.compat import run_simple_hypersearch as generate_commands

__all__ = ["generate_commands"]

if __name__ == "__main__":
    sys.exit(generate_commands())
