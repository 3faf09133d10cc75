"""The program that runs one instance; also started by its path."""

import os
import sys

if __name__ == "__main__":  # started with -P: make the stoker package importable
    sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from stoker.compat.gpu_task.child import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
