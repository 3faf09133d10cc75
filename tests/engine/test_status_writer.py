"""When the status file is written, and what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.learning import Live
from stoker.core.planner.queue import ReasonKey
from stoker.core.planner.reasons import Crowded
from stoker.engine.status_writer import FORECAST_INTERVAL, INTERVAL, StatusWriter
from stoker.sites.interface import SiteStatus
from stoker.store.status_file import EngineStatus, Wait, read_status
from support.build import a_lease
from support.fakes import EngineAtFakeSite


def read(path: Path) -> EngineStatus:
    found = read_status(path)
    assert found is not None
    return found


def test_it_shows_the_engine_and_its_site(world: EngineAtFakeSite, tmp_path: Path) -> None:
    """Counts come from the engine; devices, leases, reasons, uses and trouble from the site."""
    (job,) = world.add()
    world.turn()
    key, lease = ReasonKey(world.job(job).spec.resources, 0), a_lease("0")
    world.site.shown = SiteStatus(
        world.site.shown.snapshot, [lease], [(key, Crowded(1, 0))], job, {7: Live(1, 2, 3)}, "no driver"
    )
    StatusWriter(tmp_path / "x.status").write(world.engine)
    view = read(tmp_path / "x.status")
    assert (view.engine, view.waiting, view.blocked, view.reserved, view.trouble) == ("test", 1, 0, job, "no driver")
    assert (view.waits, view.leases, view.uses) == ((Wait(key, Crowded(1, 0)),), (lease,), {7: Live(1, 2, 3)})
    assert [device.label for device in view.devices] == ["0"]


def test_it_is_written_once_per_interval(world: EngineAtFakeSite, tmp_path: Path) -> None:
    """Unless a front end asks; the start of the engine stays."""
    path = tmp_path / "x.status"
    writer = StatusWriter(path)
    writer.write(world.engine)
    first = read(path)
    world.clock.pass_seconds(INTERVAL / 2)
    writer.write(world.engine)
    assert read(path).at == first.at
    writer.write_soon()
    writer.write(world.engine)
    assert (read(path).at, read(path).since) == (first.at + INTERVAL / 2, first.since)


def test_a_forecast_is_made_less_often(world: EngineAtFakeSite, tmp_path: Path) -> None:
    """It costs many plans."""
    writer = StatusWriter(tmp_path / "x.status")
    for _ in range(5):
        writer.write(world.engine)
        world.clock.pass_seconds(INTERVAL)
    assert len(world.site.called("forecast")) == 1
    world.clock.pass_seconds(FORECAST_INTERVAL)
    writer.write(world.engine)
    assert len(world.site.called("forecast")) == 2


@pytest.mark.parametrize("stays", [True, False])
def test_it_may_stay(world: EngineAtFakeSite, tmp_path: Path, stays: bool) -> None:
    """That of a foreground run goes with it; that of the queue tells which devices there are."""
    path = tmp_path / "x.status"
    writer = StatusWriter(path, stays=stays)
    writer.write(world.engine)
    writer.close()
    assert path.exists() == stays


def test_a_directory_that_is_gone_is_no_error(world: EngineAtFakeSite, tmp_path: Path) -> None:
    """Jobs go on."""
    StatusWriter(tmp_path / "gone/x.status").write(world.engine)
