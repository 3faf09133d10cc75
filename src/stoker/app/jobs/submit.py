"""Build jobs from options, for a run or for the queue, and add them to the queue."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, overload

import msgspec
from msgspec import Struct

from stoker.app.jobs.config import Config
from stoker.app.jobs.context import SubmitContext, check_directory, context_here
from stoker.app.jobs.directives import placed
from stoker.app.jobs.job_files import COMMAND_LINE, PLAIN, ParsedJob, PlainLines
from stoker.app.jobs.job_spec import spec_of
from stoker.app.jobs.limits import check_waiting, within_longest
from stoker.app.jobs.options import JobOptions, merged
from stoker.app.jobs.preflight import Checkouts, KernelLimits, Preflight, start_notes
from stoker.app.jobs.preparation import PreparationContext, Preparations
from stoker.app.jobs.script import VARIABLE, Script, completed_options
from stoker.core.device import Device, Snapshot, resolve
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.core.job import single
from stoker.core.launch import (
    INHERIT,
    MEMBER_VARIABLES,
    PREEMPTION_VARIABLES,
    SLURM_VARIABLES,
    literal,
    log_pattern,
    without_given,
)
from stoker.core.pattern import Pattern
from stoker.core.planner.reasons import never_fits
from stoker.core.settings import LOCAL, Policy, beyond_rules
from stoker.core.spec import Command, Dependency, JobSpec, NewJob, digest_of, parse_after, parse_array, tasks_of
from stoker.core.units import size_text
from stoker.core.warm import AUTO
from stoker.store.engine_lock import engine_of
from stoker.store.paths import Paths
from stoker.store.queries import jobs_of
from stoker.store.schema import SubmitKey
from stoker.store.status_file import Machine
from stoker.store.writer import Store

RUNS = "stoker-runs"
MOST_DIRECTORIES = 1000
"""Logs of runs that start in the same second."""
LONGEST_KEY = 200


def new_log_directory(parent: Path) -> Path:
    """A new directory named after the time, in a parent that is made if it is missing."""
    parent.mkdir(exist_ok=True)
    if parent.lstat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"{parent} belongs to another user")
    return _new_directory(parent, time.strftime("%Y-%m-%d_%H-%M-%S"))


def _new_directory(parent: Path, name: str) -> Path:
    """A directory that did not exist; a number is added to a name that is taken."""
    for number in range(1, MOST_DIRECTORIES):
        path = parent / (name if number == 1 else f"{name}.{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise FileExistsError(errno.EEXIST, "too many directories of the same second", str(parent / name))


JOB_VARIABLES = frozenset(
    (
        *("STOKER_JOB_ID", "STOKER_JOB_NAME", "STOKER_ATTEMPT", "STOKER_GPU_IDS"),
        *("STOKER_ARRAY_ID", "STOKER_ARRAY_INDEX", "STOKER_WORK_DIR", "STOKER_REPORT"),
        *MEMBER_VARIABLES,
        *PREEMPTION_VARIABLES,
        *("STOKER_ALLOCATION", "STOKER_BUNDLE", "STOKER_CODE", "STOKER_CODE_ROOT"),
        VARIABLE,
    )
)
"""Variables of the job that this process runs in; a job that it submits must not inherit them."""

MEMORY_UNKNOWN = "the memory of these devices is unknown, so each runs one job at a time"


class NotServed(StokerError):
    """There is no engine, and none could be started."""

    exit_code = 3


class MadeJobs(Sequence[NewJob]):
    """Jobs that are made whenever they are looked at: of a million, only the parsed ones are kept."""

    def __init__(self, items: Sequence[ParsedJob], make: Callable[[ParsedJob], NewJob]) -> None:
        self._items = items
        self._make = make

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[NewJob]:
        return map(self._make, self._items)

    @overload
    def __getitem__(self, at: int) -> NewJob: ...
    @overload
    def __getitem__(self, at: slice) -> MadeJobs: ...
    def __getitem__(self, at: int | slice) -> NewJob | MadeJobs:
        return MadeJobs(self._items[at], self._make) if isinstance(at, slice) else self._make(self._items[at])


class JobGroup(Struct, frozen=True):
    """Jobs added together: all tasks of one array, or any number of jobs that are none."""

    jobs: Sequence[NewJob]
    """Each may stand for several tasks."""
    array: str = ""
    """The indices as typed; empty where it is no array."""
    patterns: Sequence[Pattern] = ()
    """From which members follow that stand for several."""

    @property
    def count(self) -> int:
        """How many jobs there are. Those that are made when they are looked at are single ones, and are not made."""
        return sum(job.count for job in self.jobs) if isinstance(self.jobs, list | tuple) else len(self.jobs)


class Inserted(JobGroup, frozen=True, kw_only=True):
    """A group that is in the queue."""

    ids: range
    repeated: bool = False
    """Whether it was there before, under the same key."""


class Key(NamedTuple):
    """The user's own name for one submit, by which a repeated one is recognised."""

    text: str
    content: str
    """Digest of all that was given: command, options, directory."""


