"""What `stoker submit` does once its words are understood: check, put into the queue, wake the engine, say so."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from stoker.config import load_config
from stoker.core.device import Snapshot
from stoker.core.device_name import resolve
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.core.fit import never_fits
from stoker.core.submission import NewJob
from stoker.core.terms import Terms
from stoker.joblist import Listed
from stoker.options import JobOptions, Surroundings, current_umask, merged, tasks_of, terms_of
from stoker.places import Places, find_places
from stoker.presence import QUEUE, engine_lives, ring
from stoker.published import read_view
from stoker.queue import open_store
from stoker.store import Store
from stoker.words import printable, shortened

_PLAIN = JobOptions()


class Request(Struct, frozen=True):
    """The options of `stoker submit`, as typed."""

    options: JobOptions
    label: str
    sim: str | None = None
    hold: bool = False
    parsable: bool = False
    dry_run: bool = False
    as_json: bool = False


class Part(Struct, frozen=True):
    """Jobs that go into the queue together: all tasks of an array, or any number of others."""

    jobs: list[NewJob]
    array: str = ""
    """The indices as typed, where it is an array."""


class Entered(Struct, frozen=True):
    """A part that is in the queue."""

    part: Part
    ids: range


class NotServed(StokerError):
    """The jobs are in the queue, but there is no engine to run them."""

    exit_code = 3


def hand_in(request: Request, items: Sequence[Listed]) -> int:
    """Submit the jobs and return the exit code."""
    places = find_places(os.environ, socket.gethostname(), simulated=bool(request.sim))
    desk = Desk(request, places)
    desk.check(items)
    with contextlib.closing(open_store(places)) as store:
        entered = desk.enter(store, items)
    _show(request, entered)
    desk.see_to_engine(entered)
    return 0


class Desk:
    """Makes jobs of what was typed, and puts them into the queue."""

    def __init__(self, request: Request, places: Places) -> None:
        self.request = request
        self.now = time.time()
        self._places = places
        self._cwd = _working_directory()
        config = load_config(os.environ, Path(self._cwd))
        for warning in config.warnings:
            print(f"stoker: {printable(warning)}", file=sys.stderr)
        self._options = merged(JobOptions(**config.defaults), request.options)
        self._failure: StokerError | None = None
        self._snapshot: Snapshot | None = None
        self._terms: dict[str, Terms] = {}
        self._around = Surroundings(
            cwd=self._cwd,
            umask=current_umask(),
            environment="",
            default_out=_pattern(places.logs / "%j.log"),
            array_out=_pattern(places.logs / "%A" / "%a.log"),
            resolve=str,
            now=self.now,
            fill=True,
        )

    def check(self, items: Sequence[Listed]) -> None:
        """Refuse what cannot be understood or can never run, before anything is written."""
        wishes = {str(item.options): item for item in reversed(items)}
        needy = [item for item in wishes.values() if self._examined(item, self._around).need.gpus]
        if not needy:
            return
        snapshot = self._machine()
        around = msgspec.structs.replace(self._around, resolve=lambda word: resolve(snapshot, word))
        for item in needy:
            need = self._examined(item, around).need
            if impossible := never_fits(need, snapshot.devices):
                labels = ", ".join(dict.fromkeys(device.label for device in snapshot.devices))
                raise Impossible(_located(item, impossible), f"ask for less; there are {labels}")
        self._around = around

    def _examined(self, item: Listed, around: Surroundings) -> Terms:
        try:
            return terms_of(self._wish(item), around)
        except StokerError as error:
            raise type(error)(_located(item, error.message), error.hint) from None

    def _wish(self, item: Listed) -> JobOptions:
        return self._options if item.options is _PLAIN else merged(self._options, item.options)

    def _machine(self) -> Snapshot:
        """The devices of this machine as an engine saw them; one is started where none lives."""
        self._start_engine()
        view = read_view(self._places.bulletin(QUEUE))
        if view is None:
            raise self._failure or StokerError("the engine does not tell what it has", f"see {self._places.log}")
        if not view.devices:
            raise Impossible(view.note or "no GPU found", "submit jobs that need none (-G 0), or try --sim 4x24G")
        return view.snapshot

    def _start_engine(self) -> None:
        """Start it unless it runs; where that fails, it is told once the jobs are safe."""
        if engine_lives(self._places, QUEUE):
            return
        from stoker.cli.background import start_engine

        try:
            start_engine(self._places, self.request.sim)
        except StokerError as error:
            self._failure = error

    def enter(self, store: Store, items: Sequence[Listed]) -> list[Entered]:
        """Put the jobs into the queue, all or none."""
        self._places.logs.mkdir(mode=0o700, exist_ok=True)
        with store.writing():
            digest = store.add_environment(dict(os.environ))
            self._around = msgspec.structs.replace(self._around, environment=digest)
            batch = store.add_batch(self.request.label, self.now)
            return [self._enter_part(store, batch, part) for part in self._parts(items)]

    def _enter_part(self, store: Store, batch: int, part: Part) -> Entered:
        held = "held at submit" if self.request.hold else ""
        ids = store.add_jobs(batch, QUEUE, part.jobs, self.now, array=bool(part.array), held=held)
        if part.array:
            (self._places.logs / str(ids[0])).mkdir(mode=0o700, exist_ok=True)
        return Entered(part, ids)

    def _parts(self, items: Sequence[Listed]) -> list[Part]:
        parts: list[Part] = []
        for item in items:
            wish = self._wish(item)
            if wish.array is not None:
                parts.append(Part(self._tasks(item, wish), wish.array))
            elif parts and not parts[-1].array:
                parts[-1].jobs.extend(self._tasks(item, wish))
            else:
                parts.append(Part(self._tasks(item, wish)))
        return parts

    def _tasks(self, item: Listed, wish: JobOptions) -> list[NewJob]:
        key = "" if item.options is _PLAIN else str(item.options)
        terms = self._terms.get(key)
        if terms is None:
            terms = self._terms[key] = terms_of(wish, self._around)
        return [NewJob(item.command, terms, wish.name or "", task) for task in tasks_of(wish)]

    def see_to_engine(self, entered: Sequence[Entered]) -> None:
        """Wake the engine, or start it."""
        if ring(self._places, QUEUE):
            return
        if self._failure is None:
            self._start_engine()
        if self._failure is not None:
            ids = ", ".join(_ids_text(one) for one in entered)
            raise NotServed(
                f"{ids} is in the queue and safe, but no engine runs: {self._failure.message}",
                self._failure.hint,
            )


def _show(request: Request, entered: Sequence[Entered]) -> None:
    for one in entered:
        if request.parsable:
            ids = one.ids[:1] if one.part.array else one.ids
            print("\n".join(map(str, ids)))
        else:
            print(f"submitted {_ids_text(one)}{_what(one)}")


def _ids_text(one: Entered) -> str:
    if one.part.array:
        return f"{one.ids[0]} (tasks {one.part.array})"
    return str(one.ids[0]) if len(one.ids) == 1 else f"{one.ids[0]}-{one.ids[-1]} ({len(one.ids)} jobs)"


def _what(one: Entered) -> str:
    first = one.part.jobs[0]
    if len(one.ids) > 1 and not one.part.array:
        return ""
    return f": {shortened(printable(first.command.text), 200)}"


def _pattern(path: Path) -> str:
    """A path as a pattern, of which only the last two parts may have placeholders."""
    return str(path)


def _located(item: Listed, message: str) -> str:
    return message if item.options is _PLAIN else f"{item.where}: {message}"


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise UsageError(f"the current directory cannot be used: {error.strerror}", "cd to another one") from error
