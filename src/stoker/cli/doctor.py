"""`stoker engine check`: the table of all checks, their report, and the checks of the queue."""

from __future__ import annotations

import contextlib
import difflib
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import click
from msgspec import Struct, structs

from stoker.cli.doctor_machine import (
    RESTART,
    Subject,
    Verdict,
    check_clock,
    check_gpus,
    check_limits,
    check_logout,
    check_unit,
    note,
    ok,
    problem,
)
from stoker.cli.output_options import write_json
from stoker.core.errors import StokerError
from stoker.core.job import Active
from stoker.core.settings import KEYS
from stoker.core.text import printable, text_for_json
from stoker.core.units import count_text, size_text
from stoker.ledger import PLACES, Ledger, LedgerView, find_ledger
from stoker.ledger.files import owner_name
from stoker.queue.config import load_config
from stoker.queue.options import BY_NAME
from stoker.store import queries
from stoker.store.database import DAMAGED_HINT, NEWER_HINT, damage, has_log_without_file
from stoker.store.engine_lock import (
    QUEUE,
    held_orphans,
    leftover_workers,
    living_engines,
    orphans,
    process_of,
    version_notice,
)
from stoker.store.paths import NETWORK_FILE_SYSTEMS, file_system_of
from stoker.store.status_file import read_status
from stoker.store.writer import Store, open_store


class Check(Struct, frozen=True):
    """The whole examination: `stoker engine check --json`."""

    schema: str
    problems: int
    findings: list[Verdict]


def diagnose(subject: Subject) -> Iterator[Verdict]:
    """The findings of all checks, each as soon as it is known."""
    for topic, check in CHECKS.items():
        try:
            found = list(check(subject))
        except OSError as error:  # a check that fails hides no other
            found = [problem(f"this cannot be looked at: {error}", "see whether you may read it")]
        yield from (structs.replace(verdict, topic=topic) for verdict in found)


def report(subject: Subject, *, as_json: bool) -> int:
    """Print all findings, each as soon as it is known: a driver may take its time. Returns the number of problems."""
    found = []
    for verdict in diagnose(subject):
        found.append(verdict)
        if not as_json:
            print(f"{verdict.level:8} {verdict.topic:10} {printable(verdict.text)}", flush=True)
        if not as_json and verdict.advice:
            print(f"{'':19} → {printable(verdict.advice)}", flush=True)
    problems = sum(verdict.level == "problem" for verdict in found)
    if as_json:
        write_json(Check("stoker.engine-check/1", problems, [_for_json(verdict) for verdict in found]))
    elif problems:
        print(f"{count_text(problems, 'problem')} found", file=sys.stderr)
    return problems


def _for_json(verdict: Verdict) -> Verdict:
    return structs.replace(verdict, text=text_for_json(verdict.text), advice=text_for_json(verdict.advice))


def known_variables(context: click.Context) -> Iterator[str]:
    """All STOKER_* variables that set settings, job options and options of commands."""
    yield from (f"STOKER_{name.upper()}" for name in (*KEYS, *BY_NAME))
    yield from _variables_of(context.command, context)