def key_of(text: str, *given: Any) -> Key:
    if not text.strip() or len(text) > LONGEST_KEY:
        raise UsageError(
            f"--key must have 1 to {LONGEST_KEY} characters", "name this submit, for example --key seeds-7"
        )
    body = json.dumps(msgspec.to_builtins(given), sort_keys=True, default=repr)
    return Key(text, hashlib.sha256(body.encode()).hexdigest())


def earlier_submit(store: Store, key: Key) -> list[Inserted]:
    """The jobs submitted under the key, none if it is new; refuses a key that was used for other jobs."""
    earlier = store.submit_key(key.text)
    if earlier is None:
        return []
    first = earlier.parts[0][0]
    if earlier.content != key.content:
        raise UsageError(
            f"the key {key.text!r} was used for another command, other options or another directory: job {first}",
            f"choose another key; stoker status {first} shows what was submitted",
        )
    return [_inserted_before(store, range(first, first + count), array) for first, count, array in earlier.parts]


def _inserted_before(store: Store, ids: range, array: str) -> Inserted:
    new = [
        NewJob(job.command, job.spec, job.name, job.task, member=job.member, count=job.count, step=job.step)
        for job in (jobs_of(store, ids) if array else single(jobs_of(store, ids)))
    ]
    return Inserted(new, array, ids=ids, repeated=True)


