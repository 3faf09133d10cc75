"""Opening an engine with all that it holds, and closing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.errors import StokerError
from stoker.core.job import Ended, Job
from stoker.core.settings import Policy
from stoker.core.spec import Command, JobSpec
from stoker.engine.resources import EngineConfig, EngineRuntime, steady_clock
from stoker.store.engine_lock import QUEUE, EngineRuns, living_engines, wake
from stoker.store.paths import Paths
from stoker.store.status_file import read_status
from support.fakes import FakeSite, FakeSiteConfig


def a_config(directory: Path, site: FakeSiteConfig, **changes: object) -> EngineConfig:
    return EngineConfig(Paths(directory), site, Policy(), "label", **changes)  # type: ignore[arg-type]


def test_an_open_engine_is_alive_and_a_closed_one_is_not(tmp_path: Path) -> None:
    """Its locks and its status file are there exactly while it is open."""
    site = FakeSiteConfig()
    runtime = EngineRuntime(a_config(tmp_path, site), lambda _: None)
    assert list(living_engines(Paths(tmp_path))) == [runtime.engine.name]
    runtime.publish()
    path = Paths(tmp_path).status_file(runtime.engine.name)
    assert path.exists()
    runtime.close()
    assert list(living_engines(Paths(tmp_path))) == []
    assert not path.exists()
    assert site.site is not None
    assert site.site.calls[-1] == ("close", True)


def test_the_queue_has_one_engine(tmp_path: Path) -> None:
    """A second one is refused, and the first goes on."""
    first = EngineRuntime(a_config(tmp_path, FakeSiteConfig()), lambda _: None, owner=QUEUE)
    assert first.engine.name == QUEUE
    with pytest.raises(EngineRuns):
        EngineRuntime(a_config(tmp_path, FakeSiteConfig()), lambda _: None, owner=QUEUE)
    assert first.in_place
    first.close()


def test_a_site_that_cannot_be_opened_leaves_nothing(tmp_path: Path) -> None:
    """The locks are released."""

    def fail(_: FakeSite) -> None:
        raise StokerError("no devices", "plug one in")

    with pytest.raises(StokerError):
        EngineRuntime(a_config(tmp_path, FakeSiteConfig(fail)), lambda _: None)
    assert list(living_engines(Paths(tmp_path))) == []


def test_a_wake_up_makes_the_engine_look(tmp_path: Path) -> None:
    """The callback of its owner comes first, and the status file is written anew."""
    woken: list[str] = []
    runtime = EngineRuntime(
        a_config(tmp_path, FakeSiteConfig()), lambda _: None, QUEUE, woken=lambda: woken.append("woken")
    )
    runtime.publish()
    path = Paths(tmp_path).status_file(QUEUE)
    before = path.stat().st_ino
    wake(Paths(tmp_path), QUEUE)
    runtime.engine.turn(5.0)
    runtime.publish()
    assert woken == ["woken"]
    assert path.stat().st_ino != before
    runtime.close()
    assert read_status(path) is not None, "what the queue's engine showed stays"


def test_settings_can_change_while_it_runs(tmp_path: Path) -> None:
    """Another policy reaches the site, and a follow-up job is made for the next end."""
    config = FakeSiteConfig()
    runtime = EngineRuntime(a_config(tmp_path, config), lambda _: None)
    runtime.adapt(a_config(tmp_path, config, on_finish="notify-me"))
    follow_ups = [runtime.engine._jobs.recorder.follow_up]
    runtime.adapt(a_config(tmp_path, config))
    follow_ups.append(runtime.engine._jobs.recorder.follow_up)
    ended = Job(1, 1, Command(("true",)), JobSpec(), Ended("done", 2.0, 0), submitted=1.0)
    made = [follow_up.make(ended, "") for follow_up in follow_ups if follow_up and follow_up.make]
    assert [job and job.command.words[-1] for job in made] == ["notify-me"]
    assert (tmp_path / "logs").is_dir()
    runtime.close()


def test_the_clock_is_steady() -> None:
    """It goes on from the time at which it was made."""
    clock = steady_clock()
    first = clock()
    assert 0.0 <= clock() - first < 60.0
