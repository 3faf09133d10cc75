"""Tell where a Python looks for packages; the Python of a job runs this file if it is not the engine's own.

Standard library only. That Python may be years older than the engine's.
"""

from __future__ import annotations

import json
import os
import site
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def describe() -> dict[str, Any]:
    """Version, and the directories of packages outside of virtual environments."""
    return {
        "version": sys.version.split()[0],
        "implementation": sys.implementation.name,
        "prefix": sys.base_prefix,
        "folders": site.getsitepackages([sys.base_prefix, sys.base_exec_prefix]),
        "user": site.getusersitepackages(),
        "inner": os.path.join("lib", "python{}.{}".format(*sys.version_info[:2]), "site-packages"),
    }


if __name__ == "__main__":
    print(json.dumps(describe()))
