"""An interpreter with Stoker that every user of this machine can reach.

The interpreter of the tests may lie where only root can enter (below root's home). Then users get the system's own
Python with the packages of these tests, if both are of one version and users can read them. Otherwise packages are
installed for it once. The sources are copied to a place that users can read.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from support.optional import refuse, require

ROOT = Path(__file__).parents[2]
SYSTEM = "/usr/bin/python3"
NOBODY = ["--reuid=65534", "--regid=65534", "--clear-groups"]
INSTALL_SECONDS = 600


@cache
def reachable_bin() -> Path:
    """The directory of `python` and `stoker` for ordinary users."""
    usual = Path(sys.executable).parent
    return usual if _all_can_import(usual / "python") else _environment()


def _all_can_import(python: Path) -> bool:
    # Twice: the first program may still have rights of ours, the ones it starts have not.
    again = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', 'import stoker.cli']))"
    command = [require("setpriv"), *NOBODY, str(python), "-c", again]
    return _runs(*command)


def _environment() -> Path:
    """Make an environment of this process with the sources as they are now."""
    place = Path(tempfile.mkdtemp(prefix="stoker-test-python-", dir="/tmp"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    place.chmod(0o755)
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__"))
    programs = make_environment(place, place / "src")
    assert _all_can_import(programs / "python"), "ordinary users cannot reach the copy either"
    return programs


def make_environment(place: Path, sources: Path) -> Path:
    """Make an environment of the system's Python with all packages and Stoker's sources; returns its programs."""
    packages = installed_packages()
    subprocess.run([SYSTEM, "-m", "venv", "--without-pip", place], check=True, timeout=INSTALL_SECONDS)
    (site,) = place.glob("lib/python*/site-packages")
    (site / "tests.pth").write_text(f"{sources}\n{packages}\n")
    for name, target in _project()["scripts"].items():
        module, _, function = target.partition(":")
        script = place / "bin" / name
        script.write_text(
            f"#!{place}/bin/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        )
        script.chmod(0o755)
    _let_all_read(place)
    return place / "bin"


def installed_packages() -> Path:
    """The directory of all packages that tests need, for the system's Python."""
    if _all_can_use(ours := Path(sysconfig.get_path("platlib"))):
        return ours
    if not (os.path.exists(SYSTEM) and _runs(SYSTEM, "-c", "import ensurepip, venv")):
        refuse(f"ordinary users cannot reach {sys.executable}, and {SYSTEM} has no venv: apt-get install python3-venv")
    files = [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    key = hashlib.sha256(b"".join(file.read_bytes() for file in files) + os.path.realpath(SYSTEM).encode()).hexdigest()
    place = Path(f"/var/cache/stoker-test-packages-{key[:12]}")  # only root can write there, and all can read
    with Path(f"{place}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            _install(place)
            (place / "complete").touch()
    (site,) = place.glob("lib/python*/site-packages")
    return site


def _all_can_use(packages: Path) -> bool:
    """Whether the system's Python, started by an ordinary user, can import packages that were made for this one."""
    check = f"import sys; assert sys.version_info[:2] == {sys.version_info[:2]}; import msgspec, pytest, venv"
    command = [require("setpriv"), *NOBODY, "env", f"PYTHONPATH={packages}", SYSTEM, "-c", check]
    return _runs(*command)


def _install(place: Path) -> None:
    subprocess.run([SYSTEM, "-m", "venv", place], check=True, timeout=INSTALL_SECONDS)
    wanted = [*_project()["dependencies"], *_project()["optional-dependencies"]["dev"]]
    command = [place / "bin/python", "-m", "pip", "install", "-qq", "-c", ROOT / "constraints.txt", *wanted]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if done.returncode:
        refuse(f"packages for {SYSTEM} cannot be installed: {done.stderr.strip()[-500:]}")
    _let_all_read(place)


def _let_all_read(place: Path) -> None:
    """Undo a strict umask."""
    subprocess.run(["chmod", "-R", "go+rX", place], check=True, timeout=INSTALL_SECONDS)


def _project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _runs(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True, cwd="/", timeout=INSTALL_SECONDS).returncode == 0


def prepare() -> None:
    """Install the packages before the tests, whose time is limited."""
    try:
        if os.geteuid() == 0 and not _all_can_import(Path(sys.executable)):
            installed_packages()
    except pytest.skip.Exception as reason:
        print(f"tests with several users are skipped: {reason}", file=sys.stderr)


if __name__ == "__main__":
    prepare()
