"""The program that runs one instance."""

import sys

from stoker.features.compat.gpu_task.instance import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
