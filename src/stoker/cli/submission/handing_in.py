"""What `stoker submit` does once its words are understood: check, put into the queue, wake the engine, say so."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from stoker.cli.submission.desk import Desk, Entered
from stoker.cli.submission.report import show_ids, show_lines, show_result, submit_result, unprinted_text
from stoker.config import load_config
from stoker.core.errors import Impossible, StokerError
from stoker.joblist import Listed
from stoker.machine import Machine, read_machine
from stoker.mail import paused_key
from stoker.options import JobOptions, merged, working_directory
from stoker.places import Places, find_places
from stoker.presence import QUEUE, engine_lives, process_of, ring, signal_engine, version_notice
from stoker.queue import open_store
from stoker.streams import flush_output, silence_output
from stoker.words import printable

NOT_SERVED = 3
HELD = "held at submit"
LEAVING_SECONDS = 3.0
"""How long an engine that nobody needs is waited for."""


class Request(Struct, frozen=True):
    """The options of `stoker submit`, as typed."""

    options: JobOptions
    label: str
    sim: str | None = None
    hold: bool = False
    parsable: bool = False
    dry_run: bool = False
    as_json: bool = False


def hand_in(request: Request, items: Sequence[Listed]) -> int:
    """Submit the jobs and return the exit code."""
    places = _places(request)
    desk = _desk(request, places)
    desk.read(items)
    engine = Background(places, request.sim)
    with contextlib.closing(open_store(places)) as store:
        if request.dry_run:
            from stoker.cli.submission.plan import show_plan

            parts = desk.settle(items, store, read_machine(places.bulletin(QUEUE)))
            _say_all(desk.notes)
            return show_plan(parts, store, places, as_json=request.as_json)
        with engine.not_for_nothing():
            parts = desk.settle(items, store, engine.machine() if desk.needs_devices else None)
        entered = desk.enter(store, parts, request.label, held=HELD if request.hold else "")
        paused = store.settings().get(paused_key(QUEUE))
    engine.wake()
    _say_all([*desk.notes, *filter(None, [version_notice(places)])])
    code = _report(request, entered, engine.failure)
    if paused:
        _say(
            f"the queue is {paused['note']}; nothing starts before: stoker resume --queue{' --sim' * bool(request.sim)}"
        )
    return code


def _places(request: Request) -> Places:
    if request.sim:
        _check_simulation(request.sim)
    places = find_places(os.environ, os.uname().nodename, simulated=bool(request.sim))
    if places.note:
        _say(places.note)
    return places


def _desk(request: Request, places: Places) -> Desk:
    """With what is configured here, before which goes what was typed."""
    config = load_config(os.environ, Path(working_directory()))
    for warning in config.warnings:
        _say(warning)
    options = merged(JobOptions(**config.defaults), request.options)
    return Desk(places, config, options, time.time(), os.environ)


class Background:
    """The engine of the queue as a door needs it; that it cannot be started is told when the jobs are safe."""

    def __init__(self, places: Places, sim: str | None) -> None:
        self.failure: StokerError | None = None
        self._places = places
        self._sim = sim
        self._started = False

    @contextlib.contextmanager
    def not_for_nothing(self) -> Iterator[None]:
        """Let an engine that was started only to hear that there is no GPU leave again.

        It would stay without GPUs, whatever the next call says about devices. What others have submitted meanwhile
        keeps it.
        """
        try:
            yield
        except Impossible:
            machine = read_machine(self._places.bulletin(QUEUE))
            if self._started and not (machine and machine.devices):
                self._see_off()
            raise

    def machine(self) -> Machine | None:
        """What the machine has, as a living engine says; else what the last one said, if there was one."""
        self._ensure()
        return read_machine(self._places.bulletin(QUEUE))

    def wake(self) -> None:
        """There is something new in the queue."""
        if not ring(self._places, QUEUE) and self.failure is None:
            self._ensure()

    def _ensure(self) -> None:
        if engine_lives(self._places, QUEUE):
            return
        from stoker.cli.room.background import start_engine

        try:
            self._started = start_engine(self._places, self._sim)
        except StokerError as error:
            self.failure = error
        except OSError as error:
            hint = f"see whether {self._places.state} can be written to, then stoker engine start"
            self.failure = StokerError(f"{error.strerror} ({error.filename})", hint)

    def _see_off(self) -> None:
        pid = signal_engine(self._places, QUEUE, signal.SIGUSR2)
        deadline = time.monotonic() + LEAVING_SECONDS
        while pid is not None and process_of(self._places, QUEUE) == pid and time.monotonic() < deadline:
            time.sleep(0.01)


def _report(request: Request, entered: Sequence[Entered], failure: StokerError | None) -> int:
    """Tell what became of it: jobs that are in the queue are told of even where nobody runs them yet."""
    try:
        _show(request, entered, failure)
        flush_output()
    except OSError as error:
        silence_output()
        _say(f"{unprinted_text(entered)} could not be printed: {error.strerror}")
        _say("do not submit again; stoker status shows what is there")
        return StokerError.exit_code
    if failure is None:
        return 0
    _say(f"this is safe in the queue, but no engine could be started: {failure.message}")
    _say(failure.hint)
    return NOT_SERVED


def _show(request: Request, entered: Sequence[Entered], failure: StokerError | None) -> None:
    if request.as_json:
        show_result(submit_result(entered, failure.message if failure else None, held=request.hold))
    elif request.parsable:
        show_ids(entered)
    else:
        show_lines(entered)


def _say_all(notes: Sequence[str]) -> None:
    for note in notes:
        _say(note)


def _say(text: str) -> None:
    print(f"stoker: {printable(text)}", file=sys.stderr)


def _check_simulation(spec: str) -> None:
    """Refuse what no engine could simulate."""
    from stoker.devices.simulator import parse_sim

    parse_sim(spec)
