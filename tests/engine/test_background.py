"""The background engine at a fake site: when it exits, and what it does from time to time."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import msgspec

from stoker.core.job import Assigned, Started, advance, state_word
from stoker.core.settings import Policy
from stoker.core.spec import Command, JobSpec, NewJob
from stoker.engine.background import Service, ServiceConfig, serve
from stoker.store.engine_lock import QUEUE, living_engines
from stoker.store.paths import Paths
from stoker.store.schema import Change
from stoker.store.writer import Store
from support.fakes import FakeSite, FakeSiteConfig

NOW = 1000.0


def a_config(directory: Path, ready: Callable[[FakeSite], None] = lambda _: None, **changes: object) -> ServiceConfig:
    return ServiceConfig(Paths(directory), FakeSiteConfig(ready), Policy(), "label", **{"idle_exit": 0.0, **changes})  # type: ignore[arg-type]


def submit(directory: Path, engine: str = QUEUE) -> int:
    store = Store(Paths(directory).database)
    (job,) = store.add_jobs(store.add_batch("b", NOW), engine, [NewJob(Command(("true",)), JobSpec())], NOW)
    store.close()
    return job


def end_at_once(site: FakeSite) -> None:
    """Every job that was sent has started and ended at the next poll."""

    def poll() -> None:
        while site.sent:
            job = site.sent.pop()
            site.start(job)
            site.exit(job)
        pending, site.pending = site.pending, []
        for report in pending:
            report()

    site.poll = poll  # type: ignore[method-assign]
    site.due = 0.0


def test_it_exits_when_all_is_over(tmp_path: Path) -> None:
    """After the jobs that were in the store, and with the lock released."""
    job = submit(tmp_path)
    said: list[str] = []
    ready: list[bool] = []
    serve(a_config(tmp_path, end_at_once), said.append, lambda: ready.append(True))
    store = Store(Paths(tmp_path).database)
    found = store.job(job)
    store.close()
    assert found is not None
    assert state_word(found) == "done"
    assert (said, ready, list(living_engines(Paths(tmp_path)))) == ([], [True], [])


def test_a_job_that_comes_while_it_leaves_is_not_left_behind(tmp_path: Path) -> None:
    """It looks into the store after it has released the lock, and serves again."""
    opened: list[FakeSite] = []

    def open_site(site: FakeSite) -> None:
        opened.append(site)
        end_at_once(site)
        if len(opened) == 1:
            close = site.close

            def closing(*, recorded: bool) -> None:
                submit(tmp_path)
                close(recorded=recorded)

            site.close = closing  # type: ignore[method-assign]

    serve(a_config(tmp_path, open_site), lambda _: None, lambda: None)
    assert len(opened) == 2
    store = Store(Paths(tmp_path).database)
    assert store.open_jobs(QUEUE, 0, 9) == []
    store.close()


def test_it_goes_on_with_the_active_jobs_of_an_earlier_engine(tmp_path: Path) -> None:
    """They are its own: it waits for them, and stops them when told to."""
    job_id = submit(tmp_path)
    store = Store(Paths(tmp_path).database)
    job = store.job(job_id)
    assert job is not None
    for event in (Assigned("w1 - 0", ("0",), "/log", NOW), Started(1, NOW)):
        job = advance(job, event)
        store.record([Change(job, [(1, event)])])
    store.close()
    service = Service(a_config(tmp_path), lambda _: None, lambda: None)
    site = service._engine.site
    assert isinstance(site, FakeSite)
    assert site.called("adopt") == [[job_id]]
    os.kill(os.getpid(), signal.SIGINT)
    service._engine.turn(5.0)
    assert site.called("stop") == [[job_id, None, 0]]
    site.exit(job_id, 1)
    site.due = 0.0
    service.run()
    service.close()


def test_terminate_leaves_jobs_running(tmp_path: Path) -> None:
    """SIGTERM ends the engine at once."""
    submit(tmp_path)
    said: list[str] = []
    service = Service(a_config(tmp_path, idle_exit=None), said.append, lambda: None)
    service._engine.turn(0)
    os.kill(os.getpid(), signal.SIGTERM)
    service.run()
    site = service._engine.site
    assert isinstance(site, FakeSite)
    service.close()
    assert said == ["engine stopped; running jobs continue"]
    assert not site.called("stop")


def test_hangup_drains(tmp_path: Path) -> None:
    """It exits when nothing runs, though jobs wait."""
    submit(tmp_path)
    service = Service(a_config(tmp_path, idle_exit=None), lambda _: None, lambda: None)
    os.kill(os.getpid(), signal.SIGHUP)
    service.run()
    site = service._engine.site
    assert isinstance(site, FakeSite)
    assert (site.called("drain"), service._engine.waiting, site.sent) == ([[]], 1, [])
    service.close()


def test_a_new_configuration_is_used(tmp_path: Path) -> None:
    """As soon as it is read."""
    changed = msgspec.structs.replace(a_config(tmp_path), policy=Policy(max_running=3), keep=5.0)
    news = [changed]
    said: list[str] = []
    service = Service(a_config(tmp_path), said.append, lambda: news.pop() if news else None)
    service._make_rounds()
    service._engine.turn(0)
    site = service._engine.site
    assert isinstance(site, FakeSite)
    assert (site.policies[-1].max_running, service._pruner.keep) == (3, 5.0)
    assert said == ["the configuration has changed and is now in effect"]
    service.close()


def test_ends_of_dead_runs_are_recorded(tmp_path: Path) -> None:
    """Under the name of this process, so that they are interrupted again once it dies."""
    job_id = submit(tmp_path, "dead-7")
    store = Store(Paths(tmp_path).database)
    job = store.job(job_id)
    assert job is not None
    event = Assigned("w1 - 0", ("0",), "/log", NOW)
    store.record([Change(advance(job, event), [(1, event)])])
    store.close()
    service = Service(a_config(tmp_path), lambda _: None, lambda: None)
    site = service._engine.site
    assert isinstance(site, FakeSite)
    service._make_rounds()
    assert site.called("adopt") == []
    site.gone = {job_id}
    service._rounds_at = 0.0
    service._make_rounds()
    assert site.called("adopt") == [[job_id]]
    assert [each.id for each in service._runtime.store.active_jobs(service._runtime.engine_lock.name)] == [job_id]
    service.close()


def test_it_leaves_when_its_directory_is_replaced(tmp_path: Path) -> None:
    """What it writes would reach no front end."""
    directory = tmp_path / "state"
    directory.mkdir()
    said: list[str] = []
    service = Service(a_config(directory, idle_exit=None), said.append, lambda: None)
    shutil.move(directory, tmp_path / "moved")
    service.run()
    assert "was removed or replaced" in said[0]
    service.close()


def test_trouble_is_logged_once(tmp_path: Path) -> None:
    """And again after it was over."""
    said: list[str] = []
    service = Service(a_config(tmp_path), said.append, lambda: None)
    for trouble in ("no disk", "no disk", "", "no disk"):
        service._engine.trouble = trouble
        service._complain()
    assert said == ["no disk", "no disk"]
    service.close()
