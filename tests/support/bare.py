"""Run all tests that need optional programs on a PATH that has none of them; each must pass or be skipped.

A fresh machine has python3 and make. `make check` notes while it tests which tests ask for an optional program or
start one, and then runs these again with this module. So a test that starts an optional program without asking for it
fails there, and not at the desk of a new contributor.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support import optional

ROOT = Path(__file__).parents[2]


class Notes:
    """A plugin of pytest that notes the tests; child processes note for the test that started them."""

    def __init__(self) -> None:
        self._fixtures: set[str] = set()
        sys.addaudithook(_note_program)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Remember fixtures that ask: what a session shares is asked for in one test and used in others."""
        before = optional.asked
        try:
            return (yield)
        finally:
            if optional.asked != before:
                self._fixtures.add(fixturedef.argname)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Note a test that uses such a fixture."""
        if self._fixtures.intersection(getattr(item, "fixturenames", ())):
            optional.note()


def _note_program(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen" and os.path.basename(os.fsdecode(arguments[0])) in optional.PACKAGES:
        optional.note()


def link_others(directory: Path) -> None:
    """Fill a directory with links to all programs on PATH but the optional ones."""
    for folder in reversed(optional.search_path().split(":")):
        for program in Path(folder).glob("*"):
            link = directory / program.name
            link.unlink(missing_ok=True)
            if program.name not in optional.PACKAGES and os.access(program, os.X_OK):
                link.symlink_to(program)


def main(notes: str) -> int:
    """Run the noted tests with what only a fresh machine has."""
    tests = sorted(set(Path(notes).read_text().splitlines()))
    with tempfile.TemporaryDirectory(prefix="stoker-bare-") as directory:
        bare, home, chosen = (Path(directory, name) for name in ("bin", "home", "tests"))
        for path in (bare, home):
            path.mkdir()
        link_others(bare)
        chosen.write_text("\n".join(tests))
        environment = {
            name: value for name, value in os.environ.items() if name not in ("CI", "PYTHONPATH", optional.NOTES)
        }
        environment |= {"PATH": str(bare), "HOME": str(home)}
        command = [sys.executable, "-m", "pytest", "-q", "-rfE", "-n", "3", "--dist", "loadfile", f"@{chosen}"]
        return subprocess.call(command, env=environment, cwd=ROOT, timeout=1800)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
