"""Make a sweep from what a user asked for, and submit its trials to the queue in one transaction."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import overload

import msgspec
from msgspec import Struct

from stoker.app.control.engine_process import Background
from stoker.app.control.requests import Control
from stoker.app.jobs.config import Config
from stoker.app.jobs.job_files import COMMAND_LINE, ParsedJob
from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.submit import JobGroup, QueueSubmission
from stoker.core.errors import StokerError, UsageError, did_you_mean
from stoker.core.ranges import Ranges, missing
from stoker.core.spec import MOST_TASKS, Command, JobSpec, NewJob
from stoker.core.units import count_text
from stoker.features.sweep.change import resume
from stoker.features.sweep.folders import make_folders, planned_folders
from stoker.features.sweep.model.grammar import check_space
from stoker.features.sweep.model.pattern import shared_trials
from stoker.features.sweep.model.points import ADAPTIVE, METHODS, size_of
from stoker.features.sweep.model.record import REPEAT, SweepSpec, trial_jobs
from stoker.features.sweep.model.space import Choices, Product, Space
from stoker.features.sweep.model.template import (
    LATER,
    Style,
    appended,
    check_placeholders,
    placeholders,
    variable_of,
    with_arguments,
)
from stoker.features.sweep.repeated import submitted_before
from stoker.features.sweep.store import StoredSweep, add_sweep, all_sweeps
from stoker.features.sweep.tuner_job import check_tuning, needs_tuner, tuner_job, wandb_starter
from stoker.store.paths import Paths
from stoker.store.status_file import Machine
from stoker.store.writer import Store

MANY = 10_000
"""Trials that are queued only after the user has confirmed their number."""
LARGEST = 10**9
LABEL = "sweep"
WANDB_COUNT = 100
"""Trials of a sweep of W&B's that has no end."""


class SweepRequest(Struct, frozen=True, kw_only=True):
    """A sweep as a user or a file asks for it; None and empty mean not given."""

    space: Space
    command: Command | None = None
    method: str | None = None
    count: int | None = None
    seed: int | None = None
    repeat: int | None = None
    max_parallel: int | None = None
    style: Style | None = None
    results: str | None = None
    objectives: tuple[str, ...] = ()
    goal: str | None = None
    pruners: tuple[str, ...] = ()
    wandb: bool | None = None
    """Whether the command is one for the agent of Weights & Biases, with its macros."""
    nested: tuple[str, ...] = ()
    """Parameters of such a file that are tables of others."""
    notes: tuple[str, ...] = ()
    """Of the file, for the user."""


class SweepPlan(Struct, frozen=True):
    """A sweep that was understood, and the job options of its trials."""

    sweep: SweepSpec
    options: JobOptions
    notes: tuple[str, ...] = ()
    """Warnings for the user."""


class EarlierTrials(Struct, frozen=True, kw_only=True):
    """How to treat trials that were submitted before."""

    resume: bool = False
    """Submit only the others."""
    force: bool = False
    """Submit all of them again."""


class QueuedSweep(Struct, frozen=True):
    """A sweep that is in the queue."""

    id: int
    """If nothing was left to submit, the sweep that has its first trial."""
    trials: int
    """How many were submitted now."""
    skipped: int
    """How many were done or in the queue before."""
    tuner: int | None = None
    notes: tuple[str, ...] = ()
    failure: StokerError | None = None
    """Why no engine could be started, though the trials are in the queue."""


def completed(asked: SweepRequest, file: SweepRequest) -> SweepRequest:
    """The typed request, completed by that of a file; a typed parameter replaces that of the file."""
    own = {
        name: getattr(asked, name) for name in SweepRequest.__struct_fields__ if getattr(asked, name) not in (None, ())
    }
    if file.wandb and asked.command and file.style is None and _is_plain(asked.command):
        own.setdefault("style", "args")  # a command for the agent of W&B says by a macro that it wants arguments
    return msgspec.structs.replace(file, **{**own, "space": _joined(file.space, asked.space)})


def _is_plain(command: Command) -> bool:
    """Whether nothing in a command is to be filled in."""
    return not placeholders(command.words) and not any(word.startswith("${") for word in command.words)


