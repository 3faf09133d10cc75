"""GPUTaskScheduler: run all instances of a task configuration."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TextIO

from stoker.compat.gpu_task.bundle import Packer, stop_if_only_read
from stoker.compat.gpu_task.config import ConfigManager
from stoker.compat.gpu_task.folder import folder_state
from stoker.compat.gpu_task.process import Ending, Failure, Instance, Note, Relay, RunRequest, carry_out
from stoker.compat.gpu_task.task import GPUTask
from stoker.core.errors import StokerError
from stoker.core.units import count_text

PROGRAM = "gpu_task_scheduler"

_DATE = "%a, %d %b %Y %H:%M:%S"

_LINES = {"finished": 46, "receives": 53, "skips": 56, "finishes": 93}
"""Where the older library wrote of each deed: scripts that read its log know the whole beginning of a line."""


class SchedulerLog:
    """Appends to the file, if there is one; what cannot be written does not keep instances from running."""

    def __init__(self, path: str | None) -> None:
        self._file: TextIO | None = None
        if path is not None:
            self._file = open(path, "a", buffering=1, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
        self._has_file = path is not None

    def note(self, slot: str, deed: str, text: str = "", at: float | None = None) -> None:
        """One line: what the worker of a slot does with which instance."""
        moment = time.time() if at is None else at
        message = f"INFO gpu{slot} {deed}" + (f" task {text}" if deed != "finished" else "")
        date = time.strftime(_DATE, time.localtime(moment))
        if self._has_file:
            self._append(f"{date} {PROGRAM}.py[line:{_LINES[deed]}] {message}\n")
            date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment)) + f",{int(moment * 1000) % 1000:03d}"
        show(f"{date} {message}")

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            file, self._file = self._file, None
            _quietly(file.close)

    def _append(self, line: str) -> None:
        if self._file is not None and not _quietly(self._file.write, line):
            say(f"{self._file.name} cannot be written any more; the instances run on")
            self.close()


def say(text: str) -> None:
    """A sentence to the person."""
    show(f"{PROGRAM}: {text}")


def show(line: str) -> None:
    """A line on standard error, wherever that leads by now; a reader who left does not end the run."""
    if sys.stderr is not None and _quietly(sys.stderr.write, line.encode(errors="backslashreplace").decode() + "\n"):
        _quietly(sys.stderr.flush)


def _quietly(do: Callable[..., object], *arguments: str) -> bool:
    """Whether it could be done."""
    try:
        do(*arguments)
    except (OSError, ValueError):
        return False
    return True


SHOWN_FAILURES = 10

NOTHING_DONE = Ending((), (), (), 0)

Given = dict[str, Any]
"""An instance as ConfigManager gives it out."""


class InstancesFailed(StokerError):
    """Instances failed, and whoever started the scheduler wants to hear of that as an exception."""

    exit_code = 1

    def __init__(self, failures: Sequence[Failure]) -> None:
        first = failures[0]
        super().__init__(
            f"{count_text(len(failures), 'instance')} failed, the first with {first.outcome} in {first.folder}",
            "the next start() of a new scheduler runs them again",
        )
        self.failures = tuple(failures)


class Placed(NamedTuple):
    """An instance, and its place in the order of the configuration."""

    place: int
    given: Given

    @property
    def folder(self) -> str:
        """Its folder, whatever the current directory becomes."""
        return str(os.path.abspath(self.given["work_dir"]))


class Choice(NamedTuple):
    """What is to become of the instances."""

    rounds: list[list[Placed]]
    """Those to run; the ones of a round have folders of their own."""
    skipped: list[Placed]


class GPUTaskScheduler:
    """Runs the test instances of a configuration, each in a process and a folder of its own."""

    def __init__(self, config: dict[str, Any], gpu_task_class: type[GPUTask]) -> None:
        self._config_manager = ConfigManager(_own_copy(config))
        self._config = self._config_manager.get_all_scheduler_config()
        self._gpu_task_class = gpu_task_class
        self._left: list[Given] = []
        """Instances of an earlier start that did not get as far as being run."""

    def start(self, raise_on_failure: bool | None = None) -> None:
        """Run all instances that are not done; returns when they are over.

        With `raise_on_failure`, here or in scheduler_config, an InstancesFailed is raised at the end if some failed.
        """
        stop_if_only_read()
        _refuse_in_unready_process()
        with Relay() as relay:
            ending = self._run(relay)
        _report(ending)
        if relay.caught:
            signal.raise_signal(relay.caught[0])  # now it does what it would have done at once
        elif ending.stopped_by:
            raise StokerError(f"stopped by {signal.Signals(ending.stopped_by).name}", "start() again runs what is left")
        wanted = self._config.get("raise_on_failure", False) if raise_on_failure is None else raise_on_failure
        if ending.failures and wanted:
            raise InstancesFailed(ending.failures)

    def _run(self, relay: Relay) -> Ending:
        choice = self._choose()
        self._left = [one.given for placed in choice.rounds for one in placed]
        rounds = self._packed(choice.rounds)
        log = SchedulerLog(self._config["scheduler_log_file_path"])
        try:
            ending = self._carry_out(rounds, Skipping(log, choice.skipped), log, relay)
        finally:
            log.close()
        left = {*ending.left}
        self._left = [one.given for placed in choice.rounds for one in placed if one.folder in left]
        return ending

    def _carry_out(
        self, rounds: Sequence[Sequence[Instance]], skipping: Skipping, log: SchedulerLog, relay: Relay
    ) -> Ending:
        slots = tuple(self._config["gpu"])

        def note(note: Note) -> None:
            skipping.before(note.instance.place, note.slot)
            log.note(note.slot, note.deed, note.instance.text, note.at)

        ending = NOTHING_DONE
        if rounds:
            ending = carry_out(RunRequest(_label(), slots, rounds), note, say, relay)
        elsewhere = {*ending.elsewhere}
        skipping.rest([one for instances in rounds for one in instances if one.folder in elsewhere], slots[0])
        for slot in slots:
            log.note(slot, "finished")
        return ending

    def _choose(self) -> Choice:
        """Which of the instances to run, going by their folders; those that share one take turns or are left out."""
        given, self._left = [*self._left, *iter(self._config_manager.get_next_config, {"config": None})], []
        choice, takers, unfinished = Choice([], []), dict[str, list[Given]](), 0
        for one in itertools.starmap(Placed, enumerate(given)):
            earlier = takers.setdefault(one.folder, [])
            state = "done" if earlier else folder_state(one.folder)
            unfinished += state == "unfinished"
            if state in ("absent", "unfinished") or (self._config["force_rerun"] and state != "running"):
                choice.rounds.extend([] for _ in range(len(earlier) + 1 - len(choice.rounds)))
                choice.rounds[len(earlier)].append(one)
            else:
                choice.skipped.append(one)
            earlier.append(one.given)
        _tell_collisions(takers, force=bool(self._config["force_rerun"]))
        if unfinished:
            say(f"{count_text(unfinished, 'instance')} failed or did not finish before; running again")
        return choice

    def _packed(self, rounds: Sequence[Sequence[Placed]]) -> tuple[tuple[Instance, ...], ...]:
        if not rounds:
            return ()
        packer = Packer(self._gpu_task_class, self._config)
        return tuple(
            tuple(packer.pack(one.given, one.place, turn) for one in placed) for turn, placed in enumerate(rounds)
        )


class Skipping:
    """Writes of the instances that are not run, each when it would have been its turn."""

    def __init__(self, log: SchedulerLog, skipped: Sequence[Placed]) -> None:
        self._log = log
        self._left = deque((one.place, one.given["test_config_string"]) for one in skipped)

    def before(self, place: int, slot: str) -> None:
        """Those that come before an instance, skipped by the worker that has it."""
        while self._left and self._left[0][0] < place:
            self._skip(self._left.popleft()[1], slot)

    def rest(self, others: Sequence[Instance], slot: str) -> None:
        """All that are left, and others that turned out to be in the hands of another run."""
        for text in [*(text for _, text in self._left), *(one.text for one in others)]:
            self._skip(text, slot)

    def _skip(self, text: str, slot: str) -> None:
        self._log.note(slot, "receives", text)
        self._log.note(slot, "skips", text)


def _own_copy(config: dict[str, Any]) -> dict[str, Any]:
    """The user's dictionary stays as it is, whatever defaults are filled in and entries are joined."""
    try:
        return copy.deepcopy(config)
    except Exception:  # whatever a value's own code raises; such a value is shared, as nobody writes to it here
        return {key: copy.copy(value) for key, value in config.items()}


