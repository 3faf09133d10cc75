"""Follows the instances of one GPUTaskScheduler: their folders, the scheduler's log, and what becomes of each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from stoker.changes import Happening
from stoker.compat.gpu_task.errand import Ending, Failure, Instance, Message, Note
from stoker.compat.gpu_task.folder import begin, finish, mark
from stoker.complaints import Complaints
from stoker.core.job import Assigned, Ended, Exited, Lost, Started
from stoker.foreground import Foreground
from stoker.words import last_line, outcome, printable


class Watcher:
    """The view of a run of instances."""

    interval: float | None = None

    def __init__(self, tell: Callable[[Message], None]) -> None:
        self._tell = tell
        self._complaints = Complaints(self.say)
        self._instances: dict[tuple[str, ...], Instance] = {}
        """Those of the round, by their commands."""
        self._unheard: dict[str, None] = {}
        """Folders of instances of which nothing has happened yet."""
        self._received: set[int] = set()
        """Jobs whose start is in the log."""
        self._failures: list[Failure] = []
        self._elsewhere: list[str] = []

    def expect(self, instances: Sequence[Instance]) -> None:
        """Another round begins; what was not heard of in the last one was in other hands."""
        self._elsewhere += self._unheard
        self._instances = {instance.words: instance for instance in instances}
        self._unheard = dict.fromkeys(instance.folder for instance in instances)

    def happened(self, happening: Happening) -> None:
        """Called for an assignment before its keeper hears of it, so that the folder is there for its log."""
        job, event = happening.job, happening.event
        instance = self._instances.get(job.command.words)
        if instance is None:
            return
        match event:
            case Assigned():
                _prepare(instance, event.log)
            case Started():
                self._receive(happening, instance, event.at)
            case Lost():
                self._received.discard(job.id)
        if isinstance(job.state, Ended):
            self._end(happening, instance, job.state)

    def refresh(self, run: Foreground) -> None:
        """Say once what keeps everything from starting."""
        self._complaints.check(run)

    def say(self, text: str) -> None:
        """A sentence to the person."""
        self._tell(printable(text))

    def close(self) -> None:
        """Nothing to undo."""

    def ending(self, run: Foreground, not_begun: Sequence[str]) -> Ending:
        """What became of all; the instances of rounds that were not begun are left too."""
        unheard = (*self._unheard, *not_begun)
        stopped = run.engine.draining
        return Ending(
            failures=tuple(self._failures),
            left=unheard if stopped else (),
            elsewhere=(*self._elsewhere, *(() if stopped else unheard)),
            stopped_by=run.stopped_by or 0,
        )

    def _receive(self, happening: Happening, instance: Instance, at: float) -> None:
        self._received.add(happening.job.id)
        self._unheard.pop(instance.folder, None)
        self._tell(Note(at, _slot(happening), "receives", instance))

    def _end(self, happening: Happening, instance: Instance, state: Ended) -> None:
        self._unheard.pop(instance.folder, None)
        if isinstance(happening.event, Exited | Lost):
            if happening.job.id not in self._received:  # started by an engine that died
                self._receive(happening, instance, state.at if happening.started is None else happening.started)
            self._tell(Note(state.at, _slot(happening), "finishes", instance))
            _settle(instance, done=state.result == "done")
        if state.result != "done":
            self._failures.append(_failure(instance, state, happening.log))


def _slot(happening: Happening) -> str:
    return happening.devices[0].label if happening.devices else ""


def _prepare(instance: Instance, log: str) -> None:
    """The folder with its marker, and an empty log; where that fails, the keeper finds out and says why."""
    with contextlib.suppress(OSError):
        begin(instance.folder)
    with contextlib.suppress(OSError):
        os.truncate(log, 0)


def _settle(instance: Instance, *, done: bool) -> None:
    """Its own process has done so already, unless it ended at the very last moment or in a way of its own."""
    with contextlib.suppress(OSError):  # somebody removed the folder, and then it will be run again anyway
        (finish if done else mark)(instance.folder)


def _failure(instance: Instance, state: Ended, log: str) -> Failure:
    path = log or instance.log
    said = state.note or last_line(path)
    return Failure(instance.text, instance.folder, outcome(state), path, said)
