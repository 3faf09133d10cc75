"""One task of the older tool `schedule`: what is said when it waits, starts, is interrupted and ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from msgspec import Struct

from stoker.changes import Happening
from stoker.compat.schedule_board import Board, clock_text
from stoker.compat.schedule_info import Entry
from stoker.complaints import Complaints
from stoker.core.attempt import INHERIT, device_words
from stoker.core.device import Device
from stoker.core.job import Assigned, Ended, Exited, Job, Lost
from stoker.foreground import Foreground
from stoker.streams import write_past_buffer

STANDARD_OUTPUT = 1
DEAF_SECONDS = 3.0
"""Seconds after a stop within which further presses of Ctrl-C are not heard."""
UNTIL_TOLD = 10 * 365 * 86_400.0
"""Seconds between TERM and KILL where only the person decides on KILL."""
GRACE = 30.0
"""Seconds between TERM and KILL where we ourselves were asked to end."""


class Wish(Struct, frozen=True):
    """What was asked for on the command line."""

    words: tuple[str, ...]
    gpus: int = 1
    forced: tuple[int, ...] = ()
    forced_text: str = ""
    """The forced GPUs as the waiting line names them."""
    preferred: tuple[int, ...] = ()
    later: bool = False
    """Whether it was put in the way of the tool's later versions."""
    out: str = INHERIT
    err: str = INHERIT
    verbose: bool = False


class Showing:
    """Shows the task on standard output and in the info file, and obeys Ctrl-C as the older tool did."""

    interval: float | None = None

    def __init__(self, wish: Wish, board: Board, ids: Sequence[str], user: str, say: Callable[[str], None]) -> None:
        self.say = say
        self._wish = wish
        self._board = board
        self._ids = ids
        self._user = user
        self._complaints = Complaints(say)
        self._assigned: Job | None = None
        """The job as it was when it got its GPUs."""
        self._devices: tuple[Device, ...] = ()
        self._process: int | None = None
        self._started: float | None = None
        self._waiting_told = False
        self._presses = 0
        self._deaf_until = 0.0
        self._said_of_file = ""
        self.run: Foreground | None = None

    # -- what happens ----------------------------------------------------------------------------

    def happened(self, happening: Happening) -> None:
        """Called for an assignment before its keeper hears of it, so files are empty before the task writes to them."""
        event = happening.event
        if isinstance(event, Assigned):
            self._assigned, self._devices = happening.job, happening.devices
            for path in {self._wish.out, self._wish.err} - {INHERIT}:
                empty(path)
            self._note(event.at)
        elif isinstance(event, Exited | Lost):
            self._started = happening.started
            self._announce()
        if isinstance(happening.job.state, Ended):
            self._report(happening.job.state)

    def refresh(self, run: Foreground) -> None:
        """A turn is over: see what else there is to say and to write."""
        if self._assigned is None:
            self._tell_waiting(run)
        else:
            self._announce()
            self._board.heal()
        self._complaints.check(run)
        self.complain_of_file()

    def close(self) -> None:
        """Nothing to undo."""

    def complain_of_file(self) -> None:
        """Say once what is wrong with the info file."""
        if self._board.trouble not in ("", self._said_of_file):
            self.say(f"warning: {self._board.trouble}")
            self._said_of_file = self._board.trouble

    # -- before it starts ------------------------------------------------------------------------

    def _tell_waiting(self, run: Foreground) -> None:
        job = run.engine.next_waiting
        if self._waiting_told or not self._wish.forced or job is None or run.engine.reason(job) is None:
            return
        self._waiting_told = True
        _print(f"Scheduler (PID: {os.getpid()}) is waiting for {self._wish.forced_text}.\n")

    # -- while it runs ---------------------------------------------------------------------------

    @property
    def _gpu(self) -> str:
        return ",".join(dict(device.variables)["GPU"] for device in self._devices)

    @property
    def _words(self) -> tuple[str, ...]:
        return device_words(self._wish.words, self._devices)

    def _announce(self) -> None:
        """Say where the task runs, once its number is known."""
        if self._process is not None or self.run is None or self._assigned is None:
            return
        self._process = self.run.process_of(self._assigned)
        if self._process is None:
            return
        _print(
            f"GPU: {self._gpu}\nSCH PID: {os.getpid()}\nTASK PID: {self._process}\n"
            f"SCH PGID: {os.getpgid(0)}\nTASK PGID: {self._process}\n"
        )
        self._note(time.time())

    def _note(self, at: float) -> None:
        entry = Entry(False, self._gpu, self._words, self._process, clock_text(at), self._user)
        self._board.own = {self._ids.index(device.id): entry for device in self._devices}
        self._board.sync()

    # -- signals ---------------------------------------------------------------------------------

    def interrupted(self, run: Foreground, number: signal.Signals, _stage: int) -> None:
        """Ctrl-C: tell, then TERM, then KILL. SIGTERM: TERM, and KILL after the grace or at the second one."""
        if not run.engine.held:
            run.stopped_by = number
            run.engine.drain()
        elif number == signal.SIGTERM:
            grace = GRACE if run.stopped_by is None else 0.0
            run.stopped_by = number
            run.engine.stop(grace, "stopped by SIGTERM")
        elif time.monotonic() >= self._deaf_until:
            self._presses += 1
            self._pressed(run)

    def _pressed(self, run: Foreground) -> None:
        task = f"the task (PGID: {self._process})" if self._process else "the task"
        if self._presses == 1:
            _print(f"\nNext Ctrl-C terminate {task}.\n")
            return
        run.stopped_by = signal.SIGINT
        self._deaf_until = time.monotonic() + DEAF_SECONDS
        if self._presses == 2:
            run.engine.stop(UNTIL_TOLD, "stopped by Ctrl-C")
            _print(f"\n{task[0].upper()}{task[1:]} was terminated.\n")
        elif self._presses == 3:
            run.engine.stop(0.0, "killed by Ctrl-C")
            _print(f"\n{task[0].upper()}{task[1:]} was killed.\n")
        else:
            raise KeyboardInterrupt  # it cannot be killed, and whoever presses again wants to leave

    # -- when it is over -------------------------------------------------------------------------

    def _report(self, state: Ended) -> None:
        if state.note and state.result != "cancelled" and (self._process or self._wish.err != INHERIT):
            self.say(f"{self._wish.words[0]}: {state.note}")
        if self._wish.verbose and self._started is not None:
            _print(self._summary(self._started, state.at))

    def _summary(self, start: float, end: float) -> str:
        minutes, seconds = divmod(int(end) - int(start), 60)
        hours, minutes = divmod(minutes, 60)
        files = "" if self._wish.later else f"stdout: {_file(self._wish.out, 1)}\nstderr: {_file(self._wish.err, 2)}\n"
        return (
            f"\ntask: {list(self._words)}\n{files}start: {clock_text(start)}\nend: {clock_text(end)}\n"
            f"total time: {hours}:{minutes}:{seconds}\n\n"
        )


def empty(path: str) -> None:
    """Make a file that a task is going to write to, or cut what it holds; a pipe or a device is only opened."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, 0o666))


def _file(path: str, number: int) -> str:
    return ("<stdout>", "<stderr>")[number - 1] if path == INHERIT else path


def _print(text: str) -> None:
    write_past_buffer(STANDARD_OUTPUT, text)
