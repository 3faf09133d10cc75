"""`stoker status ID --env`: what a job ran with, and what is different now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from stoker.app.jobs.local_time import stamp, to_datetime
from stoker.app.jobs.select import jobs_in_order
from stoker.app.views.facts import QueueFacts, read_facts
from stoker.cli.options import Screen, write_json, write_plain
from stoker.cli.screens.text import EMPTY, LABEL_COLUMNS, Line, Span, heading, write_lines
from stoker.core.device import node_gpu
from stoker.core.job import Job, id_text, single
from stoker.core.spec import digest_of
from stoker.core.units import count_text
from stoker.features.freeze.software import Software, SoftwareLook, place_of, software_at
from stoker.store.paths import Paths

SCHEMA = "stoker.software/1"
MOST_CHANGES = 20
"""Changed packages that a screen lists, unless it lists all."""
SOURCES = {
    "command": "named by the command",
    "program": "named by the program",
    "PATH": "the first on its PATH",
}


class PackageChange(Struct, frozen=True):
    """A package that is not what it was when the job started."""

    name: str
    then: str | None
    """Its version; null if it was not there."""
    now: str | None


class JobSoftware(Struct, frozen=True):
    """The software that the newest run of a job started with."""

    job: str
    attempt: int | None
    """Null if it has not started."""
    since: datetime | None
    """When Stoker saw this state of the environment first; null if nothing is recorded."""
    packages_hash: str
    """Equal for jobs that record the same Python and the same packages; empty if nothing is recorded."""
    software: Software | None
    variables: list[str]
    """Names of the variables of its environment; their values are not shown."""
    changes: list[PackageChange] | None
    """Packages, and `python` itself, that are different now; null if that cannot be seen from here."""


class SelectedSoftware(Struct, frozen=True):
    """The software of some jobs: `stoker status ID... --env --json`."""

    schema: str
    at: datetime
    simulated: bool
    jobs: list[JobSoftware]


def show(paths: Paths, ids: Sequence[int], screen: Screen, *, everything: bool) -> None:
    """Print what the jobs ran with; `everything` lists all packages."""
    with read_facts(paths) as facts:
        look = SoftwareLook()
        jobs = [_job_software(facts, paths, job, look) for job in single(jobs_in_order(facts.store, ids))]
        shown = SelectedSoftware(SCHEMA, to_datetime(facts.now), paths.is_simulated, jobs)
    if screen.form == "json":
        write_json(shown)
    elif screen.form == "plain":
        write_plain(f"{job.job}\t{label}\t{text}" for job in jobs for label, text in _facts(job, everything=True))
    else:
        write_lines(render(shown, everything=everything, typed=screen.typed), screen.color)


def _job_software(facts: QueueFacts, paths: Paths, job: Job, look: SoftwareLook) -> JobSoftware:
    environment = facts.store.environment(job.spec.environment) if job.spec.environment else {}
    variables = sorted({*environment, *dict(job.spec.extra_env)})
    runs = [attempt for attempt in facts.store.runs(job.id) if attempt.started is not None]
    if not runs:
        return JobSoftware(id_text(job), None, None, "", None, variables, None)
    newest = runs[-1]
    gpu = next(filter(None, map(node_gpu, newest.devices)), None)
    record = software_at(paths.on(job.spec.cluster), job, newest.started or 0.0, gpu.node if gpu else "")
    if record is None:
        return JobSoftware(id_text(job), newest.number, None, "", None, variables, None)
    changes = None if job.spec.cluster else list(_changes(record.software, look.at(place_of(job, environment), ())))
    return JobSoftware(
        id_text(job),
        newest.number,
        to_datetime(record.since),
        _hash(record.software),
        record.software,
        variables,
        changes,
    )


def _versions(software: Software) -> Mapping[str, str]:
    python = {"python": software.python} if software.python else {}
    return {**python, **software.conda, **software.packages}


def _hash(software: Software) -> str:
    return digest_of(_versions(software))[:12]


def _changes(then: Software, now: Software) -> Iterator[PackageChange]:
    before, after = _versions(then), _versions(now)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield PackageChange(name, before.get(name), after.get(name))


def render(shown: SelectedSoftware, *, everything: bool, typed: str) -> list[Line]:
    lines: list[Line] = []
    for job in shown.jobs:
        lines += [EMPTY] if lines else []
        lines.append(heading([f"job {job.job} · started with"], 0, simulated=shown.simulated))
        for label, text in _facts(job, everything=everything):
            lines.append((Span(f" {label:{LABEL_COLUMNS}}", "faint"), Span(text)))
        if job.software is not None and not everything:
            lines.append((Span(f" all packages: stoker status{typed} {job.job} --env -a", "faint"),))
    return lines


def _facts(job: JobSoftware, *, everything: bool) -> Iterator[tuple[str, str]]:
    software = job.software
    if software is None:
        yield "python", "not recorded" if job.attempt else "the job has not started"
    else:
        yield from _software_facts(job, software, everything=everything)
    yield "variables", " ".join(job.variables) or "none"


def _software_facts(job: JobSoftware, software: Software, *, everything: bool) -> Iterator[tuple[str, str]]:
    if software.executable:
        version = f"{software.implementation} {software.python}" if software.python else "it did not tell its version"
        yield "python", f"{version} ({software.executable}, {SOURCES[software.source]})"
    else:
        yield "python", "none on its PATH"
    if software.environment:
        yield "in", software.environment
    conda = f", {len(software.conda)} of conda" if software.conda else ""
    yield "packages", f"{len(software.packages)}{conda}, hash {job.packages_hash}"
    if everything:
        yield from (("", f"{name} {version}") for name, version in software.packages.items())
        yield from (("conda", f"{name} {version}") for name, version in software.conda.items())
    if software.driver:
        yield "driver", f"NVIDIA {software.driver}"
    for label, text in software.gpus.items():
        yield "gpu", f"{label} {text}"
    yield "on", software.host
    if job.since is not None:
        yield "seen", f"first at {stamp(job.since.timestamp())}"
    if job.changes is not None:
        yield from _change_facts(job.changes, everything=everything)


def _change_facts(changes: Sequence[PackageChange], *, everything: bool) -> Iterator[tuple[str, str]]:
    if not changes:
        yield "now", "the same Python and packages"
        return
    shown = changes if everything else changes[:MOST_CHANGES]
    for number, change in enumerate(shown):
        yield "" if number else "now", f"{change.name} {change.then or 'absent'} → {change.now or 'absent'}"
    if len(changes) > len(shown):
        yield "", f"and {count_text(len(changes) - len(shown), 'more change')}"