def _joined(file: Space, typed: Space) -> Space:
    if len(typed.products) > 1:
        raise UsageError("a + and a file cannot be combined", "write the union into the file")
    given = {parameter.name: parameter for parameter in typed.parameters}
    products = [
        Product(
            (
                *(given.get(parameter.name, parameter) for parameter in product.parameters),
                *(given[name] for name in given if all(parameter.name != name for parameter in product.parameters)),
            )
        )
        for product in file.products
    ]
    return check_space(Space(tuple(products)))


# -- understand ----------------------------------------------------------------------------------


def prepare(asked: SweepRequest, options: JobOptions) -> SweepPlan:
    """The sweep with the template of its command; refuses what cannot be a sweep."""
    if asked.command is None:
        raise UsageError("no command given", "put the command after --: stoker sweep lr=0.1,0.01 -- python3 train.py")
    if options.array is not None:
        raise UsageError("--array and a sweep cannot be combined", "write the index as a parameter: i=0..9")
    given = asked.command
    asked = _with_end(asked)
    names = list(asked.space.names)
    _check_numbers(asked, names)
    allowed = [*names, *([REPEAT] if (asked.repeat or 1) > 1 else [])]
    env = {name: value for name, value in options.env.items() if placeholders([value])}
    check_placeholders(given.words, allowed)
    check_placeholders(list(env.values()), allowed, "--env")
    check_placeholders([asked.results or ""], allowed, "--results")
    used = {*placeholders(given.words), *(name for value in env.values() for name in placeholders([value]))}
    left = [name for name in names if name not in used]
    style: Style = asked.style or ("none" if asked.wandb or used.intersection(names) else "args")
    command = appended(with_arguments(given, left) if asked.wandb else given, left, style)
    if style == "env":
        env |= _variables(left)
    sweep = SweepSpec(
        space=asked.space,
        command=command,
        method=_method(asked),
        count=asked.count,
        seed=asked.seed or 0,
        repeat=asked.repeat or 1,
        max_parallel=asked.max_parallel,
        name=options.name or "",
        env=env,
        results=asked.results or "",
        objectives=asked.objectives,
        goal=asked.goal or "",
        pruners=asked.pruners,
    )
    objectives, _ = check_tuning(sweep)
    if asked.wandb or any(objective.source == "wandb" for objective in objectives):
        sweep = msgspec.structs.replace(
            sweep, starter=wandb_starter(objectives, asked.nested, {**os.environ, **options.env})
        )
    rest = {name: value for name, value in options.env.items() if name not in env}
    unused = _unused_note(asked.space, left) if style == "none" and asked.style is None and not asked.wandb else ()
    return SweepPlan(sweep, msgspec.structs.replace(options, env=rest), (*asked.notes, *unused))


def _with_end(asked: SweepRequest) -> SweepRequest:
    """A sweep of W&B's goes on until the user ends it; here it has an end."""
    if not asked.wandb or asked.count is not None or asked.method not in ("random", *ADAPTIVE):
        return asked
    size = size_of(asked.space)
    count = WANDB_COUNT if size is None else min(size, WANDB_COUNT)
    note = f"the file has no run_cap; it ends after {count_text(count, 'point')}, which -N changes"
    return msgspec.structs.replace(asked, count=count, notes=(*asked.notes, note))


def _method(asked: SweepRequest) -> str:
    method = asked.method or "grid"
    if method not in METHODS:
        raise UsageError(
            f"there is no method {method!r}", did_you_mean(method, METHODS, f"known: {', '.join(METHODS)}")
        )
    return method


def _check_numbers(asked: SweepRequest, names: Sequence[str]) -> None:
    for option, number in (("-N", asked.count), ("--repeat", asked.repeat), ("--max-parallel", asked.max_parallel)):
        if number is not None and not 1 <= number <= LARGEST:
            raise UsageError(f"{option} {number} is less than 1", f"for example {option} 8")
    if (asked.repeat or 1) > 1 and REPEAT in names:
        raise UsageError("--repeat adds a parameter repeat, which is already there", "leave out one of them")


