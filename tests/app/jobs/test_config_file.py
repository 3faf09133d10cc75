"""A cluster is added to, replaced in and removed from the user's file, and all other text stays."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.app.jobs.config import load_config
from stoker.app.jobs.config_file import own_file, remove_table, table_in, write_table
from stoker.core.errors import StokerError, UsageError

LAB = {"kind": "slurm", "partition": "gpu"}
BEFORE = '# mine\nreserve = "1G"  # one\n\n[defaults]\ntime = "8h"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stoker/config.toml"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def test_a_file_is_made(path: Path) -> None:
    """Only its owner can read a new file."""
    write_table(path, "cluster", "lab", LAB)
    assert path.read_text() == '[cluster.lab]\nkind = "slurm"\npartition = "gpu"\n'
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_text_stays(path: Path) -> None:
    """Comments, order and mode of a file are kept; adding and removing leads back to it."""
    write(path, BEFORE)
    path.chmod(0o644)
    write_table(path, "cluster", "lab", LAB)
    assert path.read_text().startswith(BEFORE)
    assert table_in(path, "cluster", "lab") == LAB
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    remove_table(path, "cluster", "lab")
    assert path.read_text().strip() == BEFORE.strip()


def test_a_table_is_replaced_in_its_place(path: Path) -> None:
    """Comments of the next table stay with it."""
    after = '\n# the next\n[cluster.other]\nqos = "high"\n\n[defaults]\ngpus = 2\n'
    write(path, f'busy = "90%"\n[cluster.lab] # old\nqos = "low"\n# about it\noptions = ["-x"]\n{after}')
    write_table(path, "cluster", "lab", LAB)
    assert path.read_text() == f'busy = "90%"\n[cluster.lab]\nkind = "slurm"\npartition = "gpu"\n{after}'


def test_a_link_stays(path: Path, tmp_path: Path) -> None:
    """The file behind a link is changed."""
    dotfiles = tmp_path / "dotfiles.toml"
    dotfiles.write_text(BEFORE)
    path.parent.mkdir()
    path.symlink_to(dotfiles)
    write_table(path, "cluster", "lab", LAB)
    assert path.is_symlink()
    assert "[cluster.lab]" in dotfiles.read_text()


@pytest.mark.parametrize(
    "text",
    ['cluster.lab.qos = "x"\n', '[cluster]\nlab = {qos = "x"}\n', '[cluster.lab]\nqos = """\n[x]\n"""\n'],
)
def test_forms_that_cannot_be_changed(path: Path, text: str) -> None:
    """What cannot be changed safely is left to the user's editor, and nothing is written."""
    write(path, text)
    with pytest.raises(StokerError):
        write_table(path, "cluster", "lab", LAB)
    with pytest.raises(StokerError):
        remove_table(path, "cluster", "lab")
    assert path.read_text() == text


def test_a_file_of_others_is_not_changed(path: Path) -> None:
    """One that every user may write is not trusted."""
    write(path, "")
    path.chmod(0o666)
    with pytest.raises(UsageError, match="every user can write"):
        write_table(path, "cluster", "lab", LAB)


def test_values_are_checked(path: Path) -> None:
    """Nothing is written that could not be read again."""
    with pytest.raises(UsageError, match="poll under"):
        write_table(path, "cluster", "lab", {"poll": "soon"})
    assert not path.exists()


def test_own_file_needs_a_home() -> None:
    """Without a home there is no file to write to."""
    with pytest.raises(UsageError, match="no home"):
        own_file({})


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)))
def test_any_words_come_back(tmp_path_factory: pytest.TempPathFactory, options: list[str]) -> None:
    """Words for sbatch are read as they were written."""
    home = tmp_path_factory.mktemp("home")
    environment = {"HOME": str(home)}
    write_table(own_file(environment), "cluster", "lab", {"options": tuple(options)})
    found = load_config(environment, None, system=Path(os.devnull) / "none")
    assert found.cluster("lab").options == tuple(options)
