"""Where MPS daemons live: short paths that are their user's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stoker.devices.mps.daemon import LOG_LIMIT, MpsTrouble, Place, place_of, prepare, trim_log
from support.users import require_root


def test_usual_place() -> None:
    """Every process of a user finds the same short path for a device, another for another."""
    place = place_of("GPU-1", {})
    assert place == place_of("GPU-1", {})
    assert place != place_of("GPU-2", {})
    assert place.root.startswith(f"/tmp/stoker-mps-{os.geteuid()}/")
    assert len(f"{place.pipe}/control_privileged") < 80


def test_made_for_oneself(tmp_path: Path) -> None:
    """All of it is made so that nobody else can enter, and what is there already is used."""
    place = place_of("GPU-1", {"STOKER_MPS_DIR": str(tmp_path / "m")})
    for _ in range(2):
        prepare(place)
    for directory in (tmp_path / "m", place.root, place.pipe, place.log):
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700


def test_symbolic_link(tmp_path: Path) -> None:
    """A link that leads elsewhere is not followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "m").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MpsTrouble, match="not a directory"):
        prepare(Place(str(tmp_path / "m/gpu")))


def test_file(tmp_path: Path) -> None:
    """A file in its place is told."""
    (tmp_path / "m").touch()
    with pytest.raises(MpsTrouble, match="not a directory"):
        prepare(Place(str(tmp_path / "m/gpu")))


def test_of_somebody_else(tmp_path: Path) -> None:
    """A directory that another user made is refused."""
    require_root()
    (tmp_path / "m").mkdir()
    os.chown(tmp_path / "m", 12345, 12345)
    with pytest.raises(MpsTrouble, match="belongs to somebody else"):
        prepare(Place(str(tmp_path / "m/gpu")))


def test_open_to_others(tmp_path: Path) -> None:
    """A directory into which others can write is refused."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m").chmod(0o777)
    with pytest.raises(MpsTrouble, match="has mode 777"):
        prepare(Place(str(tmp_path / "m/gpu")))


def test_too_long(tmp_path: Path) -> None:
    """A path that no socket can have is told before anything is made."""
    with pytest.raises(MpsTrouble, match="too long for a socket"):
        prepare(Place(str(tmp_path / ("m" * 100) / "gpu")))
    assert not list(tmp_path.iterdir())


def test_long_log(tmp_path: Path) -> None:
    """A log that has grown long is begun anew."""
    place = Place(str(tmp_path / "gpu"))
    tmp_path.chmod(0o700)
    prepare(place)
    log = Path(place.log, "control.log")
    log.write_bytes(b"x" * 10)
    trim_log(place)
    assert log.exists()
    log.write_bytes(b"x" * (LOG_LIMIT + 1))
    trim_log(place)
    assert not log.exists()
