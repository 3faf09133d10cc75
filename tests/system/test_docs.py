"""Every command block of the README and of docs/ runs as printed, in a copy of examples/ with simulated GPUs."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from stoker.app.jobs.submit import JOB_VARIABLES
from stoker.core.errors import EXIT_CODES
from support.background import Background
from support.installed import install, make_path
from support.wait import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
AS_INSTALLED = ("README.md", "tutorial.md")
"""The pages of the first hour: the python3 of their jobs has no Stoker, and there is no `python`."""
MEANT_TO_FAIL = {"wrong", "broken"}
"""Names of jobs that show there what a failure looks like."""
TESTED_ELSEWHERE = {"hydra.md": "test_hydra_docs.py", "python.md": "test_python_docs.py"}
_BLOCK = re.compile(r"(?:^<!-- not run: ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """Commands of a page."""

    commands: str
    not_run: str
    """Why the tests cannot run it; empty where they do."""


def blocks(page: Path) -> list[Block]:
    """The shell blocks of a page, in order; one that starts with #! is a script, and not typed."""
    found = _BLOCK.findall(page.read_text())
    typed = [(reason, text) for reason, kind, text in found if kind in ("sh", "bash", "console")]
    return [Block(text, reason) for reason, text in typed if not text.startswith("#!")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The PATH of a user who has installed Stoker with pipx."""
    folder = tmp_path_factory.mktemp("installed")
    return make_path(folder / "bin", install(folder))


@pytest.mark.timeout(600)  # it installs Stoker first
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run_as_printed(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each block ends with success; the page has one queue, as for a user who types it from top to bottom."""
    commands = [block.commands for block in blocks(page) if not block.not_run]
    if page.name in TESTED_ELSEWHERE or not commands:
        return
    with contextlib.closing(Background(tmp_path, "4x24G")) as queue:
        shutil.copytree(ROOT / "examples", queue.cwd, dirs_exist_ok=True)
        if page.name in AS_INSTALLED:
            queue.environment["PATH"] = str(request.getfixturevalue("installed"))
        for text in commands:
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", text],
                cwd=queue.cwd,
                env=queue.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=2 * PATIENCE_SECONDS,
                check=False,
            )
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        if page.name in AS_INSTALLED:
            ended = json.loads(queue("history", "--json", "--state", "failed,skipped").out)["jobs"]
            assert {job["name"] for job in ended} <= MEANT_TO_FAIL


def test_pages_tested_elsewhere_are_tested() -> None:
    """A page that this test leaves out has a test of its own."""
    for page, test in TESTED_ELSEWHERE.items():
        assert page in (Path(__file__).parent / test).read_text()


def test_reference_is_generated_from_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make reference` writes the page; it names every variable that a job gets."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    script = runpy.run_path(str(ROOT / "docs/make_reference.py"))
    assert (ROOT / "docs/reference.md").read_text() == script["reference"]()
    assert script["JOB_VARIABLES"].keys() >= JOB_VARIABLES


def test_exit_codes_are_listed() -> None:
    """Where users look first when something goes wrong."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    assert all(f"| {code} |" in page for code in EXIT_CODES)
