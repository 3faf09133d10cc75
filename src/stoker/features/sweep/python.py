"""Sweeps of a Python program: one function or command, many points of a parameter space."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stoker.app.jobs.config import config_here
from stoker.app.jobs.options import JobOptions
from stoker.core.errors import UsageError
from stoker.core.spec import Command
from stoker.features.sweep.files import space_of
from stoker.features.sweep.model.grammar import check_space, parse_space
from stoker.features.sweep.model.space import Space
from stoker.features.sweep.store import jobs_of_sweep
from stoker.features.sweep.submit import EarlierTrials, SweepPlan, SweepRequest, prepare, submit_sweep
from stoker.features.sweep.view import SweepView, chosen_sweep, read_overview, read_sweep
from stoker.python import calls
from stoker.python.calls import Call
from stoker.python.connection import Link, find_link
from stoker.python.in_job import CallWithParams
from stoker.python.job import Job, cancel_all, handles_of
from stoker.python.keywords import naming_keywords, read_keywords, takes_job_options, with_variables
from stoker.python.submitting import command_of, files_of
from stoker.python.tables import Rows
from stoker.store.paths import make_durable

if TYPE_CHECKING:
    from typing import Unpack

    from stoker.python.keywords import Keywords

GivenSpace = Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | Space
"""Names and their values; several of them are a union; a text is as on the command line."""


class Sweep:
    """A sweep in the queue. It continues when this handle, or the program, is gone."""

    def __init__(self, link: Link, sweep_id: int) -> None:
        self._link = link
        self.id = sweep_id
        """Its id, by which `stoker sweep status` and stoker.Sweep.find() find it."""

    @classmethod
    def find(cls, sweep_id: int | str | None = None) -> Sweep:
        """The sweep with this id or name; the newest without one."""
        link = find_link()
        with link.opened() as store:
            return cls(link, chosen_sweep(store, None if sweep_id is None else str(sweep_id)).id)

    @property
    def jobs(self) -> list[Job]:
        """The jobs of its trials that are in the queue or have ended, by trial; more may follow with a tuner."""
        return handles_of(self._link, [trial.job for trial in self.view().trials])

    def view(self) -> SweepView:
        """Everything about it, as `stoker sweep status --json` prints it."""
        return read_sweep(self._link.paths, str(self.id)).view

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all its trials have ended; False after the timeout."""
        import time

        deadline = None if timeout is None else time.monotonic() + timeout
        with self._link.opened() as store:
            ids = jobs_of_sweep(store, self.id)
        for job in handles_of(self._link, ids):  # a tuner ends after all trials that it adds
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not job.wait(left):
                return False
        return True

    def cancel(self) -> None:
        """Cancel all its trials that have not ended, and choose no further ones."""
        with self._link.opened() as store:
            ids = jobs_of_sweep(store, self.id)
        cancel_all(self._link, handles_of(self._link, ids))

    def rows(self) -> Rows:
        """A row for each trial: number, job, state, seconds, parameters, and values of the objectives.

        `pandas.DataFrame(sweep.rows())` takes it. Parameters that a trial does not have are None.
        """
        view = self.view()
        names = list(dict.fromkeys(name for trial in view.trials for name in trial.params))
        values = list(dict.fromkeys(name for trial in view.trials for name in trial.values))
        rows = [
            {
                "trial": trial.number,
                "job": trial.job,
                "state": trial.state,
                "seconds": trial.seconds,
                **{name: trial.params.get(name) for name in names},
                **{_free(name, names): trial.values.get(name) for name in values},
            }
            for trial in view.trials
        ]
        return Rows(rows, ["trial", "state", *names, *(_free(name, names) for name in values)])

    def results(self) -> list[Any]:
        """The return value of the function in each trial, by number; waits for all, and raises the exception of a
        failed one."""
        self.wait()
        return [job.result() for job in self.jobs]

    def best(self) -> dict[str, Any] | None:
        """The best trial so far: its parameters, its values and its job; None if no trial has a value yet."""
        best = read_overview(self._link.paths, str(self.id), 1).view.best
        return None if not best else {"params": best[0].params, "values": best[0].values, "jobs": best[0].jobs}

    def __repr__(self) -> str:
        view = read_overview(self._link.paths, str(self.id), 1).view
        counts = ", ".join(f"{count} {state}" for state, count in view.counts.items())
        return f"<stoker.Sweep {self.id} {view.state}: {counts or 'no trials yet'} of {view.total}>"


