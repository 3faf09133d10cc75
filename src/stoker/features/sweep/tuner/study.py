"""The Optuna study of a sweep: a file beside the queue that optuna-dashboard can open.

The queue is the truth and the study a copy of it, so the file is not synced to disk, and a lost one is made again.
"""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
from msgspec import Struct
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from stoker.app.jobs.installation import how_to_add
from stoker.core.errors import UsageError
from stoker.features.sweep.model.objective import Curve, Objective, thinned
from stoker.features.sweep.model.record import SweepSpec
from stoker.features.sweep.model.space import (
    Choices,
    Domain,
    Parameter,
    Params,
    Range,
    Scalar,
    Space,
    is_active,
    parameter_text,
    rounded,
    same,
)
from stoker.features.sweep.tuner_job import StudyLost

SPACE = "stoker_space"
OBJECTIVES = "stoker_objectives"
"""Attributes of a study, by which one of another sweep is recognised."""
PRODUCT = "product"
"""The parameter that chooses one of several products."""
SHOWN_POINTS = 20
"""Points of a learning curve in the study."""
SEED_STRIDE = 1_000_003
NEEDED: dict[str, tuple[str, ...]] = {"tpe": (), "gp": ("torch", "scipy"), "cmaes": ("cmaes",)}
"""Packages that a method needs besides Optuna."""


_DIRECTIONS = {"min": StudyDirection.MINIMIZE, "max": StudyDirection.MAXIMIZE}


class StudyRecord(Struct, frozen=True):
    """The facts about a point that was chosen before."""

    number: int
    params: Params
    values: tuple[float, ...] = ()
    """One for each objective, if it succeeded; of a point that was stopped, its last value."""
    curve: Curve = ()
    """Of the first objective."""
    stopped: bool = False
    over: bool = True
    message: str = ""


class _Backend(JournalFileBackend):  # type: ignore[misc,unused-ignore]
    """Optuna's journal file with a lock that the kernel releases, and without a sync of each line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with open(path, "ab"):
            pass
        path.chmod(0o600)
        _cut_unfinished_line(path)
        self._size = 0
        """Bytes that it had at least."""
        super().__init__(str(path))

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override,unused-ignore]
        try:
            self._note_size(os.stat(self._path).st_size)
            yield from super().read_logs(log_number_from)
        except OSError as error:
            raise self._lost(f"is gone: {error.strerror}") from error
        except ValueError as error:
            raise self._lost(f"has a line that is not whole: {error}") from error

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        data = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise self._lost(f"is gone: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._note_size(os.fstat(descriptor).st_size)
            _append(descriptor, data)
        finally:
            os.close(descriptor)

    def _note_size(self, size: int) -> None:
        """Refuse a file that has become shorter: what Optuna has read of it is not there any more."""
        if size < self._size:
            raise self._lost(f"was cut from {self._size} bytes to {size}")
        self._size = size

    def _lost(self, what: str) -> StudyLost:
        return StudyLost(f"the study {self._path} {what}", "it is made again from the queue")


def _append(descriptor: int, data: bytes) -> None:
    """Write all of the data, or none of it if the disk is full."""
    before = os.fstat(descriptor).st_size
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.ftruncate(descriptor, before)
        raise


def _cut_unfinished_line(path: Path) -> None:
    """Remove a line that a killed process has not finished; the next one would be appended to it."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


