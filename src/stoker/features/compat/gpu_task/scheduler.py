"""GPUTaskScheduler: run all instances of a task configuration."""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from stoker.core.errors import StokerError
from stoker.core.units import count_text
from stoker.features.compat.gpu_task.config import ConfigManager
from stoker.features.compat.gpu_task.instance import GPUTask, folder_state, stop_if_script_only_defines
from stoker.features.compat.gpu_task.process import (
    Instance,
    InstanceFailure,
    InstanceRequest,
    InstanceResult,
    Note,
    Packer,
    SignalRelay,
    run_instances,
)

PROGRAM = "gpu_task_scheduler"

SHOWN_FAILURES = 10

_DATE = "%a, %d %b %Y %H:%M:%S"

_LINES = {"finished": 46, "receives": 53, "skips": 56, "finishes": 93}
"""Line numbers of the older library in its log lines: scripts that parse the log expect them."""

Given = dict[str, Any]
"""An instance as ConfigManager returns it."""


class InstancesFailed(StokerError):
    """Raised by start() when instances failed and the caller asked for an exception."""

    exit_code = 1

    def __init__(self, failures: Sequence[InstanceFailure]) -> None:
        first = failures[0]
        super().__init__(
            f"{count_text(len(failures), 'instance')} failed, the first with {first.outcome} in {first.folder}",
            "the next start() of a new scheduler runs them again",
        )
        self.failures = tuple(failures)


class GPUTaskScheduler:
    """Runs the test instances of a configuration, each in a process and a folder of its own."""

    def __init__(self, config: dict[str, Any], gpu_task_class: type[GPUTask]) -> None:
        self._config_manager = ConfigManager(_own_copy(config))
        self._config = self._config_manager.get_all_scheduler_config()
        self._gpu_task_class = gpu_task_class
        self._left: list[Given] = []
        """Instances of an earlier start() that were not run."""

    def start(self, raise_on_failure: bool | None = None) -> None:
        """Run all instances that are not done, and wait for them.

        `raise_on_failure`, here or in scheduler_config, raises InstancesFailed at the end if some failed.
        """
        stop_if_script_only_defines()
        _refuse_in_unready_process()
        with SignalRelay() as relay:
            result = self._run(relay)
        _report(result)
        if relay.caught:
            signal.raise_signal(relay.caught[0])  # now it has the effect that the relay held back
        elif result.stopped_by:
            raise StokerError(
                f"stopped by {signal.Signals(result.stopped_by).name}", "call start() again to run the rest"
            )
        wanted = self._config.get("raise_on_failure", False) if raise_on_failure is None else raise_on_failure
        if result.failures and wanted:
            raise InstancesFailed(result.failures)

    def _run(self, relay: SignalRelay) -> InstanceResult:
        given = [*self._left, *iter(self._config_manager.get_next_config, {"config": None})]
        chosen, skipped = self._choose(given)
        self._left = [given[place] for place in chosen]
        instances = self._packed(given, chosen)
        slots = tuple(self._config["gpu"])
        result = InstanceResult()
        log = SchedulerLog(
            self._config["scheduler_log_file_path"], [(place, given[place]["test_config_string"]) for place in skipped]
        )
        try:
            if instances:
                label = f"GPUTaskScheduler {os.path.basename(sys.argv[0])}".strip()
                result = run_instances(
                    InstanceRequest(label, slots, instances, self._config.get("cluster", "")), log.note, say, relay
                )
            log.end([instance.text for instance in result.elsewhere], slots)
        finally:
            log.close()
        self._left = [given[instance.place] for instance in result.left]
        return result

    def _choose(self, given: Sequence[Given]) -> tuple[list[int], list[int]]:
        """Places of the instances to run, and of those to skip."""
        force, chosen, skipped = bool(self._config["force_rerun"]), list[int](), list[int]()
        by_folder, unfinished = dict[str, list[Given]](), 0
        for place, instance in enumerate(given):
            folder = os.path.abspath(instance["work_dir"])
            earlier = by_folder.setdefault(folder, [])
            state = "done" if earlier else folder_state(folder)
            unfinished += state == "unfinished"
            runs = state in ("absent", "unfinished") or (force and state != "running")
            (chosen if runs else skipped).append(place)
            earlier.append(instance)
        _warn_of_collisions(by_folder, force=force)
        if unfinished:
            say(f"{count_text(unfinished, 'instance')} failed or did not finish before; retrying")
        return chosen, skipped

    def _packed(self, given: Sequence[Given], chosen: Sequence[int]) -> list[Instance]:
        if not chosen:
            return []
        packer, turns = Packer(self._gpu_task_class, self._config), Counter[str]()
        instances = []
        for place in chosen:
            folder = given[place]["work_dir"]
            instances.append(packer.pack(given[place], place, turns[folder]))
            turns[folder] += 1
        return instances


