"""A shared directory that shows everything late, or at which a program dies: a library to preload, compiled once.

And one whose calls are counted: on a network file system each of them asks a server.
"""

from __future__ import annotations

import atexit
import builtins
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

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


PATH_CALLS = (
    (builtins, "open"),
    *((os, name) for name in ("listdir", "mkdir", "open", "rename", "rmdir", "scandir", "stat", "unlink")),
)


@contextmanager
def counted_calls(directory: Path) -> Iterator[Counter[str]]:
    """Count the calls that this process makes on paths below a directory, by their names, and each fsync."""
    calls: Counter[str] = Counter()
    below = f"{directory}/"

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(path: Any, *words: Any, **named: Any) -> Any:
            calls[name] += name == "fsync" or (not isinstance(path, int) and os.fspath(path).startswith(below))
            return call(path, *words, **named)

        return count

    with ExitStack() as stack:
        for module, name in (*PATH_CALLS, (os, "fsync")):
            stack.enter_context(mock.patch.object(module, name, counted(name, getattr(module, name))))
        yield calls
