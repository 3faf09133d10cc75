"""Configuration files are found where they should be, and believed only if nobody else can have written them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import UsageError
from stoker.queue.config import Ignored, Settings, read_project, read_settings, user_file
from support.config_programs import tell
from support.users import User, made_users, reachable_directory, run_as

DEFAULTS = '[defaults]\nvram = "8G"\n'
TABLE = {"defaults": {"vram": "8G"}}


@pytest.fixture(scope="session")
def user() -> Iterator[User]:
    """A user of this machine."""
    with made_users(1) as (made,):
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory of a directory of jobs."""
    inner = tmp_path / "vit/configs"
    inner.mkdir(parents=True)
    return inner


def found_in(directory: Path) -> list[Settings | Ignored]:
    """What was found from the directory upwards, below pytest's own."""
    return [each for each in read_project(directory) if directory.parents[1] in each.path.parents]


def why_ignored(path: Path) -> str:
    [found] = read_settings(path)
    assert isinstance(found, Ignored)
    assert str(path) in found.warning
    return found.why


class TestUserFile:
    """The user's own file."""

    def test_xdg(self) -> None:
        """It is in the XDG directory, by default in the home directory's .config."""
        assert user_file({"XDG_CONFIG_HOME": "/c", "HOME": "/h"}) == Path("/c/stoker/config.toml")
        assert user_file({"HOME": "/h"}) == Path("/h/.config/stoker/config.toml")

    def test_relative(self) -> None:
        """A relative directory counts as none, as the XDG rules have it: it would depend on where one stands."""
        assert user_file({"XDG_CONFIG_HOME": "c", "HOME": "/h"}) == Path("/h/.config/stoker/config.toml")
        assert user_file({}) is None


class TestTrust:
    """Whoever can write a configuration file can run commands as its reader."""

    def test_own_file(self, tmp_path: Path) -> None:
        """One's own file counts, also one that the group may write to."""
        (tmp_path / "config.toml").write_text(DEFAULTS)
        (tmp_path / "config.toml").chmod(0o664)
        assert list(read_settings(tmp_path / "config.toml")) == [Settings(tmp_path / "config.toml", TABLE)]

    def test_no_file(self, tmp_path: Path) -> None:
        """A file that is not there is no error, and neither is a file in the place of its directory."""
        (tmp_path / "file").touch()
        assert list(read_settings(tmp_path / "config.toml")) == []
        assert list(read_settings(tmp_path / "file/config.toml")) == []

    def test_world_writable(self, tmp_path: Path) -> None:
        """A file that everybody may write to is ignored, with a word why."""
        (tmp_path / "config.toml").write_text("not TOML")
        (tmp_path / "config.toml").chmod(0o666)
        assert why_ignored(tmp_path / "config.toml") == "everybody may write to it (chmod o-w would help)"

    def test_somebody_elses(self, tmp_path: Path, user: User) -> None:
        """A file of another user is ignored, and the warning names him; so is one of nobody in particular."""
        (tmp_path / "config.toml").write_text(DEFAULTS)
        os.chown(tmp_path / "config.toml", user.uid, user.gid)
        assert why_ignored(tmp_path / "config.toml").startswith(f"it belongs to {user.name}")
        os.chown(tmp_path / "config.toml", 54321, 54321)
        assert why_ignored(tmp_path / "config.toml").startswith("it belongs to user 54321")

    def test_link_to_somebody_elses(self, tmp_path: Path, user: User) -> None:
        """What counts is the file that a link leads to."""
        (tmp_path / "theirs").write_text(DEFAULTS)
        os.chown(tmp_path / "theirs", user.uid, user.gid)
        (tmp_path / "config.toml").symlink_to(tmp_path / "theirs")
        assert "belongs to" in why_ignored(tmp_path / "config.toml")

    def test_pipe(self, tmp_path: Path) -> None:
        """A pipe in its place does not make anybody wait."""
        os.mkfifo(tmp_path / "config.toml")
        assert why_ignored(tmp_path / "config.toml") == "it is not a file"

    def test_directory(self, tmp_path: Path) -> None:
        """A directory in its place is no crash."""
        (tmp_path / "config.toml").mkdir()
        assert "Is a directory" in why_ignored(tmp_path / "config.toml")

    def test_roots_file_counts_for_all(self, user: User) -> None:
        """What root wrote is believed; what only root may read is told of; behind a closed door there is nothing."""
        with reachable_directory() as shared:
            (shared / "config.toml").write_text(DEFAULTS)
            (shared / "config.toml").chmod(0o644)
            (shared / "hidden.toml").write_text(DEFAULTS)
            (shared / "hidden.toml").chmod(0o600)
            (shared / "closed").mkdir(mode=0o700)
            (shared / "closed/config.toml").write_text(DEFAULTS)
            names = ("config.toml", "hidden.toml", "closed/config.toml")
            said = run_as(user, tell, *(shared / name for name in names)).splitlines()
        assert said == [str(TABLE), "it cannot be read (Permission denied)", "nothing"]


