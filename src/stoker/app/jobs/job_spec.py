"""From given options to the spec of a job, and from a job back to its options."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from stoker.app.jobs.context import SubmitContext
from stoker.app.jobs.option_values import LARGEST_NUMBER, check_count, check_early_signal, check_mps, check_name
from stoker.app.jobs.options import BY_NAME, OPTIONS, SET_BY_STOKER, JobOptions, Option, ShownNames, Value
from stoker.core.errors import UsageError
from stoker.core.job import Job
from stoker.core.spec import JobSpec, Resources, with_fields

_RESOURCES = frozenset(Resources.__struct_fields__)


def spec_of(options: JobOptions, context: SubmitContext) -> JobSpec:
    """The spec of a job, with every value checked."""
    _refuse_unusable(options)
    given = _fields_of(options, context)
    resources = Resources(**{field: given.pop(field) for field in list(given) if field in _RESOURCES})
    check_mps(resources)
    check_early_signal(given.get("signal"), given.get("limit"))
    cluster = given.get("cluster", "")
    if cluster and options.nonblock:
        raise UsageError("--nonblock is for this machine: a cluster decides later", "use --start-within 10m")
    cwd = os.path.normpath(os.path.join(context.cwd, options.chdir or ""))
    single_out, array_out = context.shared_out(cluster) if cluster else ("", "")
    given |= {
        "resources": resources,
        "cwd": cwd,
        "environment": context.environment,
        "umask": context.umask,
        "requeue": given.get("requeue", True) and not context.terminal,
        "preemptible": "" if context.terminal else given.get("preemptible", ""),
        "out": _output(options.out, cwd)
        or (options.array and (array_out or context.array_out))
        or (single_out or context.default_out),
        "err": _output(options.err, cwd),
        "commit": context.commit(cwd),
        "fill": context.fill or options.array is not None,
        "nodes": _nodes(options, cluster),
        "slurm": slurm_options(options.slurm, cluster),
        "slurm_submit_dir": context.cwd if context.slurm else "",
        "terminal": context.terminal,
        "parent": context.parent,
    }
    return JobSpec(**given)


def _fields_of(options: JobOptions, context: SubmitContext) -> dict[str, Any]:
    """The fields that the given options set."""
    fields: dict[str, Any] = {}
    for option in OPTIONS:
        given = getattr(options, option.name)
        if given is None or not option.fields:
            continue
        value = option.find(given, context) if option.find else option.parse(given)
        fields |= zip(option.fields, value if len(option.fields) > 1 else (value,), strict=True)
    return fields


def with_options(spec: JobSpec, other: JobSpec, names: Iterable[str]) -> JobSpec:
    """The spec with the values that these options have in another one."""
    fields = {field for name in names for field in BY_NAME[name].fields}
    resources = with_fields(spec.resources, other.resources, fields & _RESOURCES)
    return replace(with_fields(spec, other, fields - _RESOURCES), resources=resources)


def options_of(job: Job, names: ShownNames) -> dict[str, Value]:
    """Every option with the value of a job, its name first: an empty text for none, stars for secrets."""
    ordered = (BY_NAME["name"], *(option for option in OPTIONS if option.name not in ("name", "array")))
    return {option.name: _shown(option, job, names) for option in ordered}


def given_options(job: Job, names: ShownNames) -> dict[str, Value]:
    """The options of a job that differ from the built-in ones."""
    shown = options_of(job, names)
    return {name: value for name, value in shown.items() if value != BY_NAME[name].default}


def _shown(option: Option, job: Job, names: ShownNames) -> Value:
    if option.show:
        return option.show(job, names)
    field = getattr(job.spec.resources if option.fields[0] in _RESOURCES else job.spec, option.fields[0])
    return dict(field) if option.kind == "table" else ",".join(field) if isinstance(field, tuple) else field


def _refuse_unusable(options: JobOptions) -> None:
    check_name(options.name or "")
    for option in OPTIONS:
        given = getattr(options, option.name)
        if isinstance(given, str) and "\0" in given:
            raise UsageError(f"{option.flag} contains a NUL byte", "leave that out")
    for name, value in options.env.items():
        if not name or "=" in name or "\0" in name + value:
            raise UsageError(f"{name!r} cannot be the name of a variable", "write it as --env SEED=1")
    check_count(options.gpus or 0, "-G")
    check_count(options.retries or 0, "--retries")


def _output(pattern: str | None, cwd: str) -> str:
    """A path pattern made absolute; "-" stays."""
    if not pattern or pattern == "-":
        return pattern or ""
    return os.path.join(cwd, os.path.expanduser(pattern))


def _nodes(options: JobOptions, cluster: str) -> int:
    """Nodes of the cluster; refuses what makes no sense on a cluster, or only there."""
    nodes = 1 if options.nodes is None else options.nodes
    if not 1 <= nodes <= LARGEST_NUMBER:
        raise UsageError(f"--nodes {nodes} is no number of nodes", "give 1 or more")
    if not cluster and nodes > 1:
        raise UsageError("this machine is one node", "name a cluster with -M, or leave out --nodes")
    gpus = 1 if options.gpus is None else options.gpus
    if gpus % nodes:
        raise UsageError(f"-G {gpus} is for all nodes together, and cannot be divided by {nodes}", "give a multiple")
    if cluster and (options.on or options.prefer):
        raise UsageError("--on and --prefer name devices of this machine", "leave them out on a cluster")
    return nodes


def slurm_options(given: Mapping[str, str], cluster: str) -> tuple[tuple[str, str], ...]:
    """Options for sbatch, checked: some are Stoker's own, and on this machine there is no sbatch."""
    if given and not cluster:
        raise UsageError("--slurm is for jobs on a cluster", "name one with -M, or leave out --slurm")
    for name, value in given.items():
        if not re.fullmatch("[a-z][a-z-]+", name) or not value.isprintable():
            raise UsageError(f"--slurm {name}={value!r} is no option of sbatch", "write it as --slurm mem=16G")
        if name in SET_BY_STOKER:
            raise UsageError(f"--slurm --{name} is set by Stoker itself", "use the option of stoker submit --help")
    return tuple(sorted((name, "" if value == "true" else value) for name, value in given.items()))
