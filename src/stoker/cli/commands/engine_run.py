"""Be the engine of the queue: what `stoker engine run` does."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from stoker.app.control.engine_process import Background, log, simulated_gpus, tell_failure, tell_ready
from stoker.app.jobs.config import Config, Rereading, cluster_site, load_config
from stoker.app.jobs.context import current_user
from stoker.core.errors import Impossible, StokerError
from stoker.core.settings import EngineSettings, policy_of
from stoker.devices.detect import LateDevices, detect, simulate
from stoker.devices.interface import Devices
from stoker.engine.background import ServiceConfig, serve
from stoker.ledger import ledger_path
from stoker.sites.machine.site import MachineConfig
from stoker.store.engine_lock import engine_of
from stoker.store.paths import Paths
from stoker.store.restart import read_restart, remove_restart, restart_record, write_restart

LABEL = "stoker"


def serve_queue(
    paths: Paths,
    ready: int | None,
    *,
    stay: bool = False,
    flags: Mapping[str, object] | None = None,
    restart: Sequence[str] | None = None,
    cluster: str = "",
) -> None:
    """Be the engine of the queue, or of a cluster; `flags` are settings that the command line overrides.

    `restart` are the arguments with which it is started again after it was killed; None is never.
    """
    say = partial(log, paths.engine_log(cluster))
    if ready is not None:
        os.set_inheritable(ready, False)
    starters = [ready]
    record = None if restart is None else restart_record(restart, os.environ)

    def working() -> None:
        if record is not None:
            before = read_restart(paths)
            write_restart(paths, msgspec.structs.replace(record, tries=before.recent(time.time()) if before else []))
        tell_ready(starters.pop() if starters else None)

    try:
        load = partial(load_config, os.environ, None, flags=flags)
        changes = Rereading(os.environ, load, say)
        config = load()
        if cluster:
            service = _cluster_config(paths, config, cluster, stay=stay)
            serve(service, say, working, partial(_cluster_news, changes, paths, cluster, stay=stay))
            return
        with contextlib.closing(_devices(config.engine, paths, say)) as devices:
            service = _service_config(paths, config, devices, stay=stay)
            news = partial(_news, changes, service, stay=stay)
            serve(service, say, working, news, lambda: remove_restart(paths, os.getpid()))
    except StokerError as error:
        say(str(error))
        if starters:  # after that the descriptor may belong to another file
            with contextlib.suppress(OSError):
                tell_failure(starters.pop(), error)
        raise


def _service_config(paths: Paths, config: Config, devices: Devices, *, stay: bool) -> ServiceConfig:
    shared = not paths.is_simulated or os.environ.get("STOKER_LEDGER")
    return ServiceConfig(
        paths=paths,
        site=MachineConfig(
            # One that cannot be used keeps only jobs with GPUs waiting.
            ledger=ledger_path(os.environ) if shared else paths.state / "ledger",
            devices=devices,
            user=current_user(),
        ),
        label=LABEL,
        **_rules(config.engine, stay=stay),
    )


def _cluster_config(paths: Paths, config: Config, cluster: str, *, stay: bool) -> ServiceConfig:
    return ServiceConfig(
        paths=paths,
        site=cluster_site(cluster, config.cluster(cluster)),
        label=f"{LABEL} {cluster}",
        owner=engine_of(cluster),
        start_queue=Background(paths).wake,
        **_rules(config.engine, stay=stay),
    )


def _cluster_news(changes: Rereading, paths: Paths, cluster: str, *, stay: bool) -> ServiceConfig | None:
    config = changes.news()
    if config is None or cluster not in config.clusters:
        return None
    return _cluster_config(paths, config, cluster, stay=stay)


def _rules(settings: EngineSettings, *, stay: bool) -> dict[str, Any]:
    """The settings that a new configuration can change while the engine runs."""
    return {
        "policy": policy_of(settings, os.cpu_count() or 1),
        "idle_exit": None if stay else settings.idle_exit,
        "keep": settings.keep,
        "on_finish": settings.on_finish,
        "settings": settings,
    }


def _news(changes: Rereading, service: ServiceConfig, *, stay: bool) -> ServiceConfig | None:
    """The engine's configuration after a change of the files; its devices stay."""
    if (config := changes.news()) is None:
        return None
    devices = service.settings.devices if service.settings else ""
    settings = msgspec.structs.replace(config.engine, devices=devices)
    return msgspec.structs.replace(service, **_rules(settings, stay=stay))


def _devices(settings: EngineSettings, paths: Paths, say: Callable[[str], None]) -> Devices:
    now = time.time()
    named = settings.devices.split(",") if settings.devices else []
    if gpus := simulated_gpus(paths):
        return simulate(gpus, str(paths.simulator), named, now)
    try:
        return detect(named, now)
    except Impossible as error:  # jobs that need no GPU can run all the same
        say(error.message)
        return LateDevices(named, error.message)
