"""A shared directory that shows everything late, or at which a program dies: a library to preload, compiled once."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from support.optional import require
from support.wait import PATIENCE_SECONDS

SOURCE = Path(__file__).parent / "shim.c"
STRICT = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]


@cache
def shim() -> Path:
    """The library."""
    compiler = require("cc")
    folder = tempfile.mkdtemp(prefix="stoker-shim-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = Path(folder, "shim.so")
    subprocess.run([compiler, *STRICT, SOURCE, "-o", library, "-ldl"], check=True, timeout=PATIENCE_SECONDS)
    return library


def delayed(directory: Path, seconds: float, missing: float) -> dict[str, str]:
    """Variables with which programs read old content for `seconds`, and miss a missing name for `missing` seconds."""
    return {
        "LD_PRELOAD": str(shim()),
        "SHARED_DIR": str(directory),
        "SHARED_DELAY": str(seconds),
        "SHARED_MISSING": str(missing),
    }


def killed_at(directory: Path, call: str, part: str, once: Path) -> dict[str, str]:
    """Variables with which the first program dies at a call on a path; `once` exists from then on."""
    return {"LD_PRELOAD": str(shim()), "SHARED_DIR": str(directory), "SHARED_KILL": f"{call} {part} {once}"}
