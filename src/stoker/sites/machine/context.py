"""The parts that a machine site works with, made once for each engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from stoker.devices.interface import Devices
from stoker.features import FEATURES, load
from stoker.ledger import Ledger
from stoker.runner.interface import WorkerRunner
from stoker.sites.interface import EngineJobs, SiteContext, StartObserver
from stoker.sites.machine.allocations import Allocations
from stoker.sites.machine.fairshare import OwnUsage
from stoker.sites.machine.mps import MpsClients
from stoker.sites.machine.observation import Observation
from stoker.sites.machine.shortages import ResourceBackoff
from stoker.sites.machine.telemetry import Telemetry
from stoker.store.history import RunHistory
from stoker.store.paths import Paths
from stoker.store.reports import OwnWords
from stoker.store.writer import Store


class MachineContext(Struct, frozen=True):
    """The engine, the machine, and what both know of attempts; a test replaces single parts by fakes."""

    jobs: EngineJobs
    paths: Paths
    store: Store
    label: str
    """The engine's name for other users."""
    within: str
    """The worker of the parent job, if the engine runs inside a job and the ledger is that job's."""
    devices: Devices
    runner: WorkerRunner
    ledger: Ledger
    observation: Observation
    history: RunHistory
    allocations: Allocations
    usage: OwnUsage
    telemetry: Telemetry
    words: OwnWords
    shortages: ResourceBackoff
    mps_clients: MpsClients
    observers: Sequence[StartObserver] = ()


def machine_context(
    context: SiteContext, devices: Devices, runner: WorkerRunner, ledger_path: Path, within: str = ""
) -> MachineContext:
    """Make all parts for an engine."""
    jobs, store = context.jobs, context.store
    ledger, history = Ledger(ledger_path), RunHistory(store)
    words = OwnWords(context.paths.report)
    allocations = Allocations(
        runner,
        ledger,
        context.label,
        history.expected,
        lambda job, now: history.preemption(job, now, words.of(job, now)),
    )
    return MachineContext(
        jobs=jobs,
        paths=context.paths,
        store=store,
        label=context.label,
        within=within,
        devices=devices,
        runner=runner,
        ledger=ledger,
        observation=Observation(devices, ledger, jobs.clock()),
        history=history,
        allocations=allocations,
        usage=OwnUsage(store, context.engine),
        words=words,
        telemetry=Telemetry(allocations, runner, jobs.active, store.uses),
        shortages=ResourceBackoff(jobs, runner, str(context.paths.state)),
        mps_clients=MpsClients(runner),
        observers=[load(feature.observer)(context.paths) for feature in FEATURES.values() if feature.observer],
    )
