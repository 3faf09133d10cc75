"""The systemd unit, judged by systemd itself where it is, and by a reader of its syntax everywhere."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stoker.app.service.systemd_unit import MARK, NAME, missing_program, unit_path, unit_text, web_unit_text, write_unit
from stoker.core.errors import UsageError
from support.optional import require
from support.wait import PATIENCE_SECONDS

PROGRAM = ["/bin/sh"]
ODD = {"STOKER_STATE": '/odd place/100%/$HOME/"it\'s"/back\\slash', "SECRET_TOKEN": "x", "STOKER_GPUS": "2"}


def settings(text: str) -> dict[tuple[str, str], list[str]]:
    """Section and key of every line, with its values; any other line is a mistake."""
    found: dict[tuple[str, str], list[str]] = {}
    section = ""
    for line in filter(None, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
        elif not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert section, line
            assert equals, line
            assert key.isalpha(), line
            found.setdefault((section, key), []).append(value)
    return found


def judged(directory: Path, text: str) -> str:
    """Return the complaints of systemd about a unit; it may complain about other units of the machine too."""
    unit = directory / NAME
    unit.write_text(text)
    command = [require("systemd-analyze"), "--user", "--man=no", "verify", str(unit)]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    return "\n".join(line for line in done.stderr.splitlines() if NAME in line)


def test_systemd_accepts_it(tmp_path: Path) -> None:
    """Without a word, also where paths are odd; and it would have said something of a mistake."""
    assert judged(tmp_path, unit_text(PROGRAM, {})) == ""
    assert judged(tmp_path, unit_text(PROGRAM, ODD)) == ""
    assert judged(tmp_path, web_unit_text(PROGRAM, ODD)) == ""
    assert "KillMoode" in judged(tmp_path, unit_text(PROGRAM, {}).replace("KillMode", "KillMoode"))


def test_jobs_outlive_a_stop_of_the_unit() -> None:
    """Only the engine is stopped, it comes back after a failure, and stays when it is idle."""
    found = settings(unit_text(["/opt/bin/stoker"], {}))
    assert found["Service", "KillMode"] == ["process"]
    assert found["Service", "Restart"] == ["on-failure"]
    assert found["Service", "OOMPolicy"] == ["continue"]
    assert found["Service", "ExecStart"] == ["/opt/bin/stoker engine run --stay"]
    assert found["Install", "WantedBy"] == ["default.target"]


def test_it_finds_the_same_places_as_the_doors() -> None:
    """Variables that choose places are passed on, quoted for systemd, and no others."""
    found = settings(unit_text(PROGRAM, ODD))
    quoted = '"STOKER_STATE=/odd place/100%%/$HOME/\\"it\'s\\"/back\\\\slash"'
    assert found["Service", "Environment"] == [quoted]


def test_a_program_with_an_odd_path_is_quoted() -> None:
    """Specifiers and variables of systemd's are not replaced in it."""
    (command,) = settings(unit_text(["/odd place/50%/$x/stoker"], {}))["Service", "ExecStart"]
    assert command == '"/odd place/50%%/$$x/stoker" engine run --stay'


@pytest.mark.parametrize("path", ["/two\nlines", "/bell\a", "/\x7f"])
def test_what_no_unit_can_contain_is_refused(path: str) -> None:
    """Before anything is written."""
    with pytest.raises(UsageError):
        unit_text([path], {})


def test_our_own_unit_is_replaced_and_no_other(tmp_path: Path) -> None:
    """A unit that somebody wrote by hand, or linked, is left as it is."""
    path = tmp_path / "systemd/user" / NAME
    write_unit(path, f"{MARK}\nfirst\n")
    write_unit(path, f"{MARK}\nsecond\n")
    assert path.read_text() == f"{MARK}\nsecond\n"
    path.write_text("[Service]\nExecStart=/my/own\n")
    with pytest.raises(UsageError, match="was not written by Stoker"):
        write_unit(path, f"{MARK}\nthird\n")
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError):
        write_unit(path, f"{MARK}\nthird\n")
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("name", ["stoker", 'odd 50% $x "q" \\ name'])
def test_a_program_that_is_gone_is_noticed(tmp_path: Path, name: str) -> None:
    """As after the directory that Stoker was installed in has moved; units of others are their own matter."""
    program = tmp_path / name
    program.touch(mode=0o755)
    unit = tmp_path / NAME
    assert missing_program(unit) == ""
    write_unit(unit, unit_text([str(program)], {}))
    assert missing_program(unit) == ""
    program.unlink()
    assert missing_program(unit) == str(program)
    unit.write_text("[Service]\nExecStart=/nowhere\n")
    assert missing_program(unit) == ""


def test_where_systemd_looks(tmp_path: Path) -> None:
    """In the user's configuration; a path that is not a full one does not count."""
    assert unit_path({"XDG_CONFIG_HOME": str(tmp_path)}) == tmp_path / "systemd/user" / NAME
    assert unit_path({"XDG_CONFIG_HOME": "relative"}) == Path.home() / ".config/systemd/user" / NAME
