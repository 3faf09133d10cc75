"""How wheels and source distributions are built: by hatchling, with manual pages and the page of `stoker web`.

It is the build backend, which asks for node where that is missing, and the hook of hatchling.
"""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling import build as hatchling_build
from hatchling.build import *  # noqa: F403
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent


def page_builder() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "web/build_page.py"))


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [*hatchling_build.get_requires_for_build_wheel(config_settings), *_node()]


def get_requires_for_build_sdist(config_settings: dict[str, Any] | None = None) -> list[str]:
    return [*hatchling_build.get_requires_for_build_sdist(config_settings), *_node()]


def _node() -> list[str]:
    """The package with node, if it is needed; an editable install never needs it, since `make web` builds the page."""
    builder = page_builder()
    return [builder["REQUIREMENT"]] if builder["needs_node"]() else []


class Additions(BuildHookInterface):  # type: ignore[type-arg]
    """Adds what is made from the sources: manual pages where `man` finds them, and the page."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make them before the files are collected; an editable install needs none."""
        if version == "editable":
            return
        self._build_page()
        if self.target_name == "wheel":
            self._write_manual(build_data)

    def _build_page(self) -> None:
        builder = page_builder()
        if builder["is_skipped"]():
            return
        try:
            builder["build"]()
        except builder["CannotBuild"] as error:
            self.app.abort(
                f"The page of `stoker web` cannot be built: {error}.\n"
                f"Install node, or set {builder['SKIP']}=1 to install Stoker without the page."
            )

    def _write_manual(self, build_data: dict[str, Any]) -> None:
        self._directory = tempfile.TemporaryDirectory()
        sys.path.insert(0, str(ROOT / "src"))
        write_pages = runpy.run_path(str(ROOT / "docs/make_man.py"))["write_pages"]
        for page in write_pages(Path(self._directory.name)):
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable" and self.target_name == "wheel":
            self._directory.cleanup()
