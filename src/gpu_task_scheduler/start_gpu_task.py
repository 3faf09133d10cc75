"""The program that runs one instance, as the older library named it; also started by its path."""

import os
import sys

if __name__ == "__main__":  # only the scheduler's own search path may lead to what it belongs to
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from stoker.compat.gpu_task.child import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
