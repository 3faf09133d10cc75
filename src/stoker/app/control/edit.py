"""Change the spec of jobs that wait or run."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from stoker.app.control.requests import Control, abandoned, change, default_log, spec_in_queue, warn
from stoker.app.control.sentences import ChangeResult, result
from stoker.app.jobs.local_time import LocalZone
from stoker.app.jobs.options import (
    BY_NAME,
    WHILE_RUNNING,
    JobOptions,
    Surroundings,
    check_mps,
    parse_vram,
    slurm_options,
    spec_of,
    vram_word,
)
from stoker.app.jobs.preflight import Preflight
from stoker.app.jobs.select import resolve_after
from stoker.app.jobs.signals import check_early_signal, early_signal_text
from stoker.app.jobs.targets import shown_target
from stoker.core.amounts import amount_now, resources_of_attempts
from stoker.core.device import Device, resolve
from stoker.core.errors import Impossible, UsageError, did_you_mean
from stoker.core.job import Active, Job, Queued, Running, Starting, id_text, is_handed_over, started_at
from stoker.core.launch import INHERIT
from stoker.core.planner.placement import never_fits
from stoker.core.requests import Edit
from stoker.core.spec import LIMIT_FIELDS, JobSpec, Name, Resources, with_fields
from stoker.core.text import printable, shown_value, text_for_json
from stoker.core.units import size_text, watch_text
from stoker.store.engine_lock import QUEUE
from stoker.store.reader import Reader
from stoker.store.status_file import read_status


class LastAttempt(NamedTuple):
    """Memory of each GPU that the last attempt of a job had; None is all of it, or unknown."""

    reserved: int | None = None
    peak: int | None = None
    needed: int = 0
    """Lower bound in bytes, known from an out-of-memory failure."""


def last_attempt(store: Reader, job: Job, devices: Sequence[Device]) -> LastAttempt:
    attempts, uses = store.attempts(job.id), store.uses(job.id)
    if not attempts:
        return LastAttempt(needed=job.floor)
    had = [device for device in devices if device.id in attempts[-1].devices]
    resources = resources_of_attempts(store.events(job.id), job.spec.resources)[-1]
    peak = uses[max(uses)].peak if uses else 0
    return LastAttempt(amount_now(resources, had), peak or None, job.floor)


def changed_resources(resources: Resources, text: str, before: LastAttempt) -> tuple[Resources, str]:
    """The resources with the memory that `--vram` asks for, and the change in words."""
    if word := vram_word(text):
        said = "learnt memory" if word == "auto" else "whole GPUs"
        return replace(resources, memory=None, auto=word == "auto"), said
    if not text.startswith("+"):
        size, why = parse_vram(text), ""
    else:
        base, words = _base(resources, before)
        size, why = _grown(base, text[1:]), f", {text[1:]} more than {words}" if words else ""
    return replace(resources, memory=size, auto=False), f"{size_text(size)} on each GPU{why}"


def _base(resources: Resources, before: LastAttempt) -> tuple[int, str]:
    """The largest of what was requested, reserved, held and needed, and what that is in words."""
    reserved, peak = before.reserved or 0, before.peak or 0
    if resources.shares and before.needed > max(resources.memory or 0, reserved, peak):
        return before.needed, f"the {size_text(before.needed)} minimum that it needs"
    if resources.memory is not None and resources.memory >= reserved:
        return resources.memory, ""
    if not resources.shares:
        raise UsageError("it already has whole GPUs", "give a size, such as --vram 12G")
    if not reserved and not peak:
        raise UsageError("its memory use is not known", "give a size, such as --vram 12G")
    if reserved >= peak:
        return reserved, f"the {size_text(reserved)} reserved last time"
    return peak, f"the {size_text(peak)} peak of the last attempt"


def _grown(size: int, more: str) -> int:
    if not more.endswith("%"):
        return size + parse_vram(more)
    try:
        return parse_vram(f"{int(size * (1 + float(more[:-1]) / 100))}B")
    except (ValueError, OverflowError):
        raise UsageError(f"--vram +{more} is not understood", "write it as +20%, +2G or 12G") from None


Changes = Mapping[str, Any]
"""Options with their new values; an empty text is the default, and None in a table removes a name."""
_OF_THE_RESOURCES = {"gpus": "gpus", "vram": "memory", "on": "allowed", "prefer": "preferred", "gpu_type": "model"}

_OF_THE_SPEC = {
    "priority": "priority",
    "time": "limit",
    "grace": "grace",
    "signal": "signal",
    "retries": "retries",
    "retry_on": "retry_on",
    "no_requeue": "requeue",
    "cap": "cap",
    "group": "group",
    "begin": "begin",
    "after": "after",
    "chdir": "cwd",
    "notify": "notify",
    "out": "out",
    "err": "err",
}

_TABLES = {"env": "extra_env", "tag": "tags", "slurm": "slurm"}


class Rewriter:
    """Changes the specs of jobs; checks them against the devices that the engine saw last."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._status = read_status(control.paths.status_file(QUEUE))
        self._now = time.time()
        self._preflights: dict[str, Preflight] = {}

    def spec(self, job: Job, changes: Changes) -> JobSpec:
        """The spec of a job with the changes, checked."""
        if "array" in changes:
            raise UsageError("the tasks of an array cannot be changed", "cancel it and submit a new one")
        if isinstance(job.state, Active) and not is_handed_over(job):
            _refuse_other_changes(job, changes)
        given = {name: value for name, value in changes.items() if name not in _TABLES and value != ""}
        read = spec_of(JobOptions(**given), self._around(job, changes))
        if job.spec.cluster and (read.resources.allowed or read.resources.preferred):
            raise UsageError("--on and --prefer name devices of this machine", "leave them out on a cluster")
        if read.resources.gpus % job.spec.nodes:
            raise UsageError(f"-G counts all {job.spec.nodes} nodes together", f"give a multiple of {job.spec.nodes}")
        if INHERIT in (read.out, read.err):
            raise UsageError("-o - needs a terminal, but jobs of the queue have none", "name a file")
        resources = {
            field: getattr(read.resources, field) for option, field in _OF_THE_RESOURCES.items() if option in changes
        }
        if "vram" in changes:
            resources["auto"] = read.resources.auto
        changed = {field: getattr(read, field) for option, field in _OF_THE_SPEC.items() if option in changes}
        for name, field in _TABLES.items():
            merged = {**dict(getattr(job.spec, field)), **changes.get(name, {})}
            changed[field] = tuple(sorted((key, value) for key, value in merged.items() if value is not None))
        slurm_options(dict(changed["slurm"]), job.spec.cluster)
        spec = msgspec.structs.replace(
            job.spec, resources=msgspec.structs.replace(job.spec.resources, **resources), **changed
        )
        check_early_signal(spec.signal, spec.limit)
        self._refuse_passed_limit(job, spec)
        if resources:
            check_mps(spec.resources)
            self.refuse_impossible(job, spec.resources)
        return self._preflight(job).settle_cap(job.command, spec) if changes.get("cap") else spec

    def _refuse_passed_limit(self, job: Job, spec: JobSpec) -> None:
        began = started_at(job)
        if began is not None and spec.limit is not None and spec.limit <= (ran := self._now - began):
            raise UsageError(
                f"{id_text(job)} has run for {watch_text(ran)}, longer than a limit of {watch_text(spec.limit)}",
                f"give a longer limit, or end it now with stoker cancel {id_text(job)}",
            )

    def _preflight(self, job: Job) -> Preflight:
        digest = job.spec.environment
        if digest not in self._preflights:
            self._preflights[digest] = Preflight(self._control.store.environment(digest), warn)
        return self._preflights[digest]

    def refuse_impossible(self, job: Job, resources: Resources) -> None:
        if job.spec.cluster:  # its devices are not known here
            return
        if self._status is not None and resources.gpus and (why := never_fits(resources, self._status.devices)):
            raise Impossible(f"{id_text(job)} {why}", "request less; list the GPUs with: stoker gpus")

    @property
    def devices(self) -> tuple[Device, ...]:
        """Those that the engine saw last."""
        return self._status.devices if self._status else ()

    def label(self, device_id: str) -> str:
        return next((device.label for device in self.devices if device.id == device_id), device_id)

    def job(self, job_id: int) -> str:
        return self._control.store.shown_id(job_id)

    def _device_id(self, word: str) -> str:
        if self._status is None:
            raise UsageError(f"the engine has not reported a device {word!r}", "stoker engine start")
        return resolve(self._status.snapshot, word)

    def _around(self, job: Job, changes: Changes) -> Surroundings:
        """A new directory is relative to this one, a file to the job's directory, as when it was submitted."""
        logs = default_log(self._control, job.spec)
        return Surroundings(
            cwd=os.getcwd() if changes.get("chdir") else job.spec.cwd,
            umask=job.spec.umask,
            environment=job.spec.environment,
            default_out=logs.replace("%j", "%A/%a") if job.task is not None else logs,
            resolve=self._device_id,
            earlier=lambda text: resolve_after(self._control.store, text, job),
            now=self._now,
        )