def _own_copy(config: dict[str, Any]) -> dict[str, Any]:
    """A copy, since defaults are filled in and the user's dictionary must stay as it is."""
    try:
        return copy.deepcopy(config)
    except Exception:  # a value's own code may raise anything; such a value is shared, and never changed here
        return {key: copy.copy(value) for key, value in config.items()}


def _warn_of_collisions(by_folder: dict[str, list[Given]], *, force: bool) -> None:
    for folder, given in by_folder.items():
        different = {repr(sorted(instance["config"].items(), key=lambda item: str(item[0]))) for instance in given}
        if len(different) > 1:
            all_run = "they run one after the other, and the last one's results stay"
            say(
                f"{len(different)} different instances have the folder {folder}: "
                f"{all_run if force else 'only the first is run'}; "
                "raise config_string_value_maxlen, or ignore fewer keys and characters"
            )


def _report(result: InstanceResult) -> None:
    if result.elsewhere:
        say(f"{count_text(len(result.elsewhere), 'instance')} being run by another scheduler; see stoker status")
    for failure in result.failures[:SHOWN_FAILURES]:
        line = f": {failure.last_line}" if failure.last_line else ""
        say(f"{failure.outcome}: {failure.folder}{line}")
    if failed := len(result.failures):
        more = f" ({failed - SHOWN_FAILURES} more than shown)" if failed > SHOWN_FAILURES else ""
        say(f"{count_text(failed, 'instance')} failed{more}; run this script again to retry them")
    if result.left:
        say(f"{count_text(len(result.left), 'instance')} not started; run this script again to continue")


def _refuse_in_unready_process() -> None:
    """As multiprocessing does: a script without its guard would start a scheduler in every process it spawns."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing and getattr(multiprocessing.current_process(), "_inheriting", False):
        raise StokerError(
            "a scheduler cannot be started while a spawned process reads the script",
            'put the start under if __name__ == "__main__":',
        )


# -- the log ---------------------------------------------------------------------------------------


class SchedulerLog:
    """scheduler.log, and the same lines on standard error; a log that cannot be written stops no instance."""

    def __init__(self, path: str | None, skipped: Iterable[tuple[int, str]]) -> None:
        """`skipped` are the places and names of the instances that are not run."""
        self._file: TextIO | None = None
        if path is not None:
            self._file = open(path, "a", buffering=1, encoding="utf-8", errors="surrogateescape")  # noqa: SIM115
        self._has_file = path is not None
        self._skipped = deque(skipped)

    def note(self, note: Note) -> None:
        """Instances that are skipped appear before the next one in the order of the configuration."""
        while self._skipped and self._skipped[0][0] < note.instance.place:
            self._skip(self._skipped.popleft()[1], note.slot)
        self._write(note.slot, note.verb, note.instance.text, note.at)

    def end(self, elsewhere: Sequence[str], slots: Sequence[str]) -> None:
        """The last lines: all other instances are skipped, and each slot is finished."""
        for text in [*(text for _, text in self._skipped), *elsewhere]:
            self._skip(text, slots[0])
        for slot in slots:
            self._write(slot, "finished")

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            _quietly(file.close)

    def _skip(self, text: str, slot: str) -> None:
        self._write(slot, "receives", text)
        self._write(slot, "skips", text)

    def _write(self, slot: str, verb: str, text: str = "", at: float | None = None) -> None:
        moment = time.time() if at is None else at
        message = f"INFO gpu{slot} {verb}" + (f" task {text}" if verb != "finished" else "")
        date = time.strftime(_DATE, time.localtime(moment))
        if self._has_file:
            self._append(f"{date} {PROGRAM}.py[line:{_LINES[verb]}] {message}\n")
            date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment)) + f",{int(moment * 1000) % 1000:03d}"
        _show(f"{date} {message}")

    def _append(self, line: str) -> None:
        if self._file is not None and not _quietly(self._file.write, line):
            say(f"{self._file.name} cannot be written any more; the instances continue")
            self.close()


def say(text: str) -> None:
    """Write a sentence to standard error."""
    _show(f"{PROGRAM}: {text}")


def _show(line: str) -> None:
    """Through sys.stderr, which may be a notebook's; a closed one does not end the run."""
    if sys.stderr is not None and _quietly(sys.stderr.write, line.encode(errors="backslashreplace").decode() + "\n"):
        _quietly(sys.stderr.flush)


def _quietly(action: Callable[..., object], *arguments: str) -> bool:
    """Whether it succeeded."""
    try:
        action(*arguments)
    except (OSError, ValueError):
        return False
    return True