class JobBuilder:
    """Builds the jobs of one batch: merges options, checks them, and drops --cap and --mps if they cannot work."""

    def __init__(
        self,
        options: JobOptions,
        context: SubmitContext,
        environment: Mapping[str, str],
        say: Callable[[str], None],
        *,
        policy: Policy,
        options_of: Callable[[JobOptions], JobOptions] | None = None,
        preparations: Preparations | None = None,
        command: Command | None = None,
    ) -> None:
        """`options_of` completes the options that a job has of its own, `say` gets warnings; `command` runs in place
        of that of every job, as the copy of a script does."""
        self.options = options
        self.context = context
        self.snapshot: Snapshot | None = None
        """The devices, once they are known."""
        self.preflight = Preflight(environment, say)
        self.needs_copy = False
        """Whether a job runs that command."""
        self._policy = policy
        self._options_of = options_of or partial(merged, options)
        self._preparations = preparations or Preparations()
        self._command = command
        self._specs: dict[str, JobSpec] = {}
        """By the options of the job: most jobs of a batch share one spec."""

    def know(self, snapshot: Snapshot | None, **context: Any) -> None:
        """Build with these facts from now on."""
        self.snapshot = snapshot
        self.context = msgspec.structs.replace(self.context, **context)
        self._specs.clear()

    def check(self, items: Iterable[ParsedJob]) -> list[JobSpec]:
        """The specs of all jobs; refuses options that cannot be understood or can never be met."""
        specs = []
        for item in one_of_each(items):
            with located(item):
                specs.append(self.spec(item))
        devices = self.snapshot.devices if self.snapshot else ()
        if devices and not any(device.memory for device in devices) and any(spec.resources.shares for spec in specs):
            self.preflight.say(MEMORY_UNKNOWN)
        return specs

    def make(self, item: ParsedJob) -> NewJob:
        spec = self.preflight.without_unsupported_cap(item.command, self.spec(item))
        spec, has_files = self._preparations.prepare(item.command, spec)
        if spec.warm == (AUTO,):
            from stoker.app.jobs.imports import with_modules  # a parser of Python is slow to import

            spec = with_modules(item.command, spec)
        self.needs_copy = self.needs_copy or not has_files
        command = item.command if has_files else self._command or item.command
        return NewJob(command, spec, self.options_of(item).name or "", item.task, item.array)

    def options_of(self, item: ParsedJob) -> JobOptions:
        return self.options if item.options is PLAIN else self._options_of(item.options)

    def spec(self, item: ParsedJob) -> JobSpec:
        key = _key(item)
        if key not in self._specs:
            spec = within_longest(spec_of(self.options_of(item), self.context), self._policy.locked)
            self._specs[key] = self._resolved(spec)
        return self._specs[key]

    def _resolved(self, spec: JobSpec) -> JobSpec:
        self.preflight.check_limits(spec)
        self.preflight.check_idle(spec)
        self.preflight.check_notify(spec)
        if spec.cluster and spec.warm:
            raise UsageError("--warm does not work on a cluster", "leave it out, or submit to this machine")
        if spec.cluster:  # its devices are not known here
            return spec
        resolved = self.preflight.without_unsupported_mps(spec, self.snapshot.devices if self.snapshot else ())
        if self.snapshot is not None and resolved.resources.gpus:
            with placed(self.context.place_of_model(resolved.resources.model)):
                _refuse_impossible(resolved, self.snapshot, self._policy)
        return resolved


