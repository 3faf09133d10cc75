"""Change the spec of jobs that wait or run."""

from __future__ import annotations

import os
import time
import tomllib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from stoker.app.control.requests import Control, change, default_log, interrupted, spec_in_queue, warn
from stoker.app.control.sentences import Effect, effect
from stoker.app.jobs.config import load_config
from stoker.app.jobs.context import SubmitContext, context_of
from stoker.app.jobs.job_spec import options_of, slurm_options, spec_of, with_options
from stoker.app.jobs.limits import within_longest
from stoker.app.jobs.option_values import check_early_signal, check_mps, parse_vram, vram_word
from stoker.app.jobs.options import BY_NAME, TABLES, WHILE_RUNNING, JobOptions, ShownNames, Value
from stoker.app.jobs.preflight import Preflight
from stoker.app.jobs.select import resolve_after
from stoker.core.amounts import amount_now, resources_of_attempts
from stoker.core.device import Device, resolve
from stoker.core.errors import Impossible, UsageError, did_you_mean
from stoker.core.job import Active, Job, Queued, Running, Starting, id_text, is_delegated, started_at
from stoker.core.launch import INHERIT
from stoker.core.planner.reasons import never_fits
from stoker.core.requests import Edit
from stoker.core.spec import LIMIT_FIELDS, JobSpec, Resources, with_fields
from stoker.core.text import valid_text
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
        if isinstance(job.state, Active) and not is_delegated(job):
            _refuse_other_changes(job, changes)
        given = {name: value for name, value in changes.items() if name not in TABLES and value != ""}
        read = spec_of(JobOptions(**given), self._context(job, changes))
        if job.spec.cluster and (read.resources.allowed or read.resources.preferred):
            raise UsageError("--on and --prefer name devices of this machine", "leave them out on a cluster")
        if read.resources.gpus % job.spec.nodes:
            raise UsageError(f"-G counts all {job.spec.nodes} nodes together", f"give a multiple of {job.spec.nodes}")
        if INHERIT in (read.out, read.err):
            raise UsageError("-o - needs a terminal, but jobs of the queue have none", "name a file")
        spec = with_options(job.spec, _with_tables(job.spec, read, changes), changes)
        slurm_options(dict(spec.slurm), spec.cluster)
        check_early_signal(spec.signal, spec.limit)
        if "time" in changes:
            spec = within_longest(spec, load_config(os.environ, None).engine.locked)
        self._refuse_passed_limit(job, spec)
        if spec.resources != job.spec.resources:
            check_mps(spec.resources)
            self.refuse_impossible(job, spec.resources)
        return self._preflight(job).without_unsupported_cap(job.command, spec) if changes.get("cap") else spec

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

    @property
    def names(self) -> ShownNames:
        labels = {device.id: device.label for device in self.devices}
        return ShownNames(lambda device_id: labels.get(device_id, device_id), self._control.store.shown_id)

    def _device_id(self, word: str) -> str:
        if self._status is None:
            raise UsageError(f"the engine has not reported a device {word!r}", "stoker engine start")
        return resolve(self._status.snapshot, word)

    def _context(self, job: Job, changes: Changes) -> SubmitContext:
        """A new directory is relative to this one, a file to the job's directory, as when it was submitted."""
        logs = default_log(self._control, job.spec)
        return context_of(
            job.spec,
            **({"cwd": os.getcwd()} if changes.get("chdir") else {}),
            default_out=logs.replace("%j", "%A/%a") if job.task is not None else logs,
            resolve=self._device_id,
            earlier=lambda text: resolve_after(self._control.store, text, job),
            now=self._now,
        )


def _with_tables(spec: JobSpec, read: JobSpec, changes: Changes) -> JobSpec:
    """The read spec, with the tables of the job as the changes leave them."""
    tables = {}
    for name in TABLES:
        field = BY_NAME[name].fields[0]
        table = {**dict(getattr(spec, field)), **changes.get(name, {})}
        tables[field] = tuple(sorted((key, value) for key, value in table.items() if value is not None))
    return replace(read, **tables)