class Study:
    """Asks for points and tells results. Numbers of points are those of Optuna's trials."""

    def __init__(self, path: Path, name: str, sweep: SweepSpec, objectives: Sequence[Objective]) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", module="optuna")
        self._space = sweep.space
        self._study = _opened(path, name, objectives)
        self._check_space(path, objectives)
        seed = sweep.seed + SEED_STRIDE * len(self.trials())  # a restarted process must not choose the same points
        self._study.sampler = made_sampler(sweep.method, seed, len(objectives))

    def trials(self) -> list[FrozenTrial]:
        """All trials by number."""
        return self._study.get_trials(deepcopy=False)

    def ask(self) -> tuple[int, Params]:
        """Choose a new point; it is in the file when this returns."""
        trial = self._study.ask()
        return trial.number, self._suggested(trial)

    def unfinished(self) -> dict[int, Params]:
        """Points that were chosen and have no result. One that a killed process left half chosen is completed."""
        open_points = {}
        for frozen in self.trials():
            if not frozen.state.is_finished():
                open_points[frozen.number] = self._suggested(optuna.trial.Trial(self._study, frozen._trial_id))
        return open_points

    def tell(self, told: StudyRecord) -> None:
        """Record the result of a point, unless it has one."""
        frozen = self.trials()[told.number]
        if frozen.state.is_finished():
            return
        trial = optuna.trial.Trial(self._study, frozen._trial_id)
        if told.message:
            trial.set_user_attr("message", told.message)
        for step, value in _shown(told, self._study.directions):
            trial.report(value, step)
        state = _state(told)
        self._study.tell(trial, list(told.values) if state == TrialState.COMPLETE else None, state=state)

    def restore(self, points: Sequence[StudyRecord]) -> int:
        """Add points that the queue has and the study has not, in the order of their numbers; returns how many.

        A point of which the study has lost some parameters gets those of the queue.
        """
        trials = self.trials()
        by_number = {point.number: point for point in points}
        for frozen in trials:
            if frozen.number in by_number and not frozen.state.is_finished():
                self._complete(frozen, by_number[frozen.number].params)
        missing = range(len(trials), max(by_number, default=-1) + 1)
        for number in missing:
            self._study.add_trial(self._made(by_number.get(number)))
        return len(missing)

    def _complete(self, frozen: FrozenTrial, params: Params) -> None:
        distributions, values = self._distributions(params)
        for key in values.keys() - frozen.params.keys():
            value = distributions[key].to_internal_repr(values[key])
            self._study._storage.set_trial_param(frozen._trial_id, key, value, distributions[key])

    def _made(self, told: StudyRecord | None) -> FrozenTrial:
        if told is None:
            return optuna.trial.create_trial(state=TrialState.FAIL)
        distributions, params = self._distributions(told.params)
        state = _state(told)
        has_values = state == TrialState.COMPLETE or (state == TrialState.PRUNED and len(told.values) == 1)
        curve = {int(step): value for step, value in _shown(told, self._study.directions)}
        attributes = {"message": told.message} if told.message else {}
        return optuna.trial.create_trial(
            state=state,
            params=params,
            distributions=distributions,
            intermediate_values=curve,
            user_attrs=attributes,
            values=list(told.values) if has_values else None,
        )

    def _check_space(self, path: Path, objectives: Sequence[Objective]) -> None:
        """Refuse the study of another space; a new one gets this space, also one whose process was killed there."""
        now = {
            SPACE: _space_lines(self._space),
            OBJECTIVES: [f"{objective.name}:{objective.goal}" for objective in objectives],
        }
        if not self.trials():
            for key in now.keys() - self._study.user_attrs.keys():
                self._study.set_user_attr(key, now[key])
        attributes = self._study.user_attrs
        before = [line for key in now for line in attributes.get(key, ())]
        after = [line for lines in now.values() for line in lines]
        theirs = [line for line in before if line not in after]
        ours = [line for line in after if line not in before]
        differences = [
            f"{who} has {', '.join(lines)}" for who, lines in (("it", theirs), ("this sweep", ours)) if lines
        ]
        if differences:
            raise UsageError(
                f"the study {path} is of another sweep: {'; '.join(differences)}",
                "move the file away; the study is then made again from the results in the queue",
            )

    # -- parameters -----------------------------------------------------------------------------------

    def _suggested(self, trial: optuna.trial.Trial) -> Params:
        """The parameters of a trial; those that it does not have yet are chosen now."""
        place = 0
        if len(self._space.products) > 1:
            place = trial.suggest_categorical(PRODUCT, list(range(len(self._space.products))))
        params: Params = {}
        for parameter in self._space.products[place].parameters:
            if is_active(parameter, params):
                params[parameter.name] = _suggest(trial, self._key(place, parameter), parameter.domain)
        return params

    def _key(self, place: int, parameter: Parameter) -> str:
        """The name in the study; in several products, the same name may have other values."""
        return parameter.name if len(self._space.products) == 1 else f"{place}/{parameter.name}"

    def _distributions(self, params: Params) -> tuple[dict[str, BaseDistribution], dict[str, Any]]:
        """Distributions and values of a point, as the study has them."""
        place = next((number for number in range(len(self._space.products)) if self._is_in(number, params)), 0)
        distributions: dict[str, BaseDistribution] = {}
        values: dict[str, Any] = {}
        if len(self._space.products) > 1:
            distributions[PRODUCT], values[PRODUCT] = CategoricalDistribution(range(len(self._space.products))), place
        for parameter in self._space.products[place].parameters:
            if parameter.name in params and (distribution := distribution_of(parameter.domain)) is not None:
                key = self._key(place, parameter)
                distributions[key], values[key] = distribution, _within(parameter.domain, params[parameter.name])
        return distributions, values

    def _is_in(self, place: int, params: Mapping[str, Scalar]) -> bool:
        """Whether a point can be of this product."""
        parameters = self._space.products[place].parameters
        names = {parameter.name for parameter in parameters}
        return all(
            parameter.name not in params or _contains(parameter.domain, params[parameter.name])
            for parameter in parameters
        ) and names >= set(params)