class QueueSubmission:
    """Jobs on their way into the queue: `read`, then `resolve`, then `insert`."""

    def __init__(
        self,
        paths: Paths,
        config: Config,
        options: JobOptions,
        now: float,
        environment: Mapping[str, str],
        *,
        script: Script | None = None,
        arrived: str = "",
    ) -> None:
        """`arrived` is the code of the jobs, if it came from another machine."""
        self.needs_devices = False
        self.notes: list[str] = []
        """Warnings about the jobs, for the user."""
        self._paths = paths
        self._config = config
        self._script = script
        self._now = now
        own = without_given(environment)
        outer = {*JOB_VARIABLES, *(SLURM_VARIABLES if "STOKER_JOB_ID" in own else ())}
        self._environment = {name: own[name] for name in own if name not in outer}
        self._limits = KernelLimits(self._environment)
        self.devices = config.engine.devices
        """The devices that the user wants the engine to have; empty is any."""
        own_options, options_of, notes = completed_options(options, script, config)
        self.notes += notes
        self.files = self._place_of("" if own_options.cluster in (None, LOCAL) else str(own_options.cluster))
        """Where files go that the jobs need: the copy of a script, a pickled function."""
        self.clusters: list[str] = []
        """Where the jobs run, each once; empty is this machine."""
        context = PreparationContext(self._place_of, self._environment, self.notes.append, arrived=arrived)
        self._preparations = Preparations(context)
        self._builder = JobBuilder(
            own_options,
            self._context(),
            self._environment,
            self.notes.append,
            policy=Policy(max_use=config.engine.max_use, min_free=config.engine.min_free, locked=config.engine.locked),
            options_of=options_of,
            preparations=self._preparations,
            command=script.copied(self.files) if script else None,
        )

    def _place_of(self, cluster: str) -> Paths:
        """Where files of jobs go that nodes of a cluster have to see; for this machine, its own state directory."""
        if not cluster:
            return self._paths
        return self._paths.share(cluster, Path(self._config.cluster(cluster).shared))

    def _shared_out(self, cluster: str) -> tuple[str, str]:
        logs = self._place_of(cluster).logs
        return log_pattern(logs), f"{literal(str(logs))}/%A/%a.log"

    def _context(self) -> SubmitContext:
        return context_here(
            **(self._script.context if self._script else {}),
            environment=digest_of(self._environment),
            default_out=log_pattern(self._paths.logs),
            array_out=f"{literal(str(self._paths.logs))}/%A/%a.log",
            resolve=str,
            earlier=_only_read,
            now=self._now,
            fill=True,
            shared_out=self._shared_out,
        )

    def read(self, items: Sequence[ParsedJob]) -> None:
        """Refuse what cannot be understood, before anything is opened or started."""
        for item in one_of_each(items):
            options = self._builder.options_of(item)
            with located(item):
                spec = spec_of(options, self._builder.context)
                self._refuse_unusable(spec, options)
            self.needs_devices = self.needs_devices or (spec.resources.gpus > 0 and not spec.cluster)
            self.clusters += [spec.cluster] if spec.cluster not in self.clusters else []
        for item in [items.longest()] if isinstance(items, PlainLines) else items:
            try:
                self._limits.check(item.command.words, self._builder.options_of(item).env)
            except UsageError as error:
                raise _with_place(item, error) from None

    def resolve(self, items: Sequence[ParsedJob], store: Store, machine: Machine | None) -> list[JobGroup]:
        """The jobs; refuses dependencies on unknown jobs, and needs that the devices can never meet."""
        self._know(items, store, machine)
        groups = list(self._groups(items))
        self._note(
            (job.command, job.spec) for group in groups for job in (group.jobs[:1] if group.array else group.jobs)
        )
        return groups

    def resolve_spec(self, item: ParsedJob, store: Store, machine: Machine | None) -> JobSpec:
        """The spec that many jobs share, whose commands come later; refuses the same as `resolve`."""
        self._know([item], store, machine)
        job = self._builder.make(item)
        self._note([(job.command, job.spec)])
        return job.spec

    def _know(self, items: Sequence[ParsedJob], store: Store, machine: Machine | None) -> None:
        snapshot = machine.snapshot if machine else None
        self._builder.know(
            snapshot,
            earlier=partial(_earlier, store),
            commit=Checkouts(self._environment).commit,
            resolve=_unknown_device if snapshot is None else partial(resolve, snapshot),
        )
        self._builder.check(items)

    def _note(self, first: Iterable[tuple[Command, JobSpec]]) -> None:
        """Warn about what the jobs would meet at their start."""
        if self._script:  # its copy is made later
            first = ((Command(("sh",)), spec) for _, spec in first)
        context = self._builder.context
        shared = {out for cluster in self.clusters if cluster for out in self._shared_out(cluster)}
        self.notes += start_notes(first, self._environment, {context.default_out, context.array_out, "", *shared})

    def insert(
        self, store: Store, groups: Sequence[JobGroup], label: str, *, held: str, key: Key | None = None
    ) -> list[Inserted]:
        """Add all jobs to the queue in one transaction, or find those that were submitted under the key before."""
        for cluster in self.clusters:
            _make_logs(self._place_of(cluster))
        with store.writing():
            if key and (before := earlier_submit(store, key)):
                return before
            check_waiting(store, sum(group.count for group in groups), self._config.engine.locked)
            self._preparations.keep()
            if self._script and self._builder.needs_copy:
                self._script.keep(self.files)
            store.add_environment(self._environment)
            batch = store.add_batch(label, self._now)
            inserted = [self._insert_group(store, batch, group, held) for group in groups]
            if key:
                places = [(group.ids[0], len(group.ids), group.array) for group in inserted]
                store.add_key(key.text, SubmitKey(key.content, places))
            return inserted

    def _insert_group(self, store: Store, batch: int, group: JobGroup, held: str) -> Inserted:
        cluster = group.jobs[0].spec.cluster
        ids = store.add_jobs(
            *(batch, engine_of(cluster), group.jobs, self._now),
            array=bool(group.array),
            held=held,
            lines=True,
            patterns=group.patterns,
        )
        if group.array:
            (self._place_of(cluster).logs / str(ids[0])).mkdir(mode=0o700, exist_ok=True)
        return Inserted(group.jobs, group.array, ids=ids)

    def _refuse_unusable(self, spec: JobSpec, options: JobOptions) -> None:
        if INHERIT in (spec.out, spec.err):
            raise UsageError("-o - needs a terminal, but jobs of the queue have none", "name a file")
        starts_later = options.after or options.begin  # an earlier job may make its directory
        if spec.cwd != self._builder.context.cwd and not starts_later:
            check_directory(spec.cwd)

    def _groups(self, items: Sequence[ParsedJob]) -> Iterator[JobGroup]:
        make = self._builder.make
        if isinstance(items, PlainLines) and self._group_of(items[0])[1] is None:
            yield JobGroup(MadeJobs(items, make))
            return
        for (_, array), some in groupby(items, self._group_of):
            if array is None:
                yield JobGroup(MadeJobs(list(some), make))
            else:
                indices = parse_array(array).indices
                yield from (JobGroup(tasks_of(make(item), indices), array) for item in some)

    def _group_of(self, item: ParsedJob) -> tuple[str, str | None]:
        return self._builder.spec(item).cluster, self._builder.options_of(item).array