def _label() -> str:
    return f"GPUTaskScheduler {os.path.basename(sys.argv[0])}".strip()


def _tell_collisions(takers: dict[str, list[Given]], *, force: bool) -> None:
    for folder, given in ((folder, given) for folder, given in takers.items() if len(given) > 1):
        names = {repr(sorted(one["config"].items(), key=lambda item: str(item[0]))) for one in given}
        if len(names) > 1:
            which = (
                "they run one after the other, and the last one's results stay" if force else "only the first is run"
            )
            say(
                f"{len(names)} different instances have the folder {folder}: {which}; "
                "raise config_string_value_maxlen, or ignore fewer keys and characters"
            )


def _report(ending: Ending) -> None:
    """What a person should know at the end."""
    if ending.elsewhere:
        say(f"{count_text(len(ending.elsewhere), 'instance')} in the hands of another run; see stoker status")
    for failure in ending.failures[:SHOWN_FAILURES]:
        said = f": {failure.last_line}" if failure.last_line else ""
        say(f"{failure.outcome}: {failure.folder}{said}")
    if failed := len(ending.failures):
        more = f" ({failed - SHOWN_FAILURES} more than shown)" if failed > SHOWN_FAILURES else ""
        say(f"{count_text(failed, 'instance')} failed{more}; the next run of this script runs what failed again")
    if ending.left:
        say(f"{count_text(len(ending.left), 'instance')} not started; the next run of this script goes on with them")


def _refuse_in_unready_process() -> None:
    """As multiprocessing does: a script without its guard would else start a scheduler in every worker it spawns."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing and getattr(multiprocessing.current_process(), "_inheriting", False):
        raise StokerError(
            "a scheduler cannot be started while a spawned process reads the script",
            'put the start under if __name__ == "__main__":',
        )
