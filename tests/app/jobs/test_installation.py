"""The lines that add packages to Stoker, for each tool that installs it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from stoker.app.jobs.installation import how_to_add, how_to_add_extra, how_to_remove, how_to_repair, packages_of

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def pipx(tmp_path: Path) -> str:
    """The environment that `pipx install --suffix=-new .` makes."""
    (tmp_path / "stoker-new").mkdir()
    (tmp_path / "stoker-new/pipx_metadata.json").write_text("{}")
    return str(tmp_path / "stoker-new")


def uv(folder: Path, requirements: str) -> str:
    """The environment that `uv tool install` makes."""
    (folder / "stoker").mkdir()
    (folder / "stoker/uv-receipt.toml").write_text(f"[tool]\nrequirements = [{requirements}]\n")
    return str(folder / "stoker")


def test_pipx(pipx: str) -> None:
    """Packages are injected into the environment, which has the name of its directory."""
    assert how_to_add("torch", "scipy", prefix=pipx) == "pipx inject stoker-new torch scipy"
    assert how_to_repair(pipx) == "pipx reinstall stoker-new"
    assert how_to_remove("x", pipx) == "pipx runpip stoker-new uninstall x"


def test_uv(tmp_path: Path) -> None:
    """uv makes the environment again from the same source, so the line repeats what was added before."""
    place = uv(tmp_path, '{ name = "stoker", directory = "/a b/stoker" }')
    assert how_to_add("optuna", prefix=place) == "uv tool install --with optuna '/a b/stoker'"
    assert how_to_repair(place) == "uv tool upgrade --reinstall stoker"


def test_uv_repeats_what_it_was_asked_for(tmp_path: Path) -> None:
    """Extras and packages of earlier lines stay."""
    asked = '{ name = "stoker", extras = ["web"], directory = "/s" }, { name = "cmaes", specifier = ">=0.12" }'
    line = how_to_add("scipy", prefix=uv(tmp_path, asked))
    assert line == "uv tool install --with 'cmaes>=0.12' --with scipy '/s[web]'"


def test_pip(tmp_path: Path) -> None:
    """The environment's own Python is named, since the pip on the PATH may be another's."""
    assert how_to_add("optuna", prefix=str(tmp_path)) == f"{tmp_path}/bin/python3 -m pip install optuna"
    words = how_to_repair(str(tmp_path)).split()
    assert words[:-1] == [f"{tmp_path}/bin/python3", "-m", "pip", "install", "--force-reinstall", "--no-deps"]
    assert words[-1] == str(ROOT)


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - {"all", "dev"}))
def test_extras_are_named_by_their_packages(extra: str) -> None:
    """As pyproject.toml lists them."""
    named = [re.split("[><=]", package)[0].lower() for package in EXTRAS[extra]]
    assert sorted(packages_of(extra)) == sorted(named)
    assert how_to_add_extra(extra).endswith(f" install {' '.join(packages_of(extra))}")


def test_all_is_every_extra() -> None:
    """The recommended line gives every feature."""
    (everything,) = EXTRAS["all"]
    assert set(re.findall(r"[\w-]+", everything)) == {"stoker", *EXTRAS} - {"all", "dev"}


def test_no_line_asks_an_index_for_stoker() -> None:
    """Stoker is not published, so a package of that name would be another program."""
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.py")]
    asks = re.compile(r"\b(pipx?|tool) install( -\S+)* '?stoker\b")
    assert [f"{file}: {line}" for file in files for line in file.read_text().splitlines() if asks.search(line)] == []
