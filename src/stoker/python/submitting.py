"""Submit commands and function calls of a Python program to the queue."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from stoker.app.control.engine_process import Background
from stoker.app.jobs.config import config_here
from stoker.app.jobs.job_files import COMMAND_LINE, ParsedJob
from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.submit import Inserted, JobGroup, QueueSubmission
from stoker.core.errors import StokerError, UsageError
from stoker.core.spec import Command, shell_of, single_jobs
from stoker.python import calls
from stoker.python.calls import Call
from stoker.python.connection import Link
from stoker.python.keywords import naming_keywords, with_variables
from stoker.store.paths import Paths, make_durable

LABEL = "python"
Undo = Callable[[], object]
_PLACEHOLDER = Command((sys.executable,))
"""A command of the same Python, to check options with."""


def submit_command(link: Link, words: Sequence[str] | str, options: JobOptions) -> range:
    """Submit a shell line, or words to execute; returns the ids of the job or the array."""
    return _submit(link, options, command_of(words))[0].ids


class Pool(NamedTuple):
    """A limit that jobs of several submits share."""

    name: str
    at_once: int


def submit_calls(
    link: Link,
    function: Callable[..., Any],
    given: Sequence[Call],
    options: JobOptions,
    array: str | None = None,
    *,
    pool: Pool | None = None,
) -> range:
    """Submit a job for each call; several are the tasks of an array."""
    named = msgspec.structs.replace(_named(options, function), array=array)
    if named.warm:
        from stoker.python.modules import modules_of  # reads pickles, and is seldom needed

        named = msgspec.structs.replace(named, warm=",".join(modules_of(function, given[0], named.warm)) or None)
    files = files_of(link, named)
    commands = [calls.command_of(files, function, call) for call in given]
    with calls.written(files, function, given) as folder:

        def settle(ids: range) -> Undo:
            place = calls.settle(folder, files, ids[0])
            return lambda: place.rename(folder)

        inserted = _submit(link, named, commands[0], partial(_with_commands, commands=commands, pool=pool), settle)
    make_durable(files.functions)
    return inserted[0].ids


def files_of(link: Link, options: JobOptions) -> Paths:
    """Where the files of functions go, so that the jobs find them."""
    return _submission(link, options).files


def _with_commands(group: JobGroup, commands: Sequence[Command], pool: Pool | None) -> JobGroup:
    """The tasks of an array with a command each. An array's own limit replaces that of the pool."""
    spec = msgspec.structs.replace(group.jobs[0].spec, fill=False)
    if pool is not None and spec.at_once is None:
        spec = msgspec.structs.replace(spec, pool=pool.name, at_once=pool.at_once)
    jobs = [
        msgspec.structs.replace(job, command=command, spec=spec)
        for job, command in zip(single_jobs(group.jobs), commands, strict=True)
    ]
    return JobGroup(jobs, group.array)


@naming_keywords()
def check(link: Link, options: JobOptions) -> None:
    _submission(link, options).read([ParsedJob(_PLACEHOLDER, COMMAND_LINE)])


def command_of(words: Sequence[str] | str) -> Command:
    """A command: text goes through the shell, words are executed as they are."""
    parts = [words] if isinstance(words, str) else [os.fspath(word) for word in words]
    if not parts or not parts[0].strip() or any("\0" in part for part in parts):
        raise UsageError("the command is empty or contains a NUL byte", "give it as text, or as a list of words")
    return Command(tuple(parts), shell_of(os.environ) if isinstance(words, str) else "")


@naming_keywords()
def _submit(
    link: Link,
    options: JobOptions,
    command: Command,
    finished: Callable[[JobGroup], JobGroup] = lambda group: group,
    settle: Callable[[range], Undo] = lambda _: lambda: None,
) -> list[Inserted]:
    """`finished` may change the jobs; `settle` gets their ids inside the transaction that adds them.

    It returns how to undo what it did, which is done unless the transaction is committed.
    """
    submission = _submission(link, options)
    items = [ParsedJob(command, COMMAND_LINE)]
    submission.read(items)
    engine = Background(link.paths, submission.devices, submission.clusters[0])
    with link.opened() as store:
        with engine.stop_engine_if_impossible():
            groups = submission.resolve(items, store, engine.machine() if submission.needs_devices else None)
        with contextlib.ExitStack() as undoing:
            with store.writing():
                inserted = submission.insert(store, [finished(group) for group in groups], LABEL, held="")
                undoing.callback(settle(inserted[0].ids))
            undoing.pop_all()
    engine.wake()
    for note in filter(None, [*submission.notes, engine.difference() if submission.needs_devices else ""]):
        warnings.warn(note, RuntimeWarning, stacklevel=5)
    if engine.failure:
        _warn(inserted[0].ids, engine.failure)
    return inserted


def _submission(link: Link, options: JobOptions) -> QueueSubmission:
    """With the configured options, overridden by variables, overridden by the given ones."""
    config = config_here(lambda warning: warnings.warn(warning, RuntimeWarning, stacklevel=4))
    return QueueSubmission(link.paths, config, with_variables(options, os.environ), time.time(), os.environ)


def _named(options: JobOptions, function: Callable[..., Any]) -> JobOptions:
    """With the function's name, unless the job has one or it cannot be a name."""
    from stoker.app.jobs.option_values import check_name

    if options.name is not None:
        return options
    with contextlib.suppress(StokerError):
        check_name(name := calls.name_of(function))
        return msgspec.structs.replace(options, name=name)
    return options


def _warn(ids: range, failure: StokerError) -> None:
    what = f"job {ids[0]} is" if len(ids) == 1 else f"jobs {ids[0]}-{ids[-1]} are"
    text = f"{what} in the queue, but the engine could not be started or reached: {failure}"
    warnings.warn(text, RuntimeWarning, stacklevel=5)