def _space_lines(space: Space) -> list[str]:
    return [
        f"{place}: {parameter_text(parameter)}" if place else parameter_text(parameter)
        for place, product in enumerate(space.products)
        for parameter in product.parameters
    ]


def _suggest(trial: optuna.trial.Trial, key: str, domain: Domain) -> Scalar:
    distribution = distribution_of(domain)
    if distribution is None:
        assert isinstance(domain, Choices)
        return domain.values[0]
    value: Scalar = trial._suggest(key, distribution)
    return rounded(value) if isinstance(value, float) and isinstance(domain, Range) else value


def distribution_of(domain: Domain) -> BaseDistribution | None:
    """Optuna's form of a domain; None for a constant."""
    if isinstance(domain, Choices):
        return CategoricalDistribution(domain.values) if len(domain.values) > 1 else None
    if domain.integer:
        step = 1 if domain.log else int(domain.step or 1)
        return IntDistribution(int(domain.low), int(domain.high), log=domain.log, step=step)
    step_size = None if domain.step is None or domain.log else float(domain.step)
    return FloatDistribution(float(domain.low), float(domain.high), log=domain.log, step=step_size)


def _within(domain: Domain, value: Scalar) -> Scalar:
    """A value that was rounded for the command line, moved back into its range."""
    if isinstance(domain, Range) and isinstance(value, int | float):
        return min(max(value, domain.low), domain.high)
    return value


def _contains(domain: Domain, value: Scalar) -> bool:
    if isinstance(domain, Choices):
        return any(same(value, choice) for choice in domain.values)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and float(rounded(domain.low)) <= float(value) <= float(rounded(domain.high))  # type: ignore[arg-type]


# -- results --------------------------------------------------------------------------------------------


def _state(told: StudyRecord) -> TrialState:
    if not told.over:
        return TrialState.RUNNING
    if told.stopped:
        return TrialState.PRUNED
    return TrialState.COMPLETE if told.values else TrialState.FAIL


def _shown(told: StudyRecord, directions: Sequence[Any]) -> Iterator[tuple[int, float]]:
    """Points of the curve for a study of one objective; Optuna has none for several."""
    if len(directions) == 1:
        points = {int(step): value for step, value in thinned(told.curve, SHOWN_POINTS) if step >= 0}
        yield from points.items()


def _opened(path: Path, name: str, objectives: Sequence[Objective]) -> optuna.Study:
    """The study in a file; a damaged file is kept beside it, and the study begins anew."""
    directions = [_DIRECTIONS[objective.goal] for objective in objectives]
    for again in (True, False):
        try:
            storage = JournalStorage(_Backend(path))
            return optuna.create_study(storage=storage, study_name=name, directions=directions, load_if_exists=True)
        except (StudyLost, ValueError, KeyError, TypeError, AttributeError):  # Optuna did not write these lines
            if not again:
                raise
            path.replace(path.with_suffix(".damaged"))
    raise AssertionError("the second try returns or raises")


def made_sampler(method: str, seed: int, objectives: int) -> BaseSampler:
    """The sampler of a method; names what it needs and is not installed."""
    missing = [package for package in NEEDED.get(method, ()) if find_spec(package) is None]
    if missing:
        raise UsageError(
            f"--method {method} needs {' and '.join(missing)}, which this Python does not have",
            f"{how_to_add(*missing)}, or use --method tpe",
        )
    if method == "cmaes" and objectives > 1:
        raise UsageError("--method cmaes has one objective only", "use --method tpe")
    samplers: dict[str, type[BaseSampler]] = {
        "tpe": optuna.samplers.TPESampler,
        "gp": optuna.samplers.GPSampler,
        "cmaes": optuna.samplers.CmaEsSampler,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return samplers[method](seed=seed % 2**32)  # type: ignore[call-arg]