@takes_job_options
def sweep(
    what: Callable[..., Any] | Sequence[str] | str,
    space: GivenSpace,
    *,
    objective: str | Sequence[str] = (),
    goal: str | None = None,
    pruner: str | Sequence[str] = (),
    method: str | None = None,
    count: int | None = None,
    seed: int | None = None,
    repeat: int | None = None,
    max_parallel: int | None = None,
    style: Any = None,
    results: str | os.PathLike[str] | None = None,
    resume: bool = False,
    force: bool = False,
    **options: Unpack[Keywords],
) -> Sweep:
    """Submit one job for each point of a space: a function called with the parameters, or a command.

    `space` has a list, a range() or a text as on the command line for each name: `{"lr": "1e-5..1e-1:log", "depth":
    [2, 4]}`. With an objective, the function returns its value or a dictionary of values, or calls stoker.report().
    """
    link, given = find_link(), read_keywords(options)
    with naming_keywords():
        asked = SweepRequest(
            space=_space(space),
            method=method,
            count=count,
            seed=seed,
            repeat=repeat,
            max_parallel=max_parallel,
            style=style,
            results=None if results is None else os.fspath(results),
            objectives=(objective,) if isinstance(objective, str) else tuple(objective),
            goal=goal,
            pruners=(pruner,) if isinstance(pruner, str) else tuple(pruner),
        )
        again = EarlierTrials(resume=resume, force=force)
        if callable(what):
            return _sweep_function(link, what, asked, given, again)
        prepared = prepare(replace(asked, command=command_of(what)), with_variables(given, os.environ))
        return _submitted(link, prepared, again)


def _space(given: GivenSpace) -> Space:
    if isinstance(given, Space):
        return check_space(given)
    if isinstance(given, str):
        import shlex

        return parse_space(shlex.split(given))
    parts = [given] if isinstance(given, Mapping) else list(given)
    if not parts or not all(isinstance(part, Mapping) and part for part in parts):
        raise UsageError("the space has no parameters", 'give it as {"lr": [0.1, 0.01]}')
    return Space(tuple(product for part in parts for product in space_of(part).products))


def _sweep_function(
    link: Link, function: Callable[..., Any], asked: SweepRequest, options: JobOptions, again: EarlierTrials
) -> Sweep:
    """All trials run the same program, which calls the pickled function with their parameters."""
    _check_parameters(function, asked.space)
    named = options if options.name is not None else replace(options, name=calls.name_of(function).strip("<>"))
    files = files_of(link, named)
    program = calls.command_of(files, function, Call(())).words
    command = Command((*program, *(f"{name}={{{name}}}" for name in asked.space.names)))
    prepared = prepare(replace(asked, command=command), with_variables(named, os.environ))
    call = CallWithParams(function, tuple(text.partition(":")[0] for text in asked.objectives))
    with calls.written(files, call, [Call(())]) as folder:

        def settle(ids: Sequence[int]) -> Callable[[], object]:
            place: Path = calls.settle(folder, files, ids[0])
            return lambda: place.rename(folder)

        done = _submitted(link, prepared, again, settle)
    make_durable(files.functions)
    return done


def _check_parameters(function: Callable[..., Any], space: Space) -> None:
    """Refuse parameters that the function does not take, before anything is queued."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # it has none that Python knows
        return
    for product in space.products:
        try:
            signature.bind_partial(**{parameter.name: None for parameter in product.parameters})
        except TypeError as error:
            takes = ", ".join(signature.parameters) or "no arguments"
            raise UsageError(f"{calls.name_of(function)}() cannot be called: {error}", f"it takes {takes}") from None


def _submitted(
    link: Link,
    prepared: SweepPlan,
    again: EarlierTrials,
    settled: Callable[[Sequence[int]], Callable[[], object]] = lambda _: lambda: None,
) -> Sweep:
    config = config_here(lambda warning: warnings.warn(warning, RuntimeWarning, stacklevel=5))
    done = submit_sweep(link.paths, config, prepared, again, opened=link.opened, settled=settled)
    for note in done.notes:
        warnings.warn(note, RuntimeWarning, stacklevel=5)
    if done.failure:
        text = f"sweep {done.id} is in the queue, but the engine could not be started or reached: {done.failure}"
        warnings.warn(text, RuntimeWarning, stacklevel=5)
    return Sweep(link, done.id)


def _free(name: str, taken: Sequence[str]) -> str:
    """The name of a value in a row; another one if a parameter has it."""
    return f"{name}_value" if name in taken else name