def _variables_of(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        yield from filter(None, [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or ())
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _variables_of(inner, context)


# -- the state directory

SCARCE = 2**30
"""Bytes of free space below which a full disk is near..."""
GONE = 64 * 2**20
"""... and below which it is as good as full."""


def check_state(subject: Subject, mountinfo: str = "/proc/self/mountinfo") -> Iterator[Verdict]:
    """The file system of the queue."""
    paths = subject.paths
    if paths.note:
        yield note(paths.note, "nothing has to be done; STOKER_STATE chooses another local directory")
        return
    kind = file_system_of(paths.state, mountinfo)
    if kind in NETWORK_FILE_SYSTEMS:
        text = f"{paths.state} is on {kind}, where a queue is not safe"
        yield problem(text, "set STOKER_STATE to a directory on a local disk")
    else:
        yield ok(f"{paths.state} is on {kind}")


def check_disk(subject: Subject) -> Iterator[Verdict]:
    """Room for the queue and the logs."""
    status = os.statvfs(subject.paths.state)
    free = status.f_bavail * status.f_frsize
    text = f"{size_text(free)} free for {subject.paths.state}"
    if free < GONE:
        yield problem(text, "free some space there: jobs and their ends cannot be recorded on a full disk")
    elif free < SCARCE:
        yield note(text, "free some space there before it is full")
    else:
        yield ok(text)
    if status.f_files and status.f_favail < 1000:
        yield problem(f"only {status.f_favail} more files fit on the disk of the queue", "remove some there")


def check_queue(subject: Subject) -> Iterator[Verdict]:
    """The whole database."""
    path = subject.paths.database
    if not path.exists() and not has_log_without_file(path):
        yield ok("nothing was submitted yet")
    elif wrong := damage(path):
        yield problem(f"{path}: {wrong}", NEWER_HINT if "newer Stoker" in wrong else DAMAGED_HINT)
    else:
        yield ok(f"{path} is whole")


# -- the engine


def check_engine(subject: Subject) -> Iterator[Verdict]:
    """Whether an engine serves the queue."""
    paths = subject.paths
    pid = process_of(paths, QUEUE)
    if pid is None:
        yield _without_engine(subject)
        return
    if not subject.answers:
        yield problem(f"the engine (process {pid}) does not answer", f"see {paths.log}; then: {RESTART}")
        return
    view = read_status(paths.status_file(QUEUE))
    if notice := version_notice(paths):
        yield note(notice.partition(";")[0], RESTART)
    if view is not None and view.trouble:
        yield problem(f"the engine cannot work as it should: {view.trouble}", f"see {paths.log}")
    else:
        yield ok(f"it runs (process {pid}) and answers")


def _without_engine(subject: Subject) -> Verdict:
    with _store(subject) as store:
        load = queries.loads(store).get(QUEUE) if store else None
    if load is not None and load.open:
        return problem(f"{count_text(load.open, 'job')} in the queue, and no engine runs", "stoker engine start")
    return ok("none runs, and none is needed; it starts with the next submit")


def check_leftovers(subject: Subject) -> Iterator[Verdict]:
    """Jobs, workers and leases that dead engines left."""
    with _store(subject) as store:
        if store is None:
            return
        left = [*_jobs(subject, store), *_workers(subject, store), *_leases(subject, store)]
    yield from left or [ok("none")]


def _jobs(subject: Subject, store: Store) -> Iterator[Verdict]:
    paths = subject.paths
    held = [orphan for orphan in held_orphans(paths, store) if orphan.engine != QUEUE]
    if held:
        text = f"{count_text(len(held), 'job')} of a run that died, still in the hands of workers"
        yield note(text, "the engine records how they end: stoker engine start")
    waiting = sum(not isinstance(each.job.state, Active) for each in orphans(paths, store) if each.engine != QUEUE)
    if waiting:
        text = f"{count_text(waiting, 'job')} of a run that died, left waiting"
        yield note(text, "go on with them (stoker run --resume, stoker resume), or cancel them")


def _workers(subject: Subject, store: Store) -> Iterator[Verdict]:
    with contextlib.suppress(FileNotFoundError):
        if names := leftover_workers(subject.paths, store):
            text = f"{count_text(len(names), 'folder')} of workers that nobody needs any more"
            yield note(text, "the next engine removes them: stoker engine start")


def _leases(subject: Subject, store: Store) -> Iterator[Verdict]:
    """Leases of this user that no job of this queue has; a living engine may hold some in reserve."""
    if any(True for _ in living_engines(subject.paths)):
        return
    with contextlib.suppress(StokerError):
        view = Ledger(find_ledger(subject.environment)).live()
        refs = [owned.job.state.ref for owned in queries.all_active(store) if isinstance(owned.job.state, Active)]
        known = {word for ref in refs for word in ref.split()}  # the name of the lease is one of the words
        for name, lease in view.leases.items():
            if name not in known and lease.owner == owner_name(os.geteuid()):
                devices = ", ".join(claim.name for claim in lease.claims)
                text = f"a lease of yours on {devices} ({lease.what}) belongs to no job of this queue"
                yield note(text, f"if nothing else of yours uses it, see process {lease.pid} and its children")


@contextlib.contextmanager
def _store(subject: Subject) -> Iterator[Store | None]:
    """The store, where there is one that can be opened."""
    store: Store | None = None
    with contextlib.suppress(StokerError):
        store = open_store(subject.paths) if subject.paths.database.exists() else None
    try:
        yield store
    finally:
        if store is not None:
            store.close()


# -- other users


def check_ledger(subject: Subject, paths: Iterable[Path] = PLACES) -> Iterator[Verdict]:
    """The directory of leases: whether it can be used, is open to all, and is the one that all users have."""
    if subject.simulated and not subject.environment.get("STOKER_LEDGER"):
        yield ok("simulated GPUs are shared with nobody")
        return
    try:
        path = find_ledger(subject.environment, paths)
    except StokerError as error:
        yield problem(error.message, error.hint)
        return
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o002:
        yield ok(f"{path} is open to all users")
    else:
        advice = f"let its owner run 'chmod 1777 {path}', or set STOKER_LEDGER to another one"
        yield problem(f"{path} has mode {mode:o}: other users cannot tell there what they use", advice)
    yield from (note(warning) for warning in Ledger(path).live().warnings)
    for other in paths:
        if other != path and os.path.isdir(other) and (names := _users(Ledger(other).live())):
            text = f"{names} use {other}, you use {path}: you may get each other's GPUs"
            yield problem(text, "let all set the same STOKER_LEDGER, or nobody any")


def _users(view: LedgerView) -> str:
    owners = {lease.owner for lease in view.leases.values()} | {demand.owner for demand in view.demands.values()}
    return ", ".join(sorted(owners))


# -- configuration

_PREFIX = "STOKER_"
_PROGRAM_VARIABLES = frozenset({"STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM", "STOKER_OUTPUT"})
_JOB_VARIABLES = frozenset(
    f"{_PREFIX}{name}"
    for name in (
        *("JOB_ID", "JOB_NAME", "ATTEMPT", "GPU_IDS", "GROUP", "VRAM", "ARRAY_ID", "ARRAY_INDEX"),
        *("WORK_DIR", "REPORT", "PARAMS", "KEEPER"),
    )
)


def check_config(subject: Subject) -> Iterator[Verdict]:
    """The configuration files of the engine and of this directory."""
    try:
        config = load_config(subject.environment, Path.cwd())
    except StokerError as error:
        yield problem(error.message, error.hint)
        return
    yield from (note(warning) for warning in config.warnings)
    files = ", ".join(map(str, config.files))
    yield ok(f"read from {files}" if files else "all as built in")


def check_variables(subject: Subject) -> Iterator[Verdict]:
    """STOKER_* variables without a meaning, and those of a job."""
    given = sorted(name for name in subject.environment if name.startswith(_PREFIX))
    if "STOKER_JOB_ID" in given:
        yield note(f"this runs inside job {subject.environment['STOKER_JOB_ID']}")
        given = [name for name in given if name not in _JOB_VARIABLES]
    known = subject.known_variables | _PROGRAM_VARIABLES
    unknown = [name for name in given if name not in known]
    for name in unknown:
        near = difflib.get_close_matches(name, known, 1, 0.75)
        yield note(f"{name} means nothing to Stoker", f"did you mean {near[0]}?" if near else "")
    if not unknown:
        yield ok(f"set are {', '.join(given)}" if given else "none is set")


CHECKS: Mapping[str, Callable[[Subject], Iterable[Verdict]]] = {
    "state": check_state,
    "disk": check_disk,
    "queue": check_queue,
    "engine": check_engine,
    "leftovers": check_leftovers,
    "ledger": check_ledger,
    "gpus": check_gpus,
    "config": check_config,
    "variables": check_variables,
    "unit": check_unit,
    "logout": check_logout,
    "clock": check_clock,
    "limits": check_limits,
}
