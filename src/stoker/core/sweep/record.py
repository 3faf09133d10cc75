"""A sweep as the user asked for it, and the job of each of its trials."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec
from msgspec import Struct

from stoker.core.spec import Command, JobSpec, NewJob, Trial
from stoker.core.sweep.points import count_of, visited
from stoker.core.sweep.space import Params, Scalar, Space, Texts, texts_of
from stoker.core.sweep.template import Template, render_path, render_text, with_variables

REPEAT = "repeat"
"""Name of the parameter that --repeat adds."""
LONGEST_NAME = 200
_encode = msgspec.json.Encoder().encode


class Sweep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a user asked for. It is stored as JSON, so new fields need a default."""

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
    """Path of the folder of a trial, with placeholders; empty where there is none."""
    objectives: tuple[str, ...] = ()
    """As typed, like the next two."""
    goal: str = ""
    pruners: tuple[str, ...] = ()

    @property
    def trials(self) -> int:
        """How many trials the sweep has in all."""
        return count_of(self.space, self.method, self.count) * self.repeat


class TrialMaker:
    """Makes the jobs of the trials of one sweep: the one way from a point of the space to a job."""

    def __init__(self, sweep: Sweep, spec: JobSpec, sweep_id: int = 0) -> None:
        """`spec` is that of all trials; `sweep_id` is 0 for trials that are tasks of a new array."""
        self._sweep = sweep
        self._spec = spec
        self._id = sweep_id
        self._template = Template(sweep.command)
        self._texts = Texts(sweep.space)

    def job(self, number: int, point: Mapping[str, Scalar], task: int | None = None) -> NewJob:
        """The trial with this number, at a point of the space."""
        sweep = self._sweep
        params: Params = {**point, REPEAT: number % sweep.repeat} if sweep.repeat > 1 else dict(point)
        texts = self._texts.of(params)
        name = trial_name(sweep.name, texts)
        values = {"trial": str(number), "i": str(number), "name": name, REPEAT: "0", **texts}
        if sweep.results:
            values = {"results": results_of(sweep, number, texts), **values}
        command = self._template.render(values)
        if sweep.env:
            command = with_variables(command, {key: render_text(text, values) for key, text in sweep.env.items()})
        return NewJob(command, self._spec, name, task, trial=Trial(number, _encode(params).decode(), self._id))

    def jobs(self, start: int = 0, stop: int | None = None) -> Iterator[NewJob]:
        """The trials from one number up to another, for a method that needs no results. They are tasks of an array."""
        sweep, repeat = self._sweep, self._sweep.repeat
        end = sweep.trials if stop is None else stop
        first = start // repeat
        points = visited(sweep.space, sweep.method, sweep.seed, first, -(-end // repeat))
        for place, point in enumerate(points, first):
            for number in range(max(place * repeat, start), min((place + 1) * repeat, end)):
                yield self.job(number, point, number)


def trial_job(sweep: Sweep, spec: JobSpec, number: int, point: Mapping[str, Scalar], sweep_id: int = 0) -> NewJob:
    """One trial of a sweep."""
    return TrialMaker(sweep, spec, sweep_id).job(number, point)


def trial_jobs(sweep: Sweep, spec: JobSpec, start: int = 0, stop: int | None = None) -> Iterator[NewJob]:
    """The trials from one number up to another, for a method that needs no results."""
    return TrialMaker(sweep, spec).jobs(start, stop)


def trial_name(name: str, texts: Mapping[str, str]) -> str:
    """The name of a trial on screens: `vit lr=0.1 depth=2`."""
    words = " ".join([f"{key}={value}" for key, value in texts.items()])
    words = f"{name} {words}" if name else words
    return words if len(words) <= LONGEST_NAME else words[: LONGEST_NAME - 1] + "…"


def results_of(sweep: Sweep, number: int, texts: Mapping[str, str]) -> str:
    """The folder of a trial."""
    return render_path(sweep.results, {"trial": str(number), "i": str(number), "name": sweep.name, **texts})


def file_of_trial(sweep: Sweep, number: int, params: Mapping[str, Scalar], path: str) -> str:
    """The path of a file that a trial writes, from a path with placeholders."""
    texts = texts_of(sweep.space, params)
    own = {"trial": str(number), "i": str(number), "name": trial_name(sweep.name, texts)}
    folder = {"results": results_of(sweep, number, texts)} if sweep.results else {}
    return render_text(path, {**own, **folder, **texts})


def read_params(text: str) -> Params:
    """The parameters of a trial."""
    return _decoder().decode(text)


@lru_cache(maxsize=1)
def _decoder() -> msgspec.json.Decoder[Params]:
    return msgspec.json.Decoder(dict[str, bool | int | float | str | None])