def _refuse_other_changes(job: Job, changes: Changes) -> None:
    other = [BY_NAME[name].flag for name in changes if name not in WHILE_RUNNING]
    if other:
        possible = ", ".join(BY_NAME[name].flag for name in WHILE_RUNNING)
        raise UsageError(
            f"{id_text(job)} is running; {', '.join(other)} cannot be changed while it runs",
            f"possible now: {possible}; or stoker cancel {id_text(job)}, edit it, and stoker retry",
        )


CHANGEABLE = Queued | Starting | Running


def edit_jobs(control: Control, rewriter: Rewriter, jobs: Sequence[Job], changes: Changes) -> list[Effect]:
    """Change options of jobs; all changes are checked before the first is sent."""
    name = changes.get("name")
    rest = {option: value for option, value in changes.items() if option != "name"}
    left = interrupted(control, jobs)
    edits: list[Edit] = []
    for job in (job for job in jobs if isinstance(job.state, CHANGEABLE)):
        spec = rewriter.spec(job, rest)
        spec = spec_in_queue(control, spec) if job.id in left else spec
        edits.append(Edit(job.id, spec, name, count=job.count))
    in_order = sorted(edits, key=lambda edit: edit.job)
    return [
        _edited(rewriter, before, after, _edit_of(before, in_order)) for before, after in change(control, jobs, edits)
    ]


def _edit_of(job: Job, edits: Sequence[Edit]) -> Edit | None:
    at = bisect_right(edits, job.id, key=lambda edit: edit.job) - 1
    return edits[at] if at >= 0 and job.id < edits[at].job + edits[at].count else None


def _edited(rewriter: Rewriter, before: Job, after: Job, wanted: Edit | None) -> Effect:
    if wanted is not None and after.spec == wanted.spec:
        return effect("edit", before, after, "changed", difference=_difference(rewriter, before, after))
    kept = wanted is not None and after.spec == with_fields(wanted.spec, before.spec, LIMIT_FIELDS)
    return effect("edit", before, after, "limit kept" if kept else "")


def _difference(rewriter: Rewriter, before: Job, after: Job) -> str:
    old, new = editable_options(before, rewriter.names), editable_options(after, rewriter.names)
    secrets = before.spec.extra_env != after.spec.extra_env
    changed = [name for name in new if old[name] != new[name] or (name == "env" and secrets)]
    lines = [f"{name.replace('_', '-')} {_shown(old[name])} → {_shown(new[name])}" for name in changed]
    return ", ".join(lines) or "no change"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name}={value[name]}" for name in value) or "none"
    return str(value) if value != "" else "none"


def editable_options(job: Job, names: ShownNames) -> dict[str, Value]:
    """With texts that TOML can hold, so that those which a user leaves alone are no changes."""
    shown = options_of(job, names)
    return {name: _valid(value) for name, value in shown.items() if not BY_NAME[name].at_submit}


def _valid(value: Value) -> Value:
    if isinstance(value, dict):
        return {valid_text(name): valid_text(text) for name, text in value.items()}
    return valid_text(value) if isinstance(value, str) else value


def write_toml(options: Mapping[str, Any], heading: str) -> str:
    comments = {name: f"  # {BY_NAME[name].comment}" if BY_NAME[name].comment else "" for name in options}
    plain = [f"{name} = {_value(options[name])}{comments[name]}" for name in options if name not in TABLES]
    tables = [line for name in TABLES if name in options for line in ("", f"[{name}]", *_lines(options[name]))]
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
    for name in TABLES:
        if name in changed:
            gone = dict.fromkeys(before[name].keys() - changed[name].keys())
            changed[name] = {**gone, **changed[name]}
    return changed


def _check(name: str, before: Mapping[str, Any], value: Any) -> None:
    if name not in before:
        hint = did_you_mean(name, before, f"known options: {', '.join(before)}")
        raise UsageError(f"unknown option {name!r}", hint)
    wanted = type(before[name])
    if type(value) is not wanted or (wanted is dict and not all(isinstance(entry, str) for entry in value.values())):
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
