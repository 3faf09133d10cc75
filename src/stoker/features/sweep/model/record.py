"""A sweep as the user asked for it, and the job of each of its trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec
from msgspec import Struct

from stoker.core.pattern import short_name
from stoker.core.spec import Command, JobSpec, Member, NewJob
from stoker.features.sweep.model.points import count_of, visited
from stoker.features.sweep.model.space import Params, Scalar, Space, Texts, texts_of, with_texts
from stoker.features.sweep.model.template import (
    LATER,
    OWN,
    Template,
    after,
    placeholders,
    render_path,
    render_text,
    with_variables,
)

REPEAT = "repeat"
"""Name of the parameter that --repeat adds."""
_encode = msgspec.json.Encoder().encode


class SweepSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request of a user. It is stored as JSON, so new fields need a default."""

    space: Space
    command: Command
    """The command of a trial, with a placeholder where a value goes."""
    method: str = "grid"
    count: int | None = None
    """How many points to visit (-N); None is all points of a grid."""
    seed: int = 0
    repeat: int = 1
    """Trials of each point."""
    max_parallel: int | None = None
    name: str = ""
    env: dict[str, str] = {}
    """Variables whose values have placeholders."""
    results: str = ""
    """Path of the folder of a trial, with placeholders; empty if there is none."""
    objectives: tuple[str, ...] = ()
    """As typed, like the next two."""
    goal: str = ""
    pruners: tuple[str, ...] = ()
    starter: tuple[str, ...] = ()
    """A command that starts that of the trial, whose words follow."""

    @property
    def trials(self) -> int:
        """How many trials the sweep has in all."""
        return count_of(self.space, self.method, self.count) * self.repeat


class TrialMaker:
    """Makes the jobs of the trials of one sweep: the one way from a point of the space to a job."""

    def __init__(self, sweep: SweepSpec, spec: JobSpec) -> None:
        """`spec` is that of all trials."""
        self._sweep = sweep
        self._spec = spec
        self._template = Template(sweep.command)
        self._texts = Texts(sweep.space)
        used = set(placeholders([*sweep.command.words, *sweep.env.values()]))
        self._uses_name = "name" in used
        self._only_parameters = used.isdisjoint((*OWN, *LATER))

    def job(self, number: int, point: Mapping[str, Scalar], task: int | None = None) -> NewJob:
        """The trial with this number, at a point of the space."""
        params = self._params(number, point)
        texts = self._texts.of(params)
        name = trial_name(self._sweep.name, texts)
        member = Member(number, _encode(params).decode())
        return NewJob(self._filled(number, name, texts), self._spec, name, task, member=member)

    def command(self, number: int, point: Mapping[str, Scalar]) -> Command:
        """The command of a trial alone."""
        texts = self._texts.of(self._params(number, point))
        name = trial_name(self._sweep.name, texts) if self._uses_name else ""
        return self._filled(number, name, texts)

    def _params(self, number: int, point: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        repeat = self._sweep.repeat
        return {**point, REPEAT: number % repeat} if repeat > 1 else point

    def _filled(self, number: int, name: str, texts: Mapping[str, str]) -> Command:
        sweep = self._sweep
        values = texts if self._only_parameters else self._with_own(number, name, texts)
        command = self._template.render(values)
        if sweep.starter:
            command = after(command, sweep.starter)
        if not sweep.env:
            return command
        return with_variables(command, {key: render_text(text, values) for key, text in sweep.env.items()})

    def _with_own(self, number: int, name: str, texts: Mapping[str, str]) -> Mapping[str, str]:
        folder = {"results": results_of(self._sweep, number, texts)} if self._sweep.results else {}
        return {"trial": str(number), "i": str(number), "name": name, REPEAT: "0", **folder, **texts}

    def commands(self) -> Iterator[Command]:
        """The commands of all trials, for a method that needs no results."""
        sweep = self._sweep
        plain = self._only_parameters and not sweep.env and not sweep.starter and sweep.repeat == 1
        if plain and sweep.method != "sobol" and (texts := with_texts(sweep.space)) is not None:
            points = visited(texts, sweep.method, sweep.seed, 0, sweep.trials)
            return (self._template.render(point) for point in points)  # type: ignore[arg-type]
        return (self.command(number, point) for number, point in self._numbered(0, self._sweep.trials))

    def jobs(self, start: int = 0, stop: int | None = None) -> Iterator[NewJob]:
        """The trials from one number up to another, for a method that needs no results. They are tasks of an array."""
        end = self._sweep.trials if stop is None else stop
        return (self.job(number, point, number) for number, point in self._numbered(start, end))

    def _numbered(self, start: int, stop: int) -> Iterator[tuple[int, Params]]:
        sweep, repeat = self._sweep, self._sweep.repeat
        first = start // repeat
        points = visited(sweep.space, sweep.method, sweep.seed, first, -(-stop // repeat))
        if repeat == 1:
            return enumerate(points, start)
        repeated = (
            (number, point)
            for place, point in enumerate(points, first)
            for number in range(place * repeat, (place + 1) * repeat)
        )
        return ((number, point) for number, point in repeated if start <= number < stop)


def trial_job(sweep: SweepSpec, spec: JobSpec, number: int, point: Mapping[str, Scalar]) -> NewJob:
    """One trial of a sweep."""
    return TrialMaker(sweep, spec).job(number, point)


def trial_jobs(sweep: SweepSpec, spec: JobSpec, start: int = 0, stop: int | None = None) -> Iterator[NewJob]:
    """The trials from one number up to another, for a method that needs no results."""
    return TrialMaker(sweep, spec).jobs(start, stop)


def trial_name(name: str, texts: Mapping[str, str]) -> str:
    """The name of a trial on screens: `vit lr=0.1 depth=2`."""
    words = " ".join([f"{key}={value}" for key, value in texts.items()])
    return short_name(f"{name} {words}" if name else words)


def results_of(sweep: SweepSpec, number: int, texts: Mapping[str, str]) -> str:
    """The folder of a trial."""
    return render_path(sweep.results, {"trial": str(number), "i": str(number), "name": sweep.name, **texts})


def file_of_trial(sweep: SweepSpec, number: int, job: int, params: Mapping[str, Scalar], path: str) -> str:
    """The path of a file that a trial writes, from a path with placeholders."""
    texts = texts_of(sweep.space, params)
    own = {"trial": str(number), "i": str(number), "id": str(job), "name": trial_name(sweep.name, texts)}
    folder = {"results": results_of(sweep, number, texts)} if sweep.results else {}
    return render_text(path, {**own, **folder, **texts})


def read_params(text: str) -> Params:
    """The parameters of a trial."""
    return _decoder().decode(text)


@lru_cache(maxsize=1)
def _decoder() -> msgspec.json.Decoder[Params]:
    return msgspec.json.Decoder(dict[str, bool | int | float | str | None])
