"""Puts the manual pages into the wheel when it is built."""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface):  # type: ignore[type-arg]
    """Makes the pages in a directory of its own, and has them installed where `man` looks."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is written; one that only points to the sources needs no pages."""
        if version == "editable":
            return
        self._directory = tempfile.TemporaryDirectory()
        sys.path.insert(0, str(Path(self.root) / "src"))
        write_pages = runpy.run_path(str(Path(self.root) / "docs/make_man.py"))["write_pages"]
        for page in write_pages(Path(self._directory.name)):
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """After the wheel is written."""
        if version != "editable":
            self._directory.cleanup()
