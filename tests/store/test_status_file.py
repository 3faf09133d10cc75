"""The status file is written atomically, and an unreadable one is ignored."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from stoker import __version__
from stoker.core.planner.reasons import Crowded
from stoker.devices.detect import DeclaredDevices
from stoker.engine.status_writer import INTERVAL, StatusWriter
from stoker.store.status_file import read_status
from support.engines import Workshop

WAIT = "while [ ! -e go ]; do sleep 0.02; done"


def test_round_trip(tmp_path: Path) -> None:
    """The status comes back as it was written."""
    path = tmp_path / "queue.status"
    with Workshop(tmp_path, devices=DeclaredDevices(["0"])) as shop:
        _, waiting = shop.submit(WAIT, "true")
        shop.work_until(lambda: len(shop.engine.active_jobs) == 1 and bool(shop.engine.site.status().waits))
        shop.work_until(lambda: shop.engine.reason(shop.job(waiting)) is not None)
        StatusWriter(path).write(shop.engine)
        view = read_status(path)
        assert view is not None
        assert (view.engine, view.pid, view.version) == (shop.name, os.getpid(), __version__)
        assert [device.label for device in view.devices] == ["0"]
        assert view.waiting == 1
        ((key, reason),) = view.waits
        assert key.resources == shop.job(waiting).spec.resources
        assert isinstance(reason, Crowded)
        assert reason == shop.engine.reason(shop.job(waiting))
        (tmp_path / "go").touch()


def test_it_is_written_rarely_unless_requested(tmp_path: Path) -> None:
    """Each status is a new file; the start time stays."""
    path = tmp_path / "queue.status"
    with Workshop(tmp_path) as shop:
        status_file = StatusWriter(path)
        status_file.write(shop.engine)
        first, inode = read_status(path), path.stat().st_ino
        status_file.write(shop.engine)
        assert path.stat().st_ino == inode, f"within {INTERVAL} s nothing new is written"
        status_file.write_soon()
        status_file.write(shop.engine)
        second = read_status(path)
        assert first is not None
        assert second is not None
        assert second.at > first.at
        assert second.since == first.since
        assert list(tmp_path.glob("*.new")) == []


def test_unreadable_files_give_none(tmp_path: Path) -> None:
    """A missing, incomplete or newer file gives None."""
    path = tmp_path / "queue.status"
    assert read_status(path) is None
    for body in (b"", b'{"engine": "queue", ', b'{"engine": 7}', b"\xff"):
        path.write_bytes(body)
        assert read_status(path) is None


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    """Unknown fields of a newer engine are ignored."""
    path = tmp_path / "queue.status"
    with Workshop(tmp_path) as shop:
        StatusWriter(path).write(shop.engine)
        body = msgspec.json.decode(path.read_bytes())
        path.write_bytes(msgspec.json.encode({**body, "invented": [1, 2]}))
        assert read_status(path) is not None


def test_a_full_disk_does_not_stop_the_engine(tmp_path: Path) -> None:
    """An error of the disk is ignored."""
    with Workshop(tmp_path) as shop:
        StatusWriter(tmp_path / "no such directory/queue.status").write(shop.engine)
