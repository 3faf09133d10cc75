"""Unpacking Slurm without root, with programs that stand in for Debian's."""

from __future__ import annotations

from pathlib import Path

import pytest

from features.slurm.fake_slurm import write_program
from stoker.core.errors import StokerError
from stoker.features.slurm.packages import PACKAGES, PROGRAMS, is_unpacked, missing_programs, unpack

CONTENT = """
root=$3
mkdir -p $root/usr/sbin $root/usr/lib/x86_64-linux-gnu/slurm-wlm
touch $root/usr/sbin/slurmctld-wlm $root/usr/lib/x86_64-linux-gnu/libslurm.so.38
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """apt-get that notes what it was asked for, and dpkg that unpacks a Slurm."""
    directory = tmp_path / "bin"
    directory.mkdir()
    write_program(directory, "apt-cache", "printf 'slurmd\\n  Depends: libmunge2\\n  Depends: libc6\\n'")
    write_program(directory, "apt-get", f"echo $@ > {tmp_path}/asked; touch slurmd.deb")
    write_program(directory, "dpkg-query", "[ $4 = libc6 ] && printf 'ii '")
    write_program(directory, "dpkg", CONTENT)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    return directory


def test_programs_that_this_machine_lacks(programs: Path) -> None:
    """Daemons need not be on the PATH of a user."""
    for name in PROGRAMS[1:]:
        write_program(programs, name, "")
    assert set(missing_programs({"PATH": str(programs)})) <= {PROGRAMS[0]}


def test_a_slurm_is_unpacked(programs: Path, tmp_path: Path) -> None:
    """Programs get their usual names, and libraries are in one directory."""
    prefix, said = tmp_path / "slurm/unpacked", list[str]()
    unpack(prefix, said.append)
    assert is_unpacked(prefix)
    assert said == [f"unpacking Slurm into {prefix}"]
    assert {path.name for path in (prefix / "libraries").iterdir()} == {"libslurm.so.38", "slurm-wlm"}
    assert (prefix / "libraries/libslurm.so.38").exists()
    assert not list(prefix.glob("*.deb"))


def test_libraries_are_fetched_that_servers_may_lack(programs: Path, tmp_path: Path) -> None:
    """Slurm's own always, others if they are missing here."""
    unpack(tmp_path / "unpacked", print)
    assert (tmp_path / "asked").read_text().split() == ["download", "-q", *PACKAGES, "libmunge2"]


def test_an_unpacked_slurm_is_kept(programs: Path, tmp_path: Path) -> None:
    """Nothing is asked for again."""
    unpack(tmp_path / "unpacked", print)
    (tmp_path / "asked").unlink()
    unpack(tmp_path / "unpacked", print)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("name", "script", "words"),
    [
        ("apt-get", "echo 'E: no network' >&2; exit 100", "Slurm cannot be unpacked: apt-get: E: no network"),
        ("dpkg", "exit 2", "Slurm cannot be unpacked: dpkg: exit code 2"),
        ("dpkg", "mkdir -p $3/usr/sbin", "there is no slurm-wlm"),
    ],
)
def test_half_a_slurm_is_never_left(programs: Path, tmp_path: Path, name: str, script: str, words: str) -> None:
    """The message says whom to ask instead."""
    write_program(programs, name, script)
    with pytest.raises(StokerError, match=words) as raised:
        unpack(tmp_path / "slurm/unpacked", print)
    assert "ask an administrator" in raised.value.hint
    assert list((tmp_path / "slurm").iterdir()) == []


def test_a_machine_without_debians_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has to install Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StokerError, match="this machine has no apt-get"):
        unpack(tmp_path / "unpacked", print)
