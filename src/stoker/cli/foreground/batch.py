"""The jobs of one run: how each of them is made from what was typed."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.capping import Caps
from stoker.checkout import Checkouts
from stoker.clientele import Clientele
from stoker.core.attempt import INHERIT
from stoker.core.courtesy import never_modest
from stoker.core.dependency import Dependency
from stoker.core.device_name import resolve
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.core.plan import Policy, never_fits
from stoker.core.settings import EngineSettings, policy_of
from stoker.core.submission import NewJob, digest_of
from stoker.core.terms import Terms
from stoker.core.waiting import CPU_JOBS
from stoker.devices.kind import Devices
from stoker.foreground import Foreground, Source, View
from stoker.joblist import Lines, Listed, Unusable
from stoker.options import (
    JobOptions,
    Surroundings,
    check_directory,
    current_umask,
    current_user,
    merged,
    terms_of,
    working_directory,
)
from stoker.places import Places
from stoker.queue import open_store
from stoker.runlogs import RUNS, new_log_directory
from stoker.sources import ListSource, StreamSource
from stoker.streams import to_stderr
from stoker.words import printable

Items = Sequence[Listed | Unusable] | Lines
ONE_COMMAND = "--"
_PLAIN = JobOptions()


class Request(Struct, frozen=True):
    """The options of `stoker run`, as typed."""

    options: JobOptions
    settings: EngineSettings = EngineSettings()
    """What is configured for all engines of this user."""
    devices: str | None = None
    sim: str | None = None
    jobs: int | None = None
    max_use: int | None = None
    min_free: int | None = None
    halt: str | None = None
    resume: bool = False
    results: str | None = None
    joblog: str | None = None
    dry_run: bool = False
    as_json: bool = False
    no_bar: bool = False
    demo: bool = False
    typed: tuple[str, ...] = ()
    """The words after `stoker run`."""

    @property
    def simulation(self) -> str:
        """The simulated GPUs asked for, empty for real ones."""
        return self.sim or ("4x24G" if self.demo else "")


class Batch:
    """The jobs of one run: how each of them is made from what was typed."""

    def __init__(self, request: Request, label: str, devices: Devices, places: Places) -> None:
        self.request = request
        self.label = label
        self.one_command = label == ONE_COMMAND
        self.user = current_user()
        self.logs = ""
        self._plain_terms: Terms | None = None
        self._caps = Caps(os.environ, _say)
        self._clientele = Clientele(os.environ, _say)
        self._snapshot = devices.look(time.time())
        self._around = Surroundings(
            cwd=working_directory(),
            umask=current_umask(),
            environment="",
            default_out=INHERIT if self.one_command else os.devnull,
            resolve=lambda word: resolve(self._snapshot, word),
            earlier=cache(partial(_earlier, places)),
            commit=Checkouts(os.environ).commit,
            now=time.time(),
        )

    def policy(self) -> Policy:
        """How the plan should weigh things."""
        request = self.request
        configured = policy_of(request.settings, os.cpu_count() or 1)
        # Somebody who says how many shall run at once means jobs without GPU too.
        limits = dict(configured.limits) if request.jobs is None else {**configured.limits, CPU_JOBS.name: request.jobs}
        return msgspec.structs.replace(
            configured,
            max_running=request.jobs,
            max_use=configured.max_use if request.max_use is None else request.max_use,
            min_free=configured.min_free if request.min_free is None else request.min_free,
            limits=limits,
        )

    def check(self, items: Items) -> None:
        """Refuse what cannot be understood or can never run, before anything has started."""
        terms = terms_of(self.request.options, self._around)
        if self.request.options.chdir:
            check_directory(terms.cwd)
        wishes = {str(item.options): item for item in reversed(self._listed(items))}
        if not wishes:
            self._check_wish(self.request.options)
        for item in wishes.values():
            try:
                self._check_wish(merged(self.request.options, item.options))
            except StokerError as error:
                where = "" if item.options == _PLAIN else f"{item.where}: "
                raise type(error)(where + error.message, error.hint) from None

    def _check_wish(self, options: JobOptions) -> None:
        terms = self._terms(options)
        devices, policy = self._snapshot.devices, self.policy()
        impossible = never_fits(terms.need, devices) or never_modest(terms.need.gpus, devices, policy)
        if impossible:
            labels = ", ".join(dict.fromkeys(device.label for device in self._snapshot.devices))
            raise Impossible(impossible, f"ask for less; there are {labels}" if labels else "give it devices")

    def make_log_directory(self, places: Places) -> str:
        """The directory for the logs, made now, so that a place that cannot be written is known at once."""
        if self.one_command or self.request.options.out:
            return ""
        try:
            chosen = self._log_directory(places)
        except OSError as error:
            raise UsageError(
                f"cannot make the log directory: {error.strerror}" + (f" ({error.filename})" if error.filename else ""),
                "choose another with --results DIR",
            ) from error
        if not os.access(chosen, os.W_OK | os.X_OK):
            raise UsageError(f"cannot write to the log directory {chosen}", "choose another with --results DIR")
        self.logs = str(chosen)
        return self.logs

    def _log_directory(self, places: Places) -> Path:
        """A directory that was named may be there already; else it is a new one, in a place that is nobody else's."""
        if self.request.results:
            chosen = Path(self._around.cwd, self.request.results)
            chosen.mkdir(parents=True, exist_ok=True)
            return chosen
        return new_log_directory(places.logs if self.request.demo else Path(self._around.cwd, RUNS))

    def settle(self, environment: str) -> None:
        """From now on jobs can be made for good: their environment is kept, their logs have a place."""
        out = self.logs.replace("%", "%%") + "/%j.log" if self.logs else self._around.default_out
        self._around = msgspec.structs.replace(self._around, environment=environment, default_out=out)
        self._plain_terms = None

    def make(self, item: Listed) -> NewJob:
        """A job as it is submitted."""
        if item.options == _PLAIN:  # by far the most, and they share everything
            options = self.request.options
            terms = self._plain_terms = self._plain_terms or self._terms(options)
        else:
            options = merged(self.request.options, item.options)
            terms = self._terms(options)
        terms = self._caps.settled(item.command, terms)
        return NewJob(item.command, terms, options.name or "", item.task, item.array)

    def _terms(self, options: JobOptions) -> Terms:
        return self._clientele.settled(terms_of(options, self._around), self._snapshot.devices)

    def jobs_of(self, items: Items) -> list[NewJob]:
        """All jobs at once, for a dry run; a stream is read to its end."""
        self.settle(digest_of(os.environ))
        if isinstance(items, Lines):
            items = [*items.feed(sys.stdin.buffer.read()), *items.end()]
        return [self.make(item) for item in self._listed(items)]

    def source(self, items: Items, foreground: Foreground, view: View) -> Source:
        """The jobs as the run takes them."""

        def refuse(item: Unusable) -> None:
            foreground.tally.unusable += 1
            view.say(f"{item.where} is left out: {item.sentence}")

        self._caps.say = view.say
        if isinstance(items, Lines):
            return StreamSource(sys.stdin.fileno(), items, self.make, refuse)
        foreground.tally.expected = len(items)
        return ListSource(items, self.make, refuse)

    def shares_output(self, items: Items) -> bool:
        """Whether a job writes to the terminal we have."""
        wishes = [self.request.options, *(item.options for item in self._listed(items))]
        named = any(INHERIT in (options.out, options.err) for options in wishes)
        return named or (self.one_command and not self.request.options.out)

    @staticmethod
    def _listed(items: Items) -> list[Listed]:
        return [] if isinstance(items, Lines) else [item for item in items if isinstance(item, Listed)]


def _say(text: str) -> None:
    to_stderr(f"stoker: {printable(text)}\n")


def _earlier(places: Places, text: str) -> tuple[Dependency, ...]:
    from stoker.after import resolve_after

    with contextlib.closing(open_store(places)) as store:
        return resolve_after(store, text)
