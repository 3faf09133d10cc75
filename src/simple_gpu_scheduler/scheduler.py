"""The import name and the `python -m` form of the older simple_gpu_scheduler."""

import sys

from stoker.features.compat import run_simple_gpu_scheduler as main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
