"""Be a pilot: an ordinary engine in a job of Slurm's, which gets its jobs through files and reports what happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from stoker.app.jobs.context import current_user
from stoker.core.device import NodeGpu
from stoker.core.errors import Impossible, StokerError
from stoker.core.job import (
    Assigned,
    Displaced,
    Ended,
    Event,
    Exited,
    Job,
    JobEvent,
    Lost,
    Queued,
    Returned,
    Started,
    Stayed,
)
from stoker.core.launch import attempt_key
from stoker.core.settings import EngineSettings, policy_of
from stoker.core.text import printable
from stoker.core.units import count_text
from stoker.devices.detect import NoDevices, detect, simulate
from stoker.devices.interface import Devices
from stoker.engine.resources import EngineConfig, EngineRuntime
from stoker.engine.signals import SignalSocket
from stoker.features.slurm.node import FULL_PAUSE, TERM_SECONDS, gpus_of, node_name
from stoker.features.slurm.orders import module_words
from stoker.features.slurm.pilot.files import (
    Alive,
    AttemptReport,
    CheckOrder,
    GiveWay,
    IdleReport,
    Leave,
    Leaving,
    PilotEvent,
    PilotFolder,
    PilotOrder,
    PilotPlan,
    PilotReady,
    Ping,
    Recall,
    RunJob,
    Stop,
)
from stoker.ledger import ledger_path, prepare_ledger
from stoker.sites.machine.site import MachineConfig
from stoker.sites.prepared import bring_prepared
from stoker.store.paths import Paths, remove_tree
from stoker.store.waiting import PollPace, wait_until

FASTEST_LOOK = 0.02
SLOWEST_LOOK = 0.1
LOOK_SHARE = 100
"""Seconds between two looks for orders. Looking takes at most 1/LOOK_SHARE of the time."""
OWNER = "pilot"
IDLE_SECONDS = 60.0
"""Seconds without use of its GPUs after which the head is told of an attempt, if its own rule is not stricter."""
IDLE_INTERVAL = 1.0
PILOT_ENDS = "its pilot ends"
TERMINATED = 143
"""Exit code of a command that TERM ended."""


class PilotRuntime:
    """Takes orders, runs the engine, and reports to the head."""

    def __init__(self, folder: PilotFolder, plan: PilotPlan, state: Path, devices: Devices, node: str) -> None:
        self._folder = folder
        self._plan = plan
        self._node = node
        self._paths = Paths(state)
        self._offset = 0
        self._pace = PollPace(FASTEST_LOOK, SLOWEST_LOOK, LOOK_SHARE)
        self._events: list[PilotEvent] = [PilotReady(node, len(devices.snapshot(time.time()).devices))]
        self._taken: dict[int, str] = {}
        """Attempts by job that are not over."""
        self._idle: set[int] = set()
        """Jobs of which the head knows that their GPUs are not used."""
        self._idle_due = 0.0
        self._held: list[int] = []
        """Jobs that the engine put on hold; the head decides what becomes of them."""
        self._checks: list[subprocess.Popen[bytes]] = []
        self._leaving = False
        self._ended_by_slurm = False
        self._busy_at = time.monotonic()
        settings = EngineSettings()
        machine = MachineConfig(_ledger(plan, node), devices, current_user(), tied_to=folder.path)
        config = EngineConfig(
            paths=self._paths,
            site=machine,
            policy=policy_of(settings, os.cpu_count() or 1),
            label=f"stoker pilot of {plan.cluster}",
            durable=False,
        )
        self._runtime = EngineRuntime(config, self._happened, owner=OWNER)
        self._runtime.engine.watches_idle_jobs = False  # the head decides, by the rules as users edited them
        self._runtime.engine.run_once()
        # The head must know that an attempt may have begun before its process exists.
        self._runtime.engine.before_dispatch = self.flush
        self._signals = self._runtime.keep(SignalSocket())
        self._runtime.engine.watch(self._signals, self._signalled)

    def run(self) -> None:
        """Work until told to leave, or idle for too long."""
        engine = self._runtime.engine
        while not self._is_over():
            if not self._ended_by_slurm and engine.now >= self._pace.at:
                self._take_orders()
            engine.turn(SLOWEST_LOOK if self._ended_by_slurm else max(0.0, self._pace.at - engine.now))
            self._give_up_held()
            self._report_idle_jobs()
            self.flush()
        if not self._ended_by_slurm and not self._leaving:
            self._events.append(Leaving())
            self.flush()

    def close(self) -> None:
        self._taken.clear()  # no event is reported any more, nor a signal looked for
        self._runtime.close()

    def flush(self) -> None:
        """Tell the head what has happened so far, and wait while the directory is full or out of sight: jobs go on."""
        while self._events:
            try:
                self._folder.report(self._events)
                self._events = []
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
        orders_to_run = [order for order in orders if isinstance(order, RunJob)]
        if orders_to_run:
            self._take(orders_to_run)
        for order in orders:
            if isinstance(order, Ping):
                self._events.append(Alive())
            elif isinstance(order, Leave):
                self._leave()
            elif isinstance(order, CheckOrder):
                self._check(order)
            elif not isinstance(order, RunJob) and order.job in self._taken:
                self._obey(order)

    def _new_orders(self) -> list[PilotOrder]:
        """The orders since the last look; none while the shared directory is out of sight."""
        try:
            orders, self._offset = self._folder.read_orders(self._offset)
        except OSError:
            if self._folder.is_removed:
                raise
            return []
        return orders

    def _take(self, orders_to_run: list[RunJob]) -> None:
        """Claim attempts that the head did not take back, and queue them, or return them if the pilot leaves."""
        mine = [order for order in orders_to_run if self._folder.claim_as(_key(order.job))]
        self._folder.sync_claims()
        if self._leaving:
            self._events += [AttemptReport(_key(order.job), Returned(0, self._runtime.engine.now)) for order in mine]
            return
        mine = [order for order in mine if self._has_brought(order.job)]
        store = self._runtime.store
        with store.writing():
            for order in mine:
                if order.environment is not None:
                    store.add_environment(order.environment)
            store.import_jobs([order.job for order in mine], OWNER)
        for order in mine:
            self._taken[order.job.id] = _key(order.job)
            self._runtime.engine.adopt(order.job, adopted=False)

    def _has_brought(self, job: Job) -> bool:
        """Bring what was prepared for a job to this node; if that fails, return the attempt, and the head looks why."""
        try:
            if job.spec.code:
                bring_prepared(job.spec, Paths(Path(self._plan.files)), self._paths)
        except (OSError, StokerError) as error:
            self._events.append(AttemptReport(_key(job), Returned(0, self._runtime.engine.now, shortage=str(error))))
            return False
        return True

    def _check(self, order: CheckOrder) -> None:
        """Start a process that kills what is left of another allocation here, and says so in its folder."""
        words = module_words(sys.executable, "guard", "check", *msgspec.structs.astuple(order))
        self._checks = [check for check in self._checks if check.poll() is None]
        with contextlib.suppress(OSError):  # short of processes: the head asks again
            self._checks.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True))

    def _obey(self, order: Recall | Stop | GiveWay) -> None:
        engine = self._runtime.engine
        if isinstance(order, Stop):
            engine.cancel(order.job, order.grace, order.note, order.signal)
        elif isinstance(order, GiveWay):
            for job in engine.active_jobs:
                if job.id == order.job:
                    engine.displace(job, order.to or None, order.note)
        else:
            self._give_back(order.job)

    def _give_back(self, job_id: int) -> None:
        """Return an attempt that waits here; one that has started, is about to, or is over is not returned.

        The end of one may be known here and not recorded yet, so that it is still among those taken.
        """
        if self._runtime.engine.is_queued(job_id):
            attempt = self._taken.pop(job_id)
            self._runtime.engine.cancel(job_id, None, "given back")
            self._events.append(AttemptReport(attempt, Returned(0, self._runtime.engine.now)))

    def _give_up_held(self) -> None:
        held, self._held = self._held, []
        for job_id in held:
            self._runtime.engine.cancel(job_id, None, "given back")

    # -- events -------------------------------------------------------------------------------------

    def _happened(self, job_event: JobEvent) -> None:
        job, event = job_event.job, job_event.event
        attempt = self._taken.get(job.id)
        if attempt is None or self._ended_by_slurm:
            return
        if isinstance(event, Exited | Lost | Returned) or isinstance(job.state, Ended):
            del self._taken[job.id]
            self._idle.discard(job.id)
        if _may_be_slurms_doing(event) and self._is_terminated():
            return
        if isinstance(event, Started):
            gpus = [NodeGpu(self._plan.cluster, self._node, device.label) for device in job_event.devices]
            event = replace(event, devices=tuple(gpu.id for gpu in gpus))
        if isinstance(event, Assigned | Started | Displaced | Stayed | Exited | Lost | Returned):
            self._events.append(AttemptReport(attempt, event))
        elif isinstance(job.state, Ended):  # cancelled before it started
            self._events.append(AttemptReport(attempt, Returned(0, event.at)))
        elif isinstance(job.state, Queued):
            self._held.append(job.id)

    def _report_idle_jobs(self) -> None:
        """Tell the head which jobs do not use their GPUs."""
        engine = self._runtime.engine
        now = engine.now
        if now < self._idle_due:
            return
        self._idle_due = now + IDLE_INTERVAL
        for job_id, since in engine.idle_since.items():
            rule = next((job.spec.idle for job in engine.active_jobs if job.id == job_id), None)
            if rule is None or job_id not in self._taken or (since is None and job_id not in self._idle):
                continue
            if since is None:
                self._idle.discard(job_id)
                self._events.append(IdleReport(self._taken[job_id], None))
            elif job_id not in self._idle and now - since >= min(IDLE_SECONDS, rule.seconds or IDLE_SECONDS):
                self._idle.add(job_id)
                self._events.append(IdleReport(self._taken[job_id], now - since))

    def _is_terminated(self) -> bool:
        """Whether Slurm's TERM came; it reaches a job and this process one after the other."""

        def has_come() -> bool:
            self._signalled()
            return self._ended_by_slurm

        return wait_until(has_come, TERM_SECONDS)

    def _signalled(self) -> None:
        """USR1 comes before the end: start nothing more, and let jobs save that can.

        TERM is the end; what Slurm says of the pilot counts then.
        """
        for number in self._signals.received():
            if number == signal.SIGUSR1:
                self._leave()
                for job in self._runtime.engine.active_jobs:
                    self._runtime.engine.displace(job, 0, PILOT_ENDS)
            elif number == signal.SIGTERM:
                self._ended_by_slurm = True
                self._runtime.engine.drain()

    def _leave(self) -> None:
        self._leaving = True
        self._events.append(Leaving())
        self._runtime.engine.drain()
        for job_id in list(self._taken):
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
        if plan.files:
            (state / "software").symlink_to(Paths(Path(plan.files)).software)
        with contextlib.closing(_devices(plan, state)) as devices:
            if (count := len(devices.snapshot(time.time()).devices)) < plan.gpus:
                folder.fail(0, _too_few(plan, node, count))
                sys.exit(1)
            pilot = PilotRuntime(folder, plan, state, devices, node)
            with contextlib.closing(pilot):
                pilot.run()
    except StokerError as error:
        folder.fail(0, f"a pilot on {node}: {error}")
        sys.exit(1)
    finally:
        remove_tree(state)


def _too_few(plan: PilotPlan, node: str, count: int) -> str:
    """The head holds the jobs with these words when one pilot after another says so."""
    return (
        f"a pilot on {node} found {count_text(count, 'GPU')}, and a job needs {plan.gpus}; see nvidia-smi there; "
        f'pilots = "never" under [cluster.{plan.cluster}] runs jobs without pilots'
    )


def _devices(plan: PilotPlan, state: Path) -> Devices:
    named, now = [] if plan.whole_node else gpus_of(os.environ), time.time()
    if plan.simulated_gpus:
        return simulate(plan.simulated_gpus, str(state / "simulator"), named, now)
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
