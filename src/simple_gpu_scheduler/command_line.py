"""The second import name under which the older simple_gpu_scheduler was shipped."""

import sys

from stoker.features.compat import run_simple_gpu_scheduler as main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
