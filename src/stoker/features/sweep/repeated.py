"""Find the trials of a sweep that were submitted before, without a look at each of a million."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from stoker.core.job import single
from stoker.core.ranges import Ranges, ranges_of, union
from stoker.core.spec import JobSpec, work_of
from stoker.features.sweep.model.points import FIXED
from stoker.features.sweep.model.record import SweepSpec, trial_jobs
from stoker.features.sweep.model.space import Parameter, Product, values_of
from stoker.features.sweep.model.template import placeholders
from stoker.features.sweep.store import (
    StoredSweep,
    all_sweeps,
    numbers_done_or_open,
    queued_in_patterns,
    sweep_of_content,
)
from stoker.store.reader import Reader


def submitted_before(reader: Reader, sweep: SweepSpec, spec: JobSpec) -> tuple[Ranges, int]:
    """The numbers of trials that are done or in the queue, by their work, and the newest sweep that has some."""
    wanted = _points(sweep)
    others: list[StoredSweep] = []
    alike: list[range] = []
    newest = 0
    for stored in all_sweeps(reader):
        if (stored.spec.cwd, stored.spec.extra_env) != (spec.cwd, spec.extra_env):
            continue
        if sweep.method in FIXED and _points(stored.sweep) == wanted:
            there = numbers_done_or_open(reader, stored.batch, (spec.cwd, spec.extra_env))
            numbers = Ranges([range(sweep.trials)]).among(there)
            alike += numbers.parts
            newest = max(newest, stored.id if numbers else 0)
        elif _may_share(stored.sweep, sweep):
            others.append(stored)
    before = union(alike)
    if others and len(before) < sweep.trials:
        contents = dict(_contents(reader, others))
        jobs = ((job.task, work_of(job).content) for job in trial_jobs(sweep, spec))
        looked = ((number, contents.get(content) or sweep_of_content(reader, content)) for number, content in jobs)
        more = {number: sweep_id for number, sweep_id in looked if number is not None and sweep_id is not None}
        before, newest = union([*before.parts, *ranges_of(sorted(more)).parts]), max([newest, *more.values()])
    return before, newest


def _points(sweep: SweepSpec) -> SweepSpec:
    """Equal for sweeps whose trials of one number do the same work."""
    used = placeholders([*sweep.command.words, *sweep.env.values()])
    name, results = (value if key in used else "" for key, value in (("name", sweep.name), ("results", sweep.results)))
    seed = 0 if sweep.method == "grid" else sweep.seed
    return replace(
        sweep, count=None, max_parallel=None, name=name, results=results, seed=seed, objectives=(), goal="", pruners=()
    )


def _may_share(stored: SweepSpec, sweep: SweepSpec) -> bool:
    """Whether a trial of one may have the parameters of one of the other."""
    return any(_may_meet(product, other) for product in stored.space.products for other in sweep.space.products)


def _may_meet(product: Product, other: Product) -> bool:
    own, theirs = _by_name(product), _by_name(other)
    always = [name for name, parameter in own.items() if not parameter.when] + [
        name for name, parameter in theirs.items() if not parameter.when
    ]
    return all(name in own and name in theirs and _has_common(own[name], theirs[name]) for name in always)


def _by_name(product: Product) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in product.parameters}


def _has_common(parameter: Parameter, other: Parameter) -> bool:
    own, theirs = values_of(parameter.domain), values_of(other.domain)
    if own is None or theirs is None:
        return True
    few, many = sorted((own, theirs), key=len)
    if isinstance(many, range | tuple):
        values = many if isinstance(many, range) else set(many)
        return any(value in values for value in few)
    return True


def _contents(reader: Reader, sweeps: Sequence[StoredSweep]) -> Iterator[tuple[bytes, int]]:
    """The work of trials that share rows, which have no digest of it there."""
    for stored in sweeps:
        for row in queued_in_patterns(reader, stored.batch):
            for job in single([row]):
                yield work_of(job).content, stored.id