class TestProject:
    """The file of the directory that one stands in."""

    def test_above(self, project: Path) -> None:
        """The nearest stoker.toml from the directory upwards counts, and no other."""
        (project.parents[1] / "stoker.toml").write_text("far = 1")
        (project.parent / "stoker.toml").write_text(DEFAULTS)
        assert found_in(project) == [Settings(project.parent / "stoker.toml", TABLE, project=True)]

    def test_pyproject(self, project: Path) -> None:
        """So does a pyproject.toml with a table of ours, however that is written."""
        path = project.parent / "pyproject.toml"
        for text in ('[tool.stoker.defaults]\nvram = "8G"', '[tool]\nstoker = {defaults = {vram = "8G"}}'):
            path.write_text(text)
            assert found_in(project) == [Settings(path, TABLE, project=True)]

    def test_stoker_toml_first(self, project: Path) -> None:
        """In one directory stoker.toml goes first; a nearer pyproject.toml goes before a farther stoker.toml."""
        (project.parent / "stoker.toml").write_text(DEFAULTS)
        (project.parent / "pyproject.toml").write_text("[tool.stoker]\n")
        assert [each.path.name for each in found_in(project)] == ["stoker.toml"]
        (project / "pyproject.toml").write_text("[tool.stoker]\n")
        assert [each.path for each in found_in(project)] == [project / "pyproject.toml"]

    @pytest.mark.parametrize(
        "text", ["[tool.ruff]\n", 'dependencies = ["stoker"]\n', "broken [ stoker", "tool = 3 # stoker"]
    )
    def test_other_pyprojects(self, project: Path, text: str) -> None:
        """One that is not about us is passed by, broken or not."""
        (project / "pyproject.toml").write_text(text)
        (project.parent / "stoker.toml").write_text(DEFAULTS)
        assert [each.path for each in found_in(project)] == [project.parent / "stoker.toml"]

    def test_somebody_elses_is_passed_by(self, project: Path, user: User) -> None:
        """It is ignored with a warning, and the search goes on; of a pyproject.toml only if it is about us."""
        for name, text in (("stoker.toml", DEFAULTS), ("pyproject.toml", "[tool.stoker]")):
            (project / name).write_text(text)
            os.chown(project / name, user.uid, user.gid)
        (project.parent / "stoker.toml").write_text(DEFAULTS)
        kinds = [type(each) for each in found_in(project)]
        assert kinds == [Ignored, Ignored, Settings]
        (project / "pyproject.toml").write_text("[tool.ruff]")
        assert [type(each) for each in found_in(project)] == [Ignored, Settings]

    @pytest.mark.parametrize(
        ("name", "text", "complaint"),
        [
            ("stoker.toml", "vram 8G", "is not TOML"),
            ("stoker.toml", "a = " + "[" * 5000, "is not TOML"),
            ("stoker.toml", "a = '\udcff'", "is not TOML"),
            ("pyproject.toml", "[tool.stoker\n", "is not TOML"),
            ("pyproject.toml", "tool.stoker = 3\n", "tool.stoker is not a table"),
        ],
    )
    def test_malformed(self, project: Path, name: str, text: str, complaint: str) -> None:
        """A file that cannot be understood is an error that names it."""
        (project / name).write_bytes(os.fsencode(text))
        with pytest.raises(UsageError) as refused:
            found_in(project)
        assert refused.value.message.startswith(str(project / name))
        assert complaint in refused.value.message
        assert refused.value.hint
