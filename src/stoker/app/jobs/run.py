"""Run jobs in the foreground: check them, find the devices, and describe the engine that runs them in this process."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Struct

from stoker.app.jobs.config import cluster_site
from stoker.app.jobs.context import check_directory, context_here, current_user
from stoker.app.jobs.job_files import COMMAND_LINE, JobLines, ListSource, ParsedJob, RejectedLine, StreamSource
from stoker.app.jobs.job_spec import spec_of
from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.parent import Parent, find_parent, ledger_here
from stoker.app.jobs.preflight import Checkouts
from stoker.app.jobs.preparation import PreparationContext, Preparations
from stoker.app.jobs.script import Script
from stoker.app.jobs.submit import RUNS, JobBuilder, new_log_directory
from stoker.core.device import resolve
from stoker.core.errors import UsageError
from stoker.core.job import Ended
from stoker.core.launch import INHERIT, log_pattern, without_given
from stoker.core.outcomes import LIMIT_RESULTS
from stoker.core.planner.queue import CPU_JOBS
from stoker.core.run_result import Tally, parse_halt
from stoker.core.settings import ClusterSettings, EngineSettings, Policy, policy_of
from stoker.core.spec import Command, Dependency, NewJob, digest_of, work_of
from stoker.core.text import shortened
from stoker.devices.detect import NoDevices, detect, simulate
from stoker.devices.interface import Devices
from stoker.engine.adoption import Supply
from stoker.engine.foreground import Foreground, Setup, Source, View
from stoker.runner.forkserver_client import Forkserver
from stoker.sites.machine.site import MachineConfig
from stoker.store.paths import Paths
from stoker.store.writer import Store, open_store

if TYPE_CHECKING:
    from stoker.app.jobs.dry_run import PlannedJob

Items = Sequence[ParsedJob | RejectedLine] | JobLines
ONE_COMMAND = "--"
LONGEST_LABEL = 200
TIMED_OUT = 124
"""As timeout(1) has it."""
_ANY_LINE = ParsedJob(Command(("true",)), COMMAND_LINE)
"""Stands for the lines of a stream, which all have the options of the batch."""


class ForegroundRequest(Struct, frozen=True):
    """Options and limits of a run; front ends add how to show it."""

    options: JobOptions
    options_of: Callable[[JobOptions], JobOptions] | None = None
    """The options of a job that has some of its own."""
    settings: EngineSettings = EngineSettings()
    """Configured for all engines of this user."""
    devices: str | None = None
    jobs: int | None = None
    max_use: int | None = None
    min_free: int | None = None
    halt: str | None = None
    resume: bool = False
    results: str | None = None
    demo: bool = False
    terminal: str = ""
    """The terminal of an interactive session."""
    script: Script | None = None
    """Set if the command is a script."""
    on_cluster: ClusterSettings | None = None
    """The cluster that `options` name; None is this machine."""

    @property
    def cluster(self) -> str:
        return str(self.options.cluster) if self.on_cluster else ""


class RunBatch:
    """The jobs of one run, and where their output goes."""

    def __init__(
        self,
        request: ForegroundRequest,
        label: str,
        items: Items,
        devices: Devices,
        paths: Paths,
        *,
        say: Callable[[str], None],
        parent: str = "",
    ) -> None:
        """`say` gets warnings; `parent` is the worker of the job that this process runs in."""
        self.request = request
        self.label = label
        self.items = items
        self.one_command = label == ONE_COMMAND
        self.policy = _policy(request)
        self.logs = ""
        # Inside a job that is a client of MPS, its children are clients of the same server.
        self.environment = dict(os.environ) if parent else without_given(os.environ)
        self.files = paths.share(request.cluster, Path(request.on_cluster.shared)) if request.on_cluster else paths
        """Where files of jobs go that their nodes have to see."""
        snapshot = devices.snapshot(time.time())
        context = context_here(
            **(request.script.context if request.script else {}),
            environment=digest_of(self.environment),
            default_out=os.devnull if not self.one_command else self._followed_log() or INHERIT,
            resolve=partial(resolve, snapshot),
            earlier=cache(partial(_earlier, paths)),
            commit=Checkouts(self.environment).commit,
            terminal=request.terminal,
            parent=parent,
        )
        command = request.script.copied(self.files) if request.script else None
        self.preparations = Preparations(
            PreparationContext(lambda _: self.files, self.environment, say, starts_now=True)
        )
        self.builder = JobBuilder(
            request.options,
            context,
            self.environment,
            say,
            policy=self.policy,
            options_of=request.options_of,
            preparations=self.preparations,
            command=command,
        )
        self.builder.snapshot = snapshot

    def _followed_log(self) -> str:
        """The log of one command on a cluster, which is shown here as it grows; empty on this machine."""
        return log_pattern(self.files.logs) if self.request.cluster else ""

    @property
    def what(self) -> str:
        """The run as other users see it in the ledger."""
        words = [item.command.text for item in self.listed] if self.one_command else []
        return shortened(" ".join(["stoker run", self.label, *words]), LONGEST_LABEL)

    @property
    def listed(self) -> list[ParsedJob]:
        """The jobs that are known from the start; those of a stream are not."""
        return [] if isinstance(self.items, JobLines) else [item for item in self.items if isinstance(item, ParsedJob)]

    def check(self) -> None:
        """Refuse what cannot be understood or can never run, before anything has started."""
        own = spec_of(self.request.options, self.builder.context)
        if self.request.options.chdir:
            check_directory(own.cwd)
        specs = self.builder.check(self.listed or [_ANY_LINE])
        if any(spec.cluster != self.request.cluster for spec in specs):
            raise UsageError("a run has one place for all its jobs", "give -M to the run; stoker submit takes several")
        if self.request.cluster and any(INHERIT in (spec.out, spec.err) for spec in specs):
            raise UsageError("-o - is this terminal, which no node has", "name a file")

    def make_log_directory(self, paths: Paths) -> None:
        """Make it before anything starts, so that a directory that cannot be written is refused at once."""
        if self.request.cluster:
            self.files.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self.one_command or self.request.options.out:
            return
        try:
            chosen = self._log_directory(paths)
        except OSError as error:
            raise UsageError(
                f"cannot create the log directory: {error.strerror}"
                + (f" ({error.filename})" if error.filename else ""),
                "choose another with --results DIR",
            ) from error
        if not os.access(chosen, os.W_OK | os.X_OK):
            raise UsageError(f"cannot write to the log directory {chosen}", "choose another with --results DIR")
        self.logs = str(chosen)
        self.builder.know(self.builder.snapshot, default_out=log_pattern(chosen, label=True))

    def _log_directory(self, paths: Paths) -> Path:
        """--results may name an existing directory; otherwise it is a new one."""
        cwd = self.builder.context.cwd
        if self.request.results:
            chosen = Path(cwd, self.request.results)
            chosen.mkdir(parents=True, exist_ok=True)
            return chosen
        return new_log_directory(paths.logs if self.request.demo else Path(cwd, RUNS))

    def logs_kept(self) -> str:
        """The log directory as a user would type it; an empty one that was made for this run is removed."""
        if self.logs and not self.request.results:
            with contextlib.suppress(OSError):
                Path(self.logs).rmdir()
                return ""
        near = os.path.relpath(self.logs, self.builder.context.cwd) if self.logs else ""
        return self.logs if near.startswith("..") else near

    def keep(self, store: Store) -> None:
        """Store the environment and the script that the jobs refer to."""
        with store.writing():
            store.add_environment(self.environment)
            self.preparations.keep()
            if self.request.script:  # its job is made later, and may need the copy
                self.request.script.keep(self.files)

    def jobs(self) -> list[NewJob]:
        """All jobs at once, for a dry run; a stream is read to its end."""
        lines = self.items
        read = [*lines.feed(sys.stdin.buffer.read()), *lines.end()] if isinstance(lines, JobLines) else self.listed
        return [self.builder.make(item) for item in read if isinstance(item, ParsedJob)]

    def source(self, foreground: Foreground, view: View) -> Source:
        """The jobs as the run takes them."""

        def refuse(item: RejectedLine) -> None:
            foreground.tally.unusable += 1
            view.say(f"{item.where} is left out: {item.sentence}")

        self.builder.preflight.say = view.say
        if isinstance(self.items, JobLines):
            return StreamSource(sys.stdin.fileno(), self.items, self.builder.make, refuse)
        foreground.tally.expected = len(self.items)
        return ListSource(self.items, self.builder.make, refuse)

    def is_empty(self, tally: Tally) -> bool:
        """Whether a file had no job; a stream may be empty."""
        given = tally.given or tally.skipped or tally.elsewhere or tally.unusable
        return not (given or self.one_command or self.label in ("-", "--demo"))

    def shares_output(self) -> bool:
        """Whether a job writes to the terminal of this process."""
        if self.request.terminal:
            return False
        all_options = [self.request.options, *(item.options for item in self.listed)]
        if self.request.cluster:
            return False
        named = any(INHERIT in (options.out, options.err) for options in all_options)
        return named or (self.one_command and not self.request.options.out)


def _policy(request: ForegroundRequest) -> Policy:
    configured = policy_of(request.settings, os.cpu_count() or 1)
    # -j counts jobs without GPU too.
    limits = dict(configured.limits) if request.jobs is None else {**configured.limits, CPU_JOBS.name: request.jobs}
    return msgspec.structs.replace(
        configured,
        max_running=request.jobs,
        max_use=configured.max_use if request.max_use is None else request.max_use,
        min_free=configured.min_free if request.min_free is None else request.min_free,
        limits=limits,
    )


def _earlier(paths: Paths, text: str) -> tuple[Dependency, ...]:
    from stoker.app.jobs.select import resolve_after

    with contextlib.closing(open_store(paths)) as store:
        return resolve_after(store, text)


class PreparedRun(NamedTuple):
    """A batch that was checked, and what its engine needs."""

    batch: RunBatch
    paths: Paths
    devices: Devices
    parent: Parent | None
    """The job that this process runs in."""

    def plan(self) -> list[PlannedJob]:
        """The plan of a dry run."""
        from stoker.app.jobs.dry_run import plan_run

        with contextlib.closing(open_store(self.paths)) as store:
            succeeded = (
                Supply(lambda job: store.times_done(work_of(job))).spend
                if self.batch.request.resume
                else lambda _: False
            )
            snapshot = self.devices.snapshot(time.time())
            return plan_run(self.batch.jobs(), succeeded, snapshot, self.batch.policy, store)

    def setup(self, forkserver: Forkserver | None) -> Setup:
        """The engine of the run; makes the directory of its logs."""
        batch, request, parent = self.batch, self.batch.request, self.parent
        batch.make_log_directory(self.paths)
        return Setup(
            paths=self.paths,
            site=cluster_site(request.cluster, request.on_cluster)
            if request.on_cluster
            else MachineConfig(
                ledger=ledger_here(parent, self.paths),
                devices=self.devices,
                user=current_user(),
                within=parent.worker if parent else "",
                share_output=batch.shares_output(),
                share_input=batch.one_command and _input_is_ours(),
                forkserver=forkserver,
            ),
            policy=batch.policy,
            label=batch.what,
            halt=parse_halt(request.halt) if request.halt else None,
            resume=request.resume,
            hangup_stops=bool(request.terminal),
        )


@contextlib.contextmanager
def prepared_run(
    request: ForegroundRequest, label: str, items: Items, paths: Paths, say: Callable[[str], None]
) -> Iterator[PreparedRun]:
    """Refuse what cannot be understood or can never run; `paths` name simulated GPUs, `say` gets warnings."""
    parent = find_parent(os.environ, paths) if not request.demo else None
    if parent:
        request = msgspec.structs.replace(request, settings=parent.restrict(request.settings))
    with contextlib.closing(_find_devices(request, items, paths, parent)) as devices:
        batch = RunBatch(request, label, items, devices, paths, say=say, parent=parent.worker if parent else "")
        batch.check()
        yield PreparedRun(batch, paths, devices, parent)


def _input_is_ours() -> bool:
    """Whether a job may read standard input. In the background it would take the keys from the user's shell.

    The kernel does not prevent that: a job has a session of its own, so that terminal is not its controlling one.
    """
    try:
        return not os.isatty(0) or os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # it is not our controlling terminal either, so no shell reads it
        return True


def _find_devices(request: ForegroundRequest, items: Items, paths: Paths, parent: Parent | None) -> Devices:
    now = time.time()
    if request.cluster:
        return NoDevices()
    pool = "" if paths.is_simulated else request.settings.devices
    named = request.devices.split(",") if request.devices is not None else pool.split(",") if pool else []
    if request.devices is not None and not all(word.strip() for word in named):
        raise UsageError(f"--devices {request.devices!r} contains an empty name", "write it as --devices 0,1")
    if len({word.strip() for word in named}) < len(named):
        raise UsageError(f"--devices {','.join(named)} contains a device twice", "name each device once")
    if not all(word.isprintable() for word in named):
        raise UsageError(f"--devices {request.devices!r} contains an unprintable name", "use plainer names")
    if paths.is_simulated and not parent:
        return simulate(paths.gpus, str(paths.simulator), named, now)
    listed = () if isinstance(items, JobLines) else items
    own = [item.options.gpus for item in listed if isinstance(item, ParsedJob)]
    wanted = [request.options.gpus if gpus is None else gpus for gpus in own] or [request.options.gpus]
    if not named and all(gpus == 0 for gpus in wanted):
        return NoDevices()
    return parent.devices(named) if parent else detect(named, now)


def exit_code(run: Foreground, *, one_command: bool) -> int:
    """The job's own code for one command, or 124 after a limit of its run.

    Of a list: 1 after a failure, or 128 + the signal that stopped the run.
    """
    last = run.tally.last_ended
    if one_command and last is not None and isinstance(last.state, Ended) and last.state.result in LIMIT_RESULTS:
        return TIMED_OUT
    if one_command and last is not None and isinstance(last.state, Ended) and last.state.code is not None:
        return last.state.code
    if run.stopped_by is not None:
        return 128 + run.stopped_by
    return 1 if run.tally.failed else 0
