"""Be a pilot: an ordinary engine in a job of Slurm's, which gets its jobs through files and reports what happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import msgspec
from msgspec.structs import replace

from stoker.app.jobs.context import current_user
from stoker.core.errors import Impossible, StokerError
from stoker.core.job import Assigned, Ended, Event, Exited, Job, JobEvent, Lost, Queued, Returned, Started
from stoker.core.launch import attempt_key
from stoker.core.settings import EngineSettings, policy_of
from stoker.core.text import printable
from stoker.core.units import count_text
from stoker.devices.detect import NoDevices, detect, simulate
from stoker.devices.interface import Devices
from stoker.engine.resources import EngineConfig, EngineRuntime
from stoker.engine.signals import SignalSocket
from stoker.features.slurm.node import FULL_PAUSE, TERM_SECONDS, gpus_of, node_name
from stoker.features.slurm.pace import Pace
from stoker.features.slurm.pilot_files import (
    Ask,
    CheckOrder,
    Hand,
    Here,
    Leave,
    Left,
    News,
    Order,
    PilotFolder,
    PilotPlan,
    Ready,
    Recall,
    Report,
    Stop,
)
from stoker.ledger import ledger_path, prepare_ledger
from stoker.sites.interface import Site, SiteContext
from stoker.sites.machine.site import MachineConfig
from stoker.store.paths import Paths

FASTEST_LOOK = 0.02
SLOWEST_LOOK = 0.1
LOOK_SHARE = 100
"""Seconds between two looks for orders, and longer if one takes more than a part in so many of that."""
OWNER = "pilot"
TERMINATED = 143
"""Exit code of a command that TERM ended."""


class ReportingConfig:
    """The site of this machine, which reports before it starts anything."""

    def __init__(self, machine: MachineConfig, pilot: Pilot) -> None:
        self._machine = machine
        self._pilot = pilot

    def open(self, context: SiteContext) -> Site:
        return cast("Site", _ReportingSite(self._machine.open(context), self._pilot))


class _ReportingSite:
    """The head must know that an attempt may have begun before its process exists."""

    def __init__(self, site: Site, pilot: Pilot) -> None:
        self._site = site
        self._pilot = pilot

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

    def dispatch(self, *, recorded: bool) -> None:
        self._pilot.flush()
        self._site.dispatch(recorded=recorded)


class Pilot:
    """Takes orders, runs the engine, and tells the head what happens."""

    def __init__(self, folder: PilotFolder, plan: PilotPlan, state: Path, devices: Devices, node: str) -> None:
        self._folder = folder
        self._plan = plan
        self._node = node
        self._offset = 0
        self._pace = Pace(FASTEST_LOOK, SLOWEST_LOOK, LOOK_SHARE)
        self._news: list[News] = [Ready(node, len(devices.snapshot(time.time()).devices))]
        self._taken: dict[int, str] = {}
        """Attempts by job that are not over."""
        self._again: list[int] = []
        """Jobs that the engine would run once more; the head decides where."""
        self._checks: list[subprocess.Popen[bytes]] = []
        self._leaving = False
        self._ended_by_slurm = False
        self._busy_at = time.monotonic()
        settings = EngineSettings()
        machine = MachineConfig(_ledger(plan, node), devices, current_user(), tied_to=folder.path)
        config = EngineConfig(
            paths=Paths(state),
            site=ReportingConfig(machine, self),
            policy=policy_of(settings, os.cpu_count() or 1),
            label=f"stoker pilot of {plan.cluster}",
            durable=False,
        )
        self._runtime = EngineRuntime(config, self._happened, owner=OWNER)
        self._signals = self._runtime.keep(SignalSocket())
        self._runtime.engine.watch(self._signals, self._signalled)

    def run(self) -> None:
        """Work until told to leave, or idle for too long."""
        engine = self._runtime.engine
        while not self._is_over():
            if not self._ended_by_slurm and engine.now >= self._pace.at:
                self._take_orders()
            engine.turn(SLOWEST_LOOK if self._ended_by_slurm else max(0.0, self._pace.at - engine.now))
            self._give_up_repeated()
            self.flush()
        if not self._ended_by_slurm and not self._leaving:
            self._news.append(Left())
            self.flush()

    def close(self) -> None:
        self._runtime.close()

    def flush(self) -> None:
        """Tell the head what has happened so far, and wait while the directory is full or out of sight: jobs go on."""
        while self._news:
            try:
                self._folder.tell(self._news)
                self._news = []
            except OSError:
                if self._folder.is_removed:  # the head gave the pilot up, and its jobs may run elsewhere
                    raise
                time.sleep(FULL_PAUSE)

    def _is_over(self) -> bool:
        if self._ended_by_slurm or self._leaving:
            return self._runtime.engine.at_rest
        now = time.monotonic()
        if self._taken:
            self._busy_at = now
        return now - self._busy_at > self._plan.idle

    # -- orders -----------------------------------------------------------------------------------

    def _take_orders(self) -> None:
        began = self._runtime.engine.now
        orders = self._new_orders()
        now = self._runtime.engine.now
        self._pace.looked(now, now - began, news=bool(orders))
        hands = [order for order in orders if isinstance(order, Hand)]
        if hands:
            self._take(hands)
        for order in orders:
            if isinstance(order, Ask):
                self._news.append(Here())
            elif isinstance(order, Leave):
                self._leave()
            elif isinstance(order, CheckOrder):
                self._check(order)
            elif not isinstance(order, Hand) and order.job in self._taken:
                self._obey(order)

    def _new_orders(self) -> list[Order]:
        """The orders since the last look; none while the shared directory is out of sight."""
        try:
            orders, self._offset = self._folder.read_orders(self._offset)
        except OSError:
            if self._folder.is_removed:
                raise
            return []
        return orders

    def _take(self, hands: list[Hand]) -> None:
        """Claim attempts that the head did not take back, and queue them, or return them if the pilot leaves."""
        mine = [hand for hand in hands if self._folder.claim_as(_key(hand.job))]
        self._folder.sync_claims()
        if self._leaving:
            self._news += [Report(_key(hand.job), Returned(0, self._runtime.engine.now)) for hand in mine]
            return
        store = self._runtime.store
        with store.writing():
            for hand in mine:
                if hand.environment is not None:
                    store.add_environment(hand.environment)
            store.import_jobs([hand.job for hand in mine], OWNER)
        for hand in mine:
            self._taken[hand.job.id] = _key(hand.job)
            self._runtime.engine.adopt(hand.job, adopted=False)

    def _check(self, order: CheckOrder) -> None:
        """Start a process that kills what is left of another allocation here, and says so in its folder."""
        words = [sys.executable, "-P", "-m", "stoker.features.slurm.guard", "check", *msgspec.structs.astuple(order)]
        self._checks = [check for check in self._checks if check.poll() is None]
        with contextlib.suppress(OSError):  # short of processes: the head asks again
            self._checks.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True))

    def _obey(self, order: Recall | Stop) -> None:
        engine = self._runtime.engine
        if isinstance(order, Stop):
            engine.cancel(order.job, order.grace, order.note, order.signal)
        elif any(job.id == order.job for job in engine.held):
            return  # it has started, or is about to
        else:
            self._give_back(order.job)

    def _give_back(self, job_id: int) -> None:
        """Return an attempt that waits here."""
        attempt = self._taken.pop(job_id, None)
        if attempt is not None:
            self._runtime.engine.cancel(job_id, None, "given back")
            self._news.append(Report(attempt, Returned(0, self._runtime.engine.now)))

    def _give_up_repeated(self) -> None:
        again, self._again = self._again, []
        for job_id in again:
            self._runtime.engine.cancel(job_id, None, "given back")

    # -- news -------------------------------------------------------------------------------------

    def _happened(self, job_event: JobEvent) -> None:
        job, event = job_event.job, job_event.event
        attempt = self._taken.get(job.id)
        if attempt is None or self._ended_by_slurm:
            return
        if _may_be_slurms_doing(event) and self._is_terminated():
            return
        if isinstance(event, Started):
            devices = tuple(f"{self._plan.cluster}:{self._node} {device.label}" for device in job_event.devices)
            event = replace(event, devices=devices)
        if isinstance(event, Assigned | Started | Exited | Lost | Returned):
            self._news.append(Report(attempt, event))
        if isinstance(event, Exited | Lost | Returned):
            del self._taken[job.id]
        elif isinstance(job.state, Ended):
            del self._taken[job.id]  # cancelled before it started
            self._news.append(Report(attempt, Returned(0, event.at)))
        if isinstance(job.state, Queued) and not isinstance(event, Assigned):
            self._again.append(job.id)

    def _is_terminated(self) -> bool:
        """Whether Slurm's TERM came; it reaches a job and this process one after the other."""
        deadline = time.monotonic() + TERM_SECONDS
        while time.monotonic() < deadline and not self._ended_by_slurm:
            self._signalled()
            time.sleep(0.01)
        return self._ended_by_slurm

    def _signalled(self) -> None:
        """USR1 comes before the end: start nothing more. TERM is the end; what Slurm says of the pilot counts then."""
        for number in self._signals.received():
            if number == signal.SIGUSR1:
                self._leave()
            elif number == signal.SIGTERM:
                self._ended_by_slurm = True
                self._runtime.engine.drain()

    def _leave(self) -> None:
        self._leaving = True
        self._news.append(Left())
        self._runtime.engine.drain()
        held = {job.id for job in self._runtime.engine.held}
        for job_id in [job_id for job_id in self._taken if job_id not in held]:
            self._give_back(job_id)


