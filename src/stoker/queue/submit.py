"""Build jobs from what a user typed and add them to the queue."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.core.device import Device, resolve
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.core.launch import INHERIT
from stoker.core.planner.fairshare import never_within_limits
from stoker.core.planner.placement import never_fits
from stoker.core.planner.policy import Policy
from stoker.core.spec import Dependency, JobSpec, NewJob, digest_of, parse_after
from stoker.core.units import size_text
from stoker.devices.mps.daemon import without_given
from stoker.queue.config import Config
from stoker.queue.job_files import COMMAND_LINE, PLAIN, Listed
from stoker.queue.options import (
    JobOptions,
    Surroundings,
    check_directory,
    current_umask,
    merged,
    spec_of,
    tasks_of,
    working_directory,
)
from stoker.queue.preflight import Caps, Checkouts, MpsPreflight, Room
from stoker.queue.script import VARIABLE, Script
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import Paths
from stoker.store.status_file import Machine
from stoker.store.writer import Store

RUNS = "stoker-runs"


def new_log_directory(parent: Path) -> Path:
    """A directory named after the moment, in a parent that is made where it is missing."""
    parent.mkdir(exist_ok=True)
    if parent.lstat().st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"{parent} belongs to somebody else")
    return _new_directory(parent, time.strftime("%Y-%m-%d_%H-%M-%S"))


def _new_directory(parent: Path, name: str) -> Path:
    """A directory that nobody made before, with a number behind its name where that is needed."""
    for path in itertools.chain([parent / name], (parent / f"{name}.{number}" for number in itertools.count(2))):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AssertionError("numbers do not end")


OF_THE_JOB_WE_ARE_IN = frozenset(
    (
        *("STOKER_JOB_ID", "STOKER_JOB_NAME", "STOKER_ATTEMPT", "STOKER_GPU_IDS"),
        *("STOKER_ARRAY_ID", "STOKER_ARRAY_INDEX", "STOKER_WORK_DIR", "STOKER_REPORT", "STOKER_PARAMS"),
        VARIABLE,
    )
)
"""Variables of the job that submits another one, which must not be taken for the other's."""

MEMORY_UNKNOWN = "the memory of these devices is not known, so each runs one job at a time"


class NotServed(StokerError):
    """There is no engine, and none could be started."""

    exit_code = 3


class Part(Struct, frozen=True):
    """Jobs that go into the queue together: all tasks of an array, or any number of others."""

    jobs: list[NewJob]
    array: str = ""
    """The indices as typed, where it is an array."""


class Entered(Struct, frozen=True):
    """A part that is in the queue."""

    part: Part
    ids: range