def _make_logs(place: Paths) -> None:
    try:
        place.logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StokerError(
            f"cannot make {place.logs}: {error.strerror}",
            "all nodes must see this directory; see shared in the configuration of the cluster",
        ) from error


def one_of_each(items: Iterable[ParsedJob]) -> Iterable[ParsedJob]:
    """The first job with each set of options; most jobs of a list have the same."""
    if isinstance(items, PlainLines):
        return items[:1]
    first: dict[str, ParsedJob] = {}
    for item in items:
        first.setdefault(_key(item), item)
    return first.values()


def _key(item: ParsedJob) -> str:
    return "" if item.options is PLAIN else str(item.options)


@contextlib.contextmanager
def located(item: ParsedJob) -> Iterator[None]:
    """Put the place of a job before an error about its own options."""
    try:
        yield
    except StokerError as error:
        raise error if item.options == PLAIN else _with_place(item, error) from None


def _with_place(item: ParsedJob, error: StokerError) -> StokerError:
    if item.where == COMMAND_LINE:
        return error
    return type(error)(f"{item.where}: {error.message}", error.hint)


def _only_read(text: str) -> tuple[Dependency, ...]:
    parse_after(text)
    return ()


def _earlier(store: Store, text: str) -> tuple[Dependency, ...]:
    from stoker.app.jobs.select import resolve_after

    return resolve_after(store, text)


def _unknown_device(word: str) -> str:
    raise NotServed(f"the engine has not reported a device {word!r}", "check: stoker engine start")


def _refuse_impossible(spec: JobSpec, snapshot: Snapshot, policy: Policy) -> None:
    if beyond := beyond_rules(spec.resources, policy.locked):
        raise Impossible(beyond, "request less, or ask the administrator")
    if not snapshot.devices:
        raise Impossible(
            snapshot.note or "no GPU found",
            "name devices (STOKER_DEVICES=0,1, or devices in the configuration), submit jobs without GPU (-G 0), "
            "or try it with --sim 4x24G",
        )
    resources, devices = spec.resources, snapshot.devices
    impossible = never_fits(resources, devices, policy.max_use, policy.min_free)
    if impossible and resources.model and not any(resources.model in device.model.lower() for device in devices):
        raise Impossible(impossible, "to ignore the type, add --gpu-type ''")
    if impossible:
        raise Impossible(impossible, f"request less; the {machine_text(devices)}")


def machine_text(devices: Sequence[Device]) -> str:
    """The GPUs of the machine: `GPUs are 0, 1 (A100, 40.0G)`."""
    labels: dict[str, list[str]] = {}
    for device in devices:
        size = size_text(device.memory) if device.memory else ""
        labels.setdefault(" ".join(filter(None, (device.model, size))), []).append(device.label)
    kinds = [", ".join(dict.fromkeys(names)) + (f" ({kind})" if kind else "") for kind, names in labels.items()]
    return ("GPU is " if len(devices) == 1 else "GPUs are ") + "; ".join(kinds)