def _variables(names: Sequence[str]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for name in names:
        variable = variable_of(name)
        if variable in variables:
            raise UsageError(f"two parameters would set the variable {variable}", "rename one, or use --style args")
        variables[variable] = f"{{{name}}}"
    return variables


def _unused_note(space: Space, left: Sequence[str]) -> Iterator[str]:
    varied = [
        name
        for name in left
        if any(
            not isinstance(parameter.domain, Choices) or len(parameter.domain.values) > 1
            for parameter in space.parameters
            if parameter.name == name
        )
    ]
    if varied:
        plural = len(varied) > 1
        yield (
            f"warning: the command has no {', '.join(f'{{{name}}}' for name in varied)}; it finds "
            f"{'these parameters' if plural else 'this parameter'} only in STOKER_PARAMS (stoker.params())"
        )


# -- submit --------------------------------------------------------------------------------------


class Trials(Sequence[NewJob]):
    """The jobs of trials, each made when it is asked for, so that a million take no memory."""

    def __init__(self, sweep: SweepSpec, spec: JobSpec, numbers: Ranges | None = None) -> None:
        """`numbers` are those of all trials by default."""
        self.sweep = sweep
        self.spec = spec
        self.numbers = Ranges([range(sweep.trials)]) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[NewJob]:
        for part in self.numbers.parts:
            yield from trial_jobs(self.sweep, self.spec, part.start, part.stop)

    @overload
    def __getitem__(self, place: int) -> NewJob: ...
    @overload
    def __getitem__(self, place: slice) -> Trials: ...
    def __getitem__(self, place: int | slice) -> NewJob | Trials:
        if isinstance(place, slice):
            return Trials(self.sweep, self.spec, self.numbers[place])
        number = self.numbers[place]
        return next(trial_jobs(self.sweep, self.spec, number, number + 1))

    def group(self, array: str) -> JobGroup:
        """The trials in as few rows as possible."""
        shared = shared_trials(self.sweep, self.spec, self.numbers)
        return JobGroup(self, array) if shared is None else JobGroup(shared[0], array, shared[1])


class SweepSubmission:
    """A sweep on its way into the queue: `resolve`, then `insert`."""

    def __init__(self, paths: Paths, config: Config, prepared: SweepPlan, environment: Mapping[str, str]) -> None:
        self.sweep = prepared.sweep
        self.adaptive = self.sweep.method in ADAPTIVE
        self._paths = paths
        self._now = time.time()
        count = self.sweep.trials
        if not self.adaptive and count > MOST_TASKS:
            raise UsageError(f"a sweep of {count:,} trials is too large", f"take some of them: -N {MOST_TASKS} or less")
        limit = f"%{self.sweep.max_parallel}" if self.sweep.max_parallel else ""
        self._array = "" if self.adaptive else f"0-{count - 1}{limit}"
        options = msgspec.structs.replace(prepared.options, array=self._array or None)
        self._item = ParsedJob(self.sweep.command, COMMAND_LINE)
        self._queue = QueueSubmission(paths, config, options, self._now, environment)
        self._queue.read([self._item])
        self.engines = [*self._queue.clusters, *([""] if needs_tuner(self.sweep) else [])]
        self.needs_devices, self.devices = self._queue.needs_devices, self._queue.devices

    @property
    def notes(self) -> list[str]:
        return self._queue.notes

    def resolve(self, store: Store, machine: Machine | None) -> JobSpec:
        """The spec of all trials."""
        spec = self._queue.resolve_spec(self._item, store, machine)
        names = placeholders(self.sweep.command.words)
        fills = any(name in LATER and name not in self.sweep.space.names for name in names)
        return msgspec.structs.replace(spec, fill=fills)

    def insert(self, store: Store, spec: JobSpec, trials: Trials | None, held: str = "") -> tuple[int, int | None]:
        """Add the record, the trials and the tuner; returns the ids of the sweep and of its tuner."""
        tuner = [JobGroup([tuner_job(self._paths, self.sweep, spec)])] if needs_tuner(self.sweep) else []
        groups = [*([] if trials is None else [trials.group(self._array)]), *tuner]
        with store.writing():
            inserted = self._queue.insert(store, groups, LABEL, held=held)
            ids = [group.ids[0] for group in inserted]
            stored = StoredSweep(ids[0], _batch(store, ids[0]), self._now, ids[-1] if tuner else None, spec, self.sweep)
            add_sweep(store, stored)
        return ids[0], stored.tuner


def _batch(store: Store, job_id: int) -> int:
    job = store.job(job_id)
    assert job is not None
    return job.batch


def remaining(store: Store, trials: Trials, again: EarlierTrials) -> tuple[Trials, int]:
    """The trials that were not done before and are not in the queue, or all if that is wanted; and a sweep with others.

    Refuses a sweep of which a part was submitted before, if nothing is said about it.
    """
    if again.force:
        return trials, 0
    before, sweep_id = submitted_before(store, trials.sweep, trials.spec)
    if before and not again.resume:
        raise UsageError(
            f"{len(before):,} of {len(trials):,} trials are already done or in the queue, with the same command and"
            " parameters",
            "--resume submits only the others, --force submits all of them again",
        )
    left = missing(range(len(trials)), before.parts)
    return Trials(trials.sweep, trials.spec, left), sweep_id


def submit_sweep(
    paths: Paths,
    config: Config,
    prepared: SweepPlan,
    again: EarlierTrials,
    *,
    held: str = "",
    opened: Callable[[], contextlib.AbstractContextManager[Store]],
    settled: Callable[[Sequence[int]], Callable[[], object]] = lambda _: lambda: None,
) -> QueuedSweep:
    """Submit a sweep and start the engines that it needs.

    `settled` gets the ids inside the transaction, and returns how to undo what it did.
    """
    submission = SweepSubmission(paths, config, prepared, os.environ)
    engine = Background(paths, submission.devices)
    with opened() as store:
        with engine.stop_engine_if_impossible():
            spec = submission.resolve(store, engine.machine() if submission.needs_devices else None)
        if submission.adaptive and again.resume and (earlier := _same_sweep(store, submission.sweep, spec)):
            done = resume(Control(paths, store), earlier, submission.sweep.count or 0)
            said = (*prepared.notes, *submission.notes)
            return QueuedSweep(earlier.id, done.added, done.total - done.added, earlier.tuner, said)
        left: Trials | None = None
        skipped = 0
        if not submission.adaptive:
            left, before = remaining(store, Trials(submission.sweep, spec), again)
            skipped = submission.sweep.trials - len(left)
            if not left:
                return QueuedSweep(before, 0, skipped, notes=tuple(submission.notes))
        folders = planned_folders(submission.sweep, left or (), reuse=again.resume or again.force)
        with contextlib.ExitStack() as undoing:
            with store.writing():
                sweep_id, tuner = submission.insert(store, spec, left, held)
                undoing.callback(settled([sweep_id]))
                undoing.callback(make_folders(folders))
            undoing.pop_all()
    failure = _wake(paths, engine, submission.engines)
    notes = [*prepared.notes, *submission.notes, engine.difference() if submission.needs_devices else ""]
    count = submission.sweep.trials if left is None else len(left)
    return QueuedSweep(sweep_id, count, skipped, tuner, tuple(filter(None, notes)), failure)


def _same_sweep(store: Store, sweep: SweepSpec, spec: JobSpec) -> StoredSweep | None:
    """The newest sweep that would choose the same points; how many, and how many at once, makes no difference."""

    def points(plan: SweepSpec) -> SweepSpec:
        return msgspec.structs.replace(plan, count=None, max_parallel=None, name="", pruners=())

    alike = (
        stored for stored in all_sweeps(store) if (stored.spec.cwd, stored.spec.cluster) == (spec.cwd, spec.cluster)
    )
    return next((stored for stored in alike if points(stored.sweep) == points(sweep)), None)


def _wake(paths: Paths, engine: Background, clusters: Sequence[str]) -> StokerError | None:
    engines = [engine if not name else Background(paths, cluster=name) for name in dict.fromkeys(clusters)]
    for background in engines:
        background.wake()
    return next((background.failure for background in engines if background.failure), None)