def _refuse_other_changes(job: Job, changes: Changes) -> None:
    other = [BY_NAME[name].flag for name in changes if name not in WHILE_RUNNING]
    if other:
        possible = ", ".join(BY_NAME[name].flag for name in WHILE_RUNNING)
        raise UsageError(
            f"{id_text(job)} is running; {', '.join(other)} cannot be changed while it runs",
            f"possible now: {possible}; or stoker cancel {id_text(job)}, edit it, and stoker retry",
        )


CHANGEABLE = Queued | Starting | Running


def edit_jobs(control: Control, rewriter: Rewriter, jobs: Sequence[Job], changes: Changes) -> list[ChangeResult]:
    """Change options of jobs; all changes are checked before the first is sent."""
    name = changes.get("name")
    rest = {option: value for option, value in changes.items() if option != "name"}
    left = abandoned(control, jobs)
    edits: dict[int, Edit] = {}
    for job in (job for job in jobs if isinstance(job.state, CHANGEABLE)):
        spec = rewriter.spec(job, rest)
        spec = spec_in_queue(control, spec) if job.id in left else spec
        edits[job.id] = Edit(job.id, spec, job.name if name is None else name)
    return [
        _edited(rewriter, before, after, edits.get(before.id))
        for before, after in change(control, jobs, list(edits.values()))
    ]