class JobBuilder:
    """What jobs are made of here and now."""

    def __init__(
        self,
        paths: Paths,
        config: Config,
        options: JobOptions,
        now: float,
        environment: Mapping[str, str],
        *,
        script: Script | None = None,
    ) -> None:
        self.needs_devices = False
        self.notes: list[str] = []
        """What whoever submits should know about the jobs as they were settled."""
        self._modesty = Policy(max_use=config.engine.max_use, min_free=config.engine.min_free)
        self._paths = paths
        self._options = script.wish(options) if script else options
        self._script = script
        self._now = now
        own = without_given(environment)
        self._environment = {name: own[name] for name in own if name not in OF_THE_JOB_WE_ARE_IN}
        self._room = Room(self._environment)
        self._caps = Caps(self._environment, self.notes.append)
        self._mps_preflight = MpsPreflight(self._environment, self.notes.append)
        self._spec: dict[str, JobSpec] = {}
        logs = str(paths.logs).replace("%", "%%")
        self._around = Surroundings(
            cwd=working_directory(),
            umask=current_umask(),
            environment=digest_of(self._environment),
            default_out=f"{logs}/%j.log",
            array_out=f"{logs}/%A/%a.log",
            resolve=str,
            earlier=_only_read,
            now=now,
            fill=True,
        )

    def read(self, items: Sequence[Listed]) -> None:
        """Refuse what cannot be understood, before anything is opened or started."""
        for item in _one_of_each(items):
            with _told_where(item):
                spec = spec_of(self._wish(item), self._around)
                self._refuse_unusable(item, spec)
            self.needs_devices = self.needs_devices or spec.resources.gpus > 0
        for item in items:
            try:
                self._room.check(item.command, self._wish(item).env)
            except UsageError as error:
                raise _located(item, error) from None

    def settle(self, items: Sequence[Listed], store: Store, machine: Machine | None) -> list[Part]:
        """The jobs; refused is what refers to nothing here, or can never run on what the engine sees."""
        checkouts = Checkouts(self._environment)
        around = msgspec.structs.replace(
            self._around,
            earlier=partial(_earlier, store),
            commit=checkouts.commit,
            resolve=_unknown_device if machine is None else partial(resolve, machine.snapshot),
        )
        for item in _one_of_each(items):
            with _told_where(item):
                asked = spec_of(self._wish(item), around)
                spec = self._spec[_key(item)] = self._mps_preflight.settled(asked, machine.devices if machine else ())
                if machine is not None and spec.resources.gpus:
                    _refuse_impossible(spec, machine, self._modesty)
        share = any(spec.resources.shares for spec in self._spec.values())
        if machine is not None and share and not any(device.memory for device in machine.devices):
            self.notes.append(MEMORY_UNKNOWN)
        return list(self._parts(items))

    def enter(self, store: Store, parts: Sequence[Part], label: str, *, held: str) -> list[Entered]:
        """Put the jobs into the queue, all or none."""
        self._paths.logs.mkdir(mode=0o700, exist_ok=True)
        with store.writing():
            if self._script:
                self._script.keep(self._paths)
            store.add_environment(self._environment)
            batch = store.add_batch(label, self._now)
            return [self._enter_part(store, batch, part, held) for part in parts]

    def _enter_part(self, store: Store, batch: int, part: Part, held: str) -> Entered:
        ids = store.add_jobs(batch, QUEUE, part.jobs, self._now, array=bool(part.array), held=held)
        if part.array:
            (self._paths.logs / str(ids[0])).mkdir(mode=0o700, exist_ok=True)
        return Entered(part, ids)

    def _refuse_unusable(self, item: Listed, spec: JobSpec) -> None:
        if INHERIT in (spec.out, spec.err):
            raise UsageError("-o - is this terminal, which a job of the queue does not have", "name a file")
        later = spec.after or self._wish(item).begin
        if spec.cwd != self._around.cwd and not later:  # else an earlier job may be about to make it
            check_directory(spec.cwd)

    def _wish(self, item: Listed) -> JobOptions:
        return self._options if item.options is PLAIN else merged(self._options, item.options)

    def _parts(self, items: Sequence[Listed]) -> Iterator[Part]:
        gathered: list[NewJob] = []
        for item in items:
            wish = self._wish(item)
            spec = self._caps.settled(item.command, self._spec[_key(item)])
            command = self._script.copied(self._paths) if self._script else item.command
            jobs = [NewJob(command, spec, wish.name or "", task) for task in tasks_of(wish)]
            if wish.array is None:
                gathered += jobs
                continue
            if gathered:
                yield Part(gathered)
                gathered = []
            yield Part(jobs, wish.array)
        if gathered:
            yield Part(gathered)


def _one_of_each(items: Sequence[Listed]) -> Iterable[Listed]:
    """The first job with each set of options; most jobs of a list have the same."""
    return {_key(item): item for item in reversed(items)}.values()


def _key(item: Listed) -> str:
    return "" if item.options is PLAIN else str(item.options)


@contextlib.contextmanager
def _told_where(item: Listed) -> Iterator[None]:
    """An error about options that a job has of its own says which job that is."""
    try:
        yield
    except StokerError as error:
        if item.options is PLAIN:
            raise
        raise _located(item, error) from None


def _located(item: Listed, error: StokerError) -> StokerError:
    if item.where == COMMAND_LINE:
        return error
    return type(error)(f"{item.where}: {error.message}", error.hint)


def _only_read(text: str) -> tuple[Dependency, ...]:
    parse_after(text)
    return ()


def _earlier(store: Store, text: str) -> tuple[Dependency, ...]:
    from stoker.queue.select import resolve_after

    return resolve_after(store, text)


def _unknown_device(word: str) -> str:
    raise NotServed(f"no engine has told which device {word!r} is", "see why with stoker engine start")


def _refuse_impossible(spec: JobSpec, machine: Machine, modesty: Policy) -> None:
    if not machine.devices:
        raise Impossible(
            machine.note or "no GPU found",
            "name devices (STOKER_DEVICES=0,1, or devices in the configuration), submit jobs that need none (-G 0), "
            "or try it with --sim 4x24G",
        )
    impossible = never_fits(spec.resources, machine.devices) or never_within_limits(
        spec.resources.gpus, machine.devices, modesty
    )
    if impossible:
        raise Impossible(impossible, f"ask for less; there {machine_text(machine.devices)}")


def machine_text(devices: Sequence[Device]) -> str:
    """What the machine has: `are 0, 1 (A100, 40.0G)`."""
    labels: dict[str, list[str]] = {}
    for device in devices:
        size = size_text(device.memory) if device.memory else ""
        labels.setdefault(" ".join(filter(None, (device.model, size))), []).append(device.label)
    kinds = [", ".join(dict.fromkeys(names)) + (f" ({kind})" if kind else "") for kind, names in labels.items()]
    return ("is " if len(devices) == 1 else "are ") + "; ".join(kinds)
