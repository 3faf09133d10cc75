"""The program that runs on a node for one task of Slurm's: claim the attempt, run it, write its journal.

Standard library only: imports over a network file system are slow. A second task with the same attempt, as after a
crash of Slurm's controller, finds the claim taken and does nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import sys
import time

from stoker.features.slurm.guard import gone_line, guard, tell
from stoker.features.slurm.shared import ALIVE, JOURNALS, BundleFolder
from stoker.runner import journal, processes
from stoker.runner.worker import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

MESSAGES_INTERVAL = 10.0
"""Seconds between two looks for messages of the head, if no signal of Slurm's comes through."""
FULL_PAUSE = 1.0
"""Seconds between two tries to write a journal that the shared directory refused."""
TERM_SECONDS = 0.5
"""Seconds that this process may get Slurm's TERM later than the command."""
FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO))
"""Errors of a shared directory that may pass."""
GPUS = "\0"
"""Stands for the GPUs of the node in orders; no argument or variable can contain it."""
ARRAY = "SLURM_ARRAY_"
"""Begins the variables of an array; those of the bundle mean nothing to the job."""
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK")
_PASSED = (*_GPU_VARIABLES, processes.ALLOCATION)


class TaskWorker(Worker):
    """A worker for one attempt, ordered by files and signals instead of a socket."""

    def __init__(self, folder: BundleFolder, index: int, where: str, parent: int) -> None:
        """`where` is the node and its GPUs, for the journal; `parent` is the process with which the attempt ends."""
        super().__init__(None, folder.open_journal(index), processes.boot_id())
        self._folder = folder
        self._index = index
        self._where = where
        self._parent = parent
        self._messages_read = 0
        self._ended_by_slurm = False

    def _timeout(self) -> float | None:
        timeout = super()._timeout()
        return MESSAGES_INTERVAL if timeout is None else min(timeout, MESSAGES_INTERVAL)

    def _listen(self, timeout: float | None) -> None:
        super()._listen(timeout)
        self._read_messages()

    def _signalled(self, numbers: bytes) -> None:
        """Slurm sends TERM before it kills: for a time limit, a preemption, a scancel. It alone knows for which."""
        if signal.SIGTERM in numbers and self._current is not None and self._current.status is None:
            self._ended_by_slurm = self._current.why == "exited"
            self._terminate(self._current, self._current.grace)

    def _read_messages(self) -> None:
        """Obey the head; what cannot be read now is read at the next look."""
        if self._current is None:
            return
        if os.getppid() != self._parent:  # it was killed, and Slurm takes the task for over
            self._ended_by_slurm = True
            self._stop(self._current.key, 0.0, signal.SIGKILL)
            return
        if self._folder.is_removed:  # the head gave the attempt up, and it may run elsewhere
            self._stop(self._current.key, 0.0, signal.SIGKILL)
            return
        with contextlib.suppress(OSError):
            for message in self._folder.messages(self._index)[self._messages_read :]:
                self._messages_read += 1
                if "ping" in message:
                    self._append(f"{ALIVE} {self._current.key} {time.time():.3f}\n".encode())
                else:
                    self._stop(self._current.key, message["grace"], message["signal"] or signal.SIGTERM)

    def _write(self, record: journal.Record) -> None:
        """Write and sync. Of an attempt that Slurm ended only that it is gone: what Slurm says of it counts."""
        if isinstance(record, journal.AttemptExited) and self._was_ended_by_slurm(record):
            self._append(f"{gone_line(record.attempt)}\n".encode())
            return
        line = journal.line_of(record)
        if isinstance(record, journal.AttemptStarted):
            line = line[:-1] + f" {self._where}\n".encode()
        self._append(line, durable=not isinstance(record, journal.Born))  # only this machine needs to know the process

    def _append(self, line: bytes, *, durable: bool = True) -> None:
        """Write a line, and wait while the shared directory is full: without its result a job would run again."""
        while True:
            try:
                written = os.pwrite(self._journal, line, self._offset)
                if durable:
                    os.fsync(self._journal)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                written = 0
            if written == len(line):
                self._offset += written
                return
            time.sleep(FULL_PAUSE)

    def _was_ended_by_slurm(self, end: journal.AttemptExited) -> bool:
        """Whether Slurm's TERM came. It reaches the command and this process one after the other."""
        if not self._ended_by_slurm and end.why == "exited":
            late = select.select([self._alarm], [], [], TERM_SECONDS if end.code else 0.0)[0]
            self._ended_by_slurm = bool(late) and signal.SIGTERM in self._alarm.recv(4096)
        return self._ended_by_slurm


def run_task(folder: BundleFolder, index: int, environment: Mapping[str, str]) -> None:
    """Run an attempt, unless another process has claimed it."""
    order, submitted = folder.order(index)
    if not folder.claim(index):
        return

    def over(code: int) -> None:
        if code:
            tell(folder.at(JOURNALS, index), gone_line(order["attempt"]))

    guard(lambda: _run(folder, index, order, submitted, environment), over, signal.SIGUSR2)


def _run(
    folder: BundleFolder, index: int, order: dict[str, Any], submitted: dict[str, str], environment: Mapping[str, str]
) -> None:
    """Run an attempt that is ours, below the process that guards it."""
    parent = os.getppid()  # before its death is only one more signal
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    processes.become_subreaper()
    gpus = gpus_of(environment) if order["gpus"] else []
    worker = TaskWorker(folder, index, f"{node_name(environment)} {','.join(gpus) or '-'}", parent)
    worker.give(with_gpus(order, gpus), task_environment(submitted, environment))
    worker.serve()


def gpus_of(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that Slurm gave, by the numbers that the job sees."""
    given = next((environment[name] for name in _GPU_VARIABLES if environment.get(name)), "")
    return [gpu for gpu in given.split(",") if gpu]


def node_name(environment: Mapping[str, str]) -> str:
    return environment.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def task_environment(submitted: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The submitted environment with what Slurm gave to this task; that of another allocation means nothing here."""
    kept = {name: value for name, value in submitted.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    given = {
        name: value for name, value in environment.items() if name.startswith("SLURM") and not name.startswith(ARRAY)
    }
    return {**kept, **given, **{name: environment[name] for name in _PASSED if name in environment}}


def with_gpus(order: Mapping[str, Any], gpus: list[str]) -> dict[str, Any]:
    """The order with the names of the GPUs in their places."""
    names = ",".join(gpus)
    extra = {name: value.replace(GPUS, names) for name, value in order["extra"].items()}
    return {**order, "words": [word.replace(GPUS, names) for word in order["words"]], "extra": extra}


def main() -> None:
    folder, index = BundleFolder(sys.argv[1]), int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    try:
        run_task(folder, index, os.environ)
    except Exception as error:
        folder.fail(index, f"{node_name(os.environ)}: {type(error).__name__}: {error}")
        os._exit(1)  # not by an exception, which would run what the parent of this process registered
    os._exit(0)  # all is written; to take the interpreter down would cost as much as to start it


if __name__ == "__main__":
    main()
