"""The documents for those who work on Stoker say what is there: figures, paths and links agree with the code."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import get_args

import pytest

from stoker.core.job import Event, State, event_word
from stoker.store.engine_lock import lock_path
from stoker.store.paths import Paths

ROOT = Path(__file__).parents[1]
DESIGN = ROOT / "docs/design"
PAGES = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(DESIGN.glob("*.md"))
MOST_WORDS = 1800
"""ARCHITECTURE.md is read in one sitting; details belong to docs/design."""

_ROOTS = ("app", "cli", "core", "devices", "engine", "features", "ledger", "python", "runner", "sites", "store", "web")
_PATH = re.compile(rf"`((?:(?:{'|'.join(_ROOTS)}|tests|docs|bench)/)[\w./-]*)`")
"""A path in a sentence, below the root or below src/stoker; one with a placeholder names no file."""
_MODULE = re.compile(r"`(\w+\.(?:py|sh))`")
"""A module whose package the sentence before names."""
_NAME = re.compile(r"`([A-Z][a-z]+\w*|[A-Za-z]+_\w+)(?:\(.*?\))?`")
"""A name of Python, or a variable of the environment."""


def test_architecture_is_short() -> None:
    """It has three figures and at most so many words."""
    assert len((ROOT / "ARCHITECTURE.md").read_text().split()) <= MOST_WORDS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_paths_exist(page: Path) -> None:
    """Every path that a page names is a file or directory of today."""
    named = _PATH.findall(page.read_text())
    missing = [path for path in named if not any((root / path).exists() for root in (ROOT, ROOT / "src/stoker"))]
    modules = {path.name for path in (*ROOT.glob("*.py"), *(ROOT / "src").rglob("*"))}
    assert not [*missing, *(name for name in _MODULE.findall(page.read_text()) if name not in modules)]


def test_names_occur_in_the_code() -> None:
    """Every variable, class and function that a page names occurs in the code."""
    code = "".join(path.read_text() for root in ("src", "tests") for path in (ROOT / root).rglob("*.py"))
    words = set(re.findall(r"\w+", code))
    named = {name for page in PAGES for name in _NAME.findall(page.read_text())}
    assert not named - words


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link of a page names a file."""
    targets = re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text())
    assert all("://" in target or (page.parent / target).exists() for target in targets)


def test_figure_shows_all_states_and_events() -> None:
    """The figure of states has every state of a job and every event by name."""
    figure = ET.parse(DESIGN / "job-states.svg")
    words = set(re.findall(r"\w+", " ".join(figure.getroot().itertext())))
    states = {str(state.__struct_config__.tag) for state in get_args(State)}
    events = {event_word(event) for event in get_args(Event)}
    assert states | events <= words


def test_figure_shows_the_state_directory() -> None:
    """The figure names everything that Stoker keeps in the state directory."""
    figure = (ROOT / "ARCHITECTURE.md").read_text().partition("```text\n")[2].partition("```")[0]
    paths = Paths(Path("HOST"))
    parts = [value for name in dir(Paths) if isinstance(value := getattr(paths, name), Path)]
    named = {part.relative_to(paths.state).parts[0] for part in parts if part != paths.state}
    named |= {paths.status_file("NAME").name, lock_path(paths, "NAME").name}
    assert named <= set(
        re.findall(r"[\w.]+", " ".join(line.lstrip("│ ").partition("  ")[0] for line in figure.splitlines()))
    )
