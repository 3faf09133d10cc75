"""What an instance's process is sent: its class and configuration, and how it finds the code of both.

It imports next to nothing: every instance's process waits for it.
"""

from __future__ import annotations

import marshal
import os

_MAGIC = b"stoker gpu task 1\n"


class Bundle:
    """One instance as it travels; only the last field needs the user's code to be understood."""

    __slots__ = ("folder", "script", "search_path", "task", "work_dir")

    def __init__(
        self, work_dir: str, folder: str, search_path: tuple[str, ...], script: tuple[str, ...], task: bytes
    ) -> None:
        """`folder` is the work_dir whatever the current directory is, `search_path` the scheduler's own.

        `script` is the program that called the scheduler, where something of it is needed: its file, its package and
        its arguments. `task` is the class and the configuration, pickled.
        """
        self.work_dir = work_dir
        self.folder = folder
        self.search_path = search_path
        self.script = script
        self.task = task


def write_bundle(path: str, bundle: Bundle) -> None:
    """Put it into a file, whole or not at all."""
    fields = (bundle.work_dir, bundle.folder, bundle.search_path, bundle.script, bundle.task)
    with open(f"{path}.new", "wb") as file:
        file.write(_MAGIC + marshal.dumps(fields))
    os.replace(f"{path}.new", path)  # noqa: PTH105


def read_bundle(path: str) -> Bundle | None:
    """What is in a file; None where it is a pickled task, as the older library wrote them."""
    with open(path, "rb") as file:
        data = file.read()
    return Bundle(*marshal.loads(data[len(_MAGIC) :])) if data.startswith(_MAGIC) else None  # noqa: S302
