"""A build hook that adds the manual pages to the wheel."""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface):  # type: ignore[type-arg]
    """Write the pages to a temporary directory and install them where `man` finds them."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the pages before the wheel is built; an editable install needs none."""
        if version == "editable":
            return
        self._directory = tempfile.TemporaryDirectory()
        sys.path.insert(0, str(Path(self.root) / "src"))
        write_pages = runpy.run_path(str(Path(self.root) / "docs/make_man.py"))["write_pages"]
        for page in write_pages(Path(self._directory.name)):
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self._directory.cleanup()
