"""Other terms for a job that is in the queue already, in the words in which jobs are submitted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from stoker.after import resolve_after
from stoker.capping import Caps
from stoker.cli.control.handing_on import default_log
from stoker.cli.control.wishes import Control, warn
from stoker.core.attempt import INHERIT
from stoker.core.device import Device
from stoker.core.device_name import resolve
from stoker.core.errors import Impossible, UsageError
from stoker.core.fit import never_fits
from stoker.core.job import Job
from stoker.core.terms import Need, Terms
from stoker.options import JobOptions, Surroundings, check_mps, terms_of
from stoker.presence import QUEUE
from stoker.published import View, read_view
from stoker.words import id_text

Wish = Mapping[str, Any]
"""Options with their new values; an empty text is the default, and None in a table takes a name out of it."""

_OF_THE_NEED = {"gpus": "gpus", "vram": "memory", "on": "allowed", "prefer": "preferred", "gpu_type": "model"}
_OF_THE_TERMS = {
    "priority": "priority",
    "time": "limit",
    "grace": "grace",
    "retries": "retries",
    "retry_on": "retry_on",
    "no_requeue": "requeue",
    "cap": "cap",
    "group": "group",
    "begin": "begin",
    "after": "after",
    "chdir": "cwd",
    "out": "out",
    "err": "err",
}
_TABLES = {"env": "extra_env", "tag": "tags"}


class Rewriter:
    """Gives jobs other terms; checks them by what the engine saw last."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._view = read_view(control.places.bulletin(QUEUE))
        self._now = time.time()
        self._caps_by_environment: dict[str, Caps] = {}

    def terms(self, job: Job, wish: Wish) -> Terms:
        """The terms of a job with what is wished, all of it checked."""
        if "array" in wish:
            raise UsageError("the tasks of an array cannot be changed", "cancel it and submit another one")
        given = {name: value for name, value in wish.items() if name not in _TABLES and value != ""}
        read = terms_of(JobOptions(**given), self._around(job, wish))
        if INHERIT in (read.out, read.err):
            raise UsageError("-o - is this terminal, which a job of the queue does not have", "name a file")
        need = {field: getattr(read.need, field) for option, field in _OF_THE_NEED.items() if option in wish}
        if "vram" in wish:
            need["auto"] = read.need.auto
        changed = {field: getattr(read, field) for option, field in _OF_THE_TERMS.items() if option in wish}
        changed |= {_TABLES[name]: _table(job, name, wish[name]) for name in _TABLES if wish.get(name)}
        terms = msgspec.structs.replace(job.terms, need=msgspec.structs.replace(job.terms.need, **need), **changed)
        if need:
            check_mps(terms.need)
            self.refuse_impossible(job, terms.need)
        return self._caps(job).settled(job.command, terms) if wish.get("cap") else terms

    def _caps(self, job: Job) -> Caps:
        digest = job.terms.environment
        if digest not in self._caps_by_environment:
            self._caps_by_environment[digest] = Caps(self._control.store.environment(digest), warn)
        return self._caps_by_environment[digest]

    def refuse_impossible(self, job: Job, need: Need) -> None:
        """Refuse what no device here could ever meet."""
        if self._view is not None and need.gpus and (why := never_fits(need, self._view.devices)):
            raise Impossible(f"{id_text(job)} {why}", "ask for less; stoker gpus shows what there is")

    @property
    def devices(self) -> tuple[Device, ...]:
        """What the engine saw last."""
        return self._view.devices if self._view else ()

    def label(self, device_id: str) -> str:
        """What people call a device."""
        return next((device.label for device in self.devices if device.id == device_id), device_id)

    def job(self, job_id: int) -> str:
        """What people call a job."""
        return self._control.store.shown_id(job_id)

    def _around(self, job: Job, wish: Wish) -> Surroundings:
        """A directory is meant from here, and a file from the job's directory, as when it was submitted."""
        logs = default_log(self._control)
        return Surroundings(
            cwd=os.getcwd() if wish.get("chdir") else job.terms.cwd,
            umask=job.terms.umask,
            environment=job.terms.environment,
            default_out=logs.replace("%j", "%A/%a") if job.task is not None else logs,
            resolve=_resolver(self._view),
            earlier=lambda text: resolve_after(self._control.store, text, job),
            now=self._now,
        )


def _resolver(view: View | None) -> Callable[[str], str]:
    def resolved(word: str) -> str:
        if view is None:
            raise UsageError(f"no engine has told which device {word!r} is", "stoker engine start")
        return resolve(view.snapshot, word)

    return resolved


def _table(job: Job, name: str, wish: Mapping[str, str | None]) -> tuple[tuple[str, str], ...]:
    before: tuple[tuple[str, str], ...] = getattr(job.terms, _TABLES[name])
    merged = {**dict(before), **wish}
    return tuple(sorted((key, value) for key, value in merged.items() if value is not None))
