"""When the page is built, with which node, and that its packages are fixed."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

WEB = Path(__file__).parents[2] / "web"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with a page that is newer than its sources."""
    (tmp_path / "web/src").mkdir(parents=True)
    shutil.copy(WEB / "build_page.py", tmp_path / "web")
    for name in ("package.json", "src/main.ts"):
        (tmp_path / "web" / name).write_text("{}")
        os.utime(tmp_path / "web" / name, (1000, 1000))
    page = tmp_path / "src/stoker/web/page/index.html"
    page.parent.mkdir(parents=True)
    page.write_text("<!doctype html>")
    os.utime(page, (2000, 2000))
    return tmp_path


def builder(tree: Path) -> dict[str, Any]:
    return runpy.run_path(str(tree / "web/build_page.py"))


def test_a_fresh_page_is_kept(tree: Path) -> None:
    """It is built again after a change of its sources, and in a source distribution never, where times mean nothing."""
    assert builder(tree)["is_fresh"]()
    os.utime(tree / "web/src/main.ts", (3000, 3000))
    assert not builder(tree)["is_fresh"]()
    (tree / "PKG-INFO").write_text("")
    assert builder(tree)["is_fresh"]()
    shutil.rmtree(tree / "src")
    assert not builder(tree)["is_fresh"]()


def test_node_is_fetched_only_if_needed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for a fresh page, nor with a node that is new enough, nor if the page is not wanted."""
    programs = tree / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    assert not builder(tree)["needs_node"]()
    os.utime(tree / "web/src/main.ts", (3000, 3000))
    assert builder(tree)["needs_node"]()
    monkeypatch.setenv("STOKER_WITHOUT_PAGE", "1")
    assert not builder(tree)["needs_node"]()
    monkeypatch.delenv("STOKER_WITHOUT_PAGE")
    for version, needed in (("v18.19.0", True), ("v20.18.9", True), ("v20.19.0", False), ("v24.1.0", False)):
        for name in ("node", "npm"):
            (programs / name).write_text(f"#!/bin/sh\necho {version}\n")
            (programs / name).chmod(0o755)
        assert builder(tree)["needs_node"]() is needed, version


def test_a_build_that_fails_says_so(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is not made without the page unless that is wanted."""
    programs = tree / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    (tree / "web/package-lock.json").write_text("{}")
    (programs / "node").write_text("#!/bin/sh\necho v24.0.0\n")
    (programs / "npm").write_text("#!/bin/sh\nexit 7\n")
    for name in ("node", "npm"):
        (programs / name).chmod(0o755)
    shutil.rmtree(tree / "src")
    made = builder(tree)
    with pytest.raises(made["CannotBuild"], match="code 7"):
        made["build"]()


def test_packages_are_fixed() -> None:
    """Exact versions, a digest for each package, and no address of the place that they came from."""
    wanted = json.loads((WEB / "package.json").read_text())
    versions = [*wanted["dependencies"].values(), *wanted["devDependencies"].values()]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in versions)
    lock = json.loads((WEB / "package-lock.json").read_text())["packages"]
    packages = {name: package for name, package in lock.items() if name}
    assert all(package["integrity"] and "resolved" not in package for package in packages.values())
    names = {name.rpartition("node_modules/")[2] for name in packages}
    optional = {one for package in packages.values() for one in package.get("optionalDependencies", {})}
    assert optional <= names, "npm ci refuses a lock file without the packages of other platforms"