def _edited(rewriter: Rewriter, before: Job, after: Job, wanted: Edit | None) -> ChangeResult:
    if wanted is not None and after.spec == wanted.spec:
        return result("edit", before, after, "changed", difference=_difference(rewriter, before, after))
    kept = wanted is not None and after.spec == with_fields(wanted.spec, before.spec, LIMIT_FIELDS)
    return result("edit", before, after, "limit kept" if kept else "")


def _difference(rewriter: Rewriter, before: Job, after: Job) -> str:
    old, new = options_of(before, rewriter.label, rewriter.job), options_of(after, rewriter.label, rewriter.job)
    secrets = before.spec.extra_env != after.spec.extra_env
    changed = [name for name in new if old[name] != new[name] or (name == "env" and secrets)]
    lines = [f"{name.replace('_', '-')} {_shown(old[name])} → {_shown(new[name])}" for name in changed]
    return ", ".join(lines) or "no change"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={value[name]}" for name in value) or "none"
    return printable(str(value)) if value != "" else "none"


_UNITS = ((2**40, "T"), (2**30, "G"), (2**20, "M"))

_COMMENTS = {
    "gpus": "0 for a job without GPU",
    "vram": "on each GPU, for example 12G; auto: learnt size, all: whole GPU",
    "cap": "whether PyTorch enforces it",
    "on": "only these devices, for example 0,2",
    "prefer": "preferred devices",
    "priority": "higher starts first",
    "time": "time limit, for example 2h",
    "grace": "between TERM and KILL",
    "signal": "before the time limit, for example USR1@60",
    "begin": "not before: 22:00, now+1hour",
    "after": "after these jobs have succeeded; any:ID, notok:ID",
    "notify": "a URL of apprise, or mail; only the kind of a URL is shown",
    "retry_on": "for example oom,timeout,75; empty is any failure",
}


