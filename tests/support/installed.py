"""Stoker as users install it: a wheel in an environment of its own, on a PATH whose python3 knows nothing of it."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

from support.optional import refuse
from support.wait import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "docs", "web", "examples", "README.md", "LICENSE", "pyproject.toml", "hatch_build.py")
SYSTEM = ("/usr/bin", "/bin")


def install(folder: Path) -> Path:
    """Install a wheel below the folder as pipx does; returns the environment, or skips the test without an index."""
    built = _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(_sources(folder)))
    if built.returncode:
        refuse(f"no wheel can be built here: {built.stderr[-500:]}")
    environment = folder / "venvs" / "stoker"
    venv.create(environment, symlinks=True)
    (wheel,) = folder.glob("stoker-*.whl")
    to_it = ("--python", str(environment / "bin/python3"))
    done = _run(sys.executable, "-m", "pip", *to_it, "install", "-q", "--no-deps", "--no-index", str(wheel))
    assert done.returncode == 0, done.stderr
    (packages,) = environment.glob("lib/python*/site-packages")
    # Its dependencies are those of the tests; a file of paths does not make their editable Stoker importable.
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    return environment


def make_path(folder: Path, environment: Path) -> Path:
    """A directory to be the whole PATH: the system's commands without python, a bare python3, and Stoker's commands."""
    folder.mkdir()
    for program in (program for place in SYSTEM for program in Path(place).iterdir()):
        if not program.name.startswith("python") and not (folder / program.name).is_symlink():
            (folder / program.name).symlink_to(program)
    for program in environment.glob("bin/*"):
        if not program.name.lower().startswith(("python", "activate")):
            (folder / program.name).unlink(missing_ok=True)
            (folder / program.name).symlink_to(program)
    venv.create(folder.with_name("bare"), symlinks=True)
    (folder / "python3").write_text(f'#!/bin/sh\nexec {folder.with_name("bare")}/bin/python3 "$@"\n')
    (folder / "python3").chmod(0o755)
    return folder


def _sources(folder: Path) -> Path:
    """A copy of what a wheel is made of: a build writes into its directory, and tests run beside it."""
    copy = folder / "source"
    copy.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
        else:
            shutil.copy2(ROOT / name, copy / name)
    return copy


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STOKER_WITHOUT_PAGE": "1"}
    limit = 4 * PATIENCE_SECONDS
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=limit, check=False)