def _may_be_slurms_doing(event: Event) -> bool:
    """Whether an attempt ended as it does when Slurm ends the pilot: by TERM, or with its worker."""
    ended = isinstance(event, Exited) and event.code == TERMINATED and event.why == "exited"
    return ended or isinstance(event, Lost)


def _key(job: Job) -> str:
    return attempt_key(job.id, job.attempts + 1)


def _ledger(plan: PilotPlan, node: str) -> Path:
    if not plan.ledger:
        return ledger_path(os.environ)
    return prepare_ledger(prepare_ledger(Path(plan.ledger)) / node)


def serve_pilot(path: Path) -> None:
    """Be the pilot of a folder, which the parent of this process has claimed."""
    folder = PilotFolder(path)
    plan, node = folder.plan(), node_name(os.environ)
    state = Path(tempfile.mkdtemp(prefix="stoker-pilot-"))
    try:
        (state / "reports").symlink_to(plan.reports)
        with contextlib.closing(_devices(plan, state)) as devices:
            if (found := len(devices.snapshot(time.time()).devices)) < plan.gpus:
                folder.fail(0, _too_few(plan, node, found))
                sys.exit(1)
            pilot = Pilot(folder, plan, state, devices, node)
            with contextlib.closing(pilot):
                pilot.run()
    except StokerError as error:
        folder.fail(0, f"a pilot on {node}: {error}")
        sys.exit(1)
    finally:
        shutil.rmtree(state, ignore_errors=True)


def _too_few(plan: PilotPlan, node: str, found: int) -> str:
    """The head holds the jobs with these words when one pilot after another says so."""
    return (
        f"a pilot on {node} found {count_text(found, 'GPU')}, and a job needs {plan.gpus}; see nvidia-smi there; "
        f'pilots = "never" under [cluster.{plan.cluster}] runs jobs without pilots'
    )


def _devices(plan: PilotPlan, state: Path) -> Devices:
    named, now = [] if plan.whole_node else gpus_of(os.environ), time.time()
    if plan.sim:
        return simulate(plan.sim, str(state / "simulator"), named, now)
    try:
        return detect(named, now) if named or plan.whole_node else NoDevices()
    except Impossible:
        return NoDevices()


def main() -> None:
    try:
        serve_pilot(Path(sys.argv[1]))
    except StokerError as error:
        print(f"stoker: {printable(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