def options_of(job: Job, label: Callable[[str], str], name: Name = str) -> dict[str, Any]:
    """Every option that can be changed, with its value: an empty text for none, stars for secrets."""
    spec, resources = job.spec, job.spec.resources
    return {
        "name": text_for_json(job.name),
        "priority": spec.priority,
        "gpus": resources.gpus,
        "vram": "auto" if resources.auto else "all" if resources.memory is None else _size(resources.memory),
        "cap": spec.cap,
        "on": ",".join(map(label, resources.allowed)),
        "prefer": ",".join(map(label, resources.preferred)),
        "gpu_type": resources.model,
        "time": "" if spec.limit is None else _seconds(spec.limit),
        "grace": _seconds(spec.grace),
        "signal": "" if spec.signal is None else early_signal_text(spec.signal),
        "begin": "" if spec.begin is None else datetime.fromtimestamp(int(spec.begin), LocalZone()).isoformat(),
        "after": ",".join(f"{one.kind}:{one.target if one.array else name(one.target)}" for one in spec.after),
        "retries": spec.retries,
        "retry_on": ",".join(spec.retry_on),
        "no_requeue": not spec.requeue,
        "group": spec.group,
        "chdir": text_for_json(spec.cwd),
        "out": text_for_json(spec.out),
        "err": text_for_json(spec.err),
        "notify": ",".join(map(shown_target, spec.notify)),
        "env": {text_for_json(name): text_for_json(shown_value(name, value)) for name, value in spec.extra_env},
        "tag": dict(spec.tags),
        "slurm": dict(spec.slurm),
    }


def write_toml(options: Mapping[str, Any], heading: str) -> str:
    comments = {name: f"  # {comment}" for name, comment in _COMMENTS.items()}
    plain = [f"{name} = {_value(options[name])}{comments.get(name, '')}" for name in options if name not in _TABLES]
    tables = [line for name in _TABLES if name in options for line in ("", f"[{name}]", *_lines(options[name]))]
    return "\n".join([*(f"# {line}" for line in heading.splitlines()), "", *plain, *tables, ""])


def changes_in(before: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Find the options that the text changes; a removed line changes nothing, a removed variable is deleted."""
    try:
        after = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"not valid TOML: {error}", "write KEY = VALUE on each line") from error
    changed = {name: value for name, value in after.items() if value != before.get(name)}
    for name, value in changed.items():
        _check(name, before, value)
    for name in _TABLES:
        if name in changed:
            gone = dict.fromkeys(before[name].keys() - changed[name].keys())
            changed[name] = {**gone, **changed[name]}
    return changed


def _check(name: str, before: Mapping[str, Any], value: Any) -> None:
    if name not in before:
        hint = did_you_mean(name, before, f"known options: {', '.join(before)}")
        raise UsageError(f"unknown option {name!r}", hint)
    wanted = type(before[name])
    if type(value) is not wanted or (wanted is dict and not all(isinstance(each, str) for each in value.values())):
        kinds = {int: "a number", str: "a text in quotes", bool: "true or false", dict: "a table of texts"}
        raise UsageError(f"{name} = {value!r} is not {kinds[wanted]}", f"it was {name} = {_value(before[name])}")


def _lines(table: Mapping[str, str]) -> list[str]:
    return [f"{_quoted(name)} = {_quoted(value)}" for name, value in table.items()]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ", ".join(_lines(value)) + "}"
    return str(value) if isinstance(value, int) else _quoted(value)


def _quoted(text: str) -> str:
    """A basic string of TOML with control characters escaped."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in plain) + '"'


def _size(size: int) -> str:
    return next((f"{size // unit}{letter}" for unit, letter in _UNITS if size % unit == 0), f"{size}B")


def _seconds(seconds: float) -> str:
    return f"{seconds:g}s" if seconds < 1e6 else f"{seconds:.0f}s"
