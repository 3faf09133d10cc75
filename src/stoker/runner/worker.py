"""A worker: runs attempts one after the other, survives the engine, and keeps how each of them ended.

Standard library only: workers are forked from a process that must stay small. A worker holds an flock for its whole
life (which proves that it lives), a journal (the truth about its attempts) and a listening socket (through which the
engine, or the next engine, sends orders). A byte sent to the engine means that the journal has grown. No dataclasses
here: their import alone takes a quarter of the forkserver's start.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import time
from collections import deque
from typing import Any

from stoker.runner import journal, processes
from stoker.runner.spawn import Image, Refused, StartDeferred, is_machine_wide, launch, spawn_silently

LINGER_SECONDS = 1.0
"""Seconds for which processes that a finished command left may go on."""
LINGER_GRACE_SECONDS = 5.0
KILL_INTERVAL_SECONDS = 0.05
KILL_INTERVAL_LIMIT_SECONDS = 2.0
MPS_TERMINATE_SECONDS = 8.0
"""Seconds for the program that an order names to end MPS clients before they are killed."""
LOOKS = 10
"""Looks at the output within the time that a limit lets pass without any."""
SHORTEST_PAUSE_SECONDS = 0.001
NEVER = float("inf")
FIRST_OUTPUT, SILENT = "first_output", "silent"
"""Limits of the time without output, by their names in orders."""
REPORT = "STOKER_REPORT"
LONGEST_WAIT_SECONDS = 3600.0
"""Seconds; longer waits are cut into parts, since poll cannot count beyond 24 days."""
QUIET_START_SECONDS = 0.01
"""Seconds before the engine gets a hint of a start: most very short attempts end earlier, and one hint is enough."""
PIECE_BYTES = 1 << 16
"""Bytes of orders read at once; a buffer beyond 128 KiB would be mapped, cleared and unmapped every time."""
OUTDATED = b"T"
"""The hint that a module of the worker's template has changed."""
HINT_INTERVAL_SECONDS = 0.02
"""Seconds within which several ends get one hint while more attempts are queued."""


class TimeLimit:
    """Ends an attempt at a moment."""

    why, note = journal.TIMED_OUT, ""

    def __init__(self, at: float) -> None:
        self.at = at

    def is_reached(self, _attempt: RunningAttempt, now: float) -> bool:
        return now >= self.at


class OutputLimit:
    """Ends an attempt that writes nothing for some seconds; it looks several times within them.

    Only time counts in which the machine is awake, no process of the attempt is stopped, and all its output is seen.
    """

    why = journal.HUNG

    def __init__(self, attempt: RunningAttempt, seconds: float, *, only_first: bool) -> None:
        self._only_first = only_first
        self._sizes = attempt.sizes_before
        self._quiet = 0.0
        self._looked = _boot_clock()
        self.set_seconds(seconds)

    def set_seconds(self, seconds: float) -> None:
        self._seconds = seconds
        self._set_next_look(self._looked)

    @property
    def note(self) -> str:
        span = f"{self._seconds / 60:g} min" if self._seconds >= 60 else f"{self._seconds:g} s"
        return f"no output {'in the first' if self._only_first else 'for'} {span}"

    def is_reached(self, attempt: RunningAttempt, now: float) -> bool:
        passed, self._looked = now - self._looked, now
        sizes = attempt.output_sizes()
        if sizes is not None and sizes != self._sizes:
            self._sizes, self._quiet = sizes, -NEVER if self._only_first else 0.0
        elif sizes is not None and not any(processes.stopped(process.pid) for process in _descendants()):
            self._quiet += min(passed, 2 * self._seconds / LOOKS)
        self._set_next_look(now)
        return self._quiet >= self._seconds

    def _set_next_look(self, now: float) -> None:
        left = self._seconds - self._quiet
        self.at = NEVER if left == NEVER else now + min(self._seconds / LOOKS, max(left, SHORTEST_PAUSE_SECONDS))


class RunningAttempt:
    """The attempt that runs, and what is known of its end."""

    status: int | None = None
    peak = 0
    why = journal.EXITED
    note = ""
    linger_at: float | None = None
    kill_at: float | None = None
    kill_interval = KILL_INTERVAL_SECONDS
    hinted = False
    terminator: int | None = None
    """The process of its `mps_terminate` program, while that runs."""
    terminator_until = 0.0
    """When the worker kills that process."""
    time_limit_at: float | None = None
    signal_at: float | None = None
    signalled_before: float | None = None
    """The time limit of which the early signal was sent."""
    leave_until: float | None = None
    """Until when it may save its state and leave; if it runs on after that, it was not preempted."""

    def __init__(self, order: dict[str, Any], pid: int, sizes_before: tuple[int, ...]) -> None:
        """`sizes_before` are those of its output files before it started."""
        self.key: str = order["attempt"]
        self.pid = pid
        self.sizes_before = sizes_before
        self._report = _report_of(order)
        self.limits: list[TimeLimit | OutputLimit] = []
        self._output_limits: dict[str, OutputLimit] = {}
        """Those that it ever had, with the time that they have counted."""
        self.mps_terminate: list[str] | None = order.get("mps_terminate")
        self.has_terminal = bool(order.get("terminal"))
        self.began = time.monotonic()
        self.began_at = _boot_clock()
        self.set_limits(order)

    def set_limits(self, order: dict[str, Any]) -> None:
        """Take the limits; time counts from the start. A new engine repeats the order."""
        self.grace: float = order["grace"]
        self.early: dict[str, Any] | None = order.get("signal")
        self.clear_limits()
        if order["limit"] is not None:
            self.time_limit_at = self.began_at + order["limit"]
            self.limits.append(TimeLimit(self.time_limit_at))
            if self.early and self.time_limit_at != self.signalled_before:
                self.signal_at = self.time_limit_at - self.early["seconds"]
        for name in (FIRST_OUTPUT, SILENT):
            if order[name] is not None:
                new = OutputLimit(self, order[name], only_first=name == FIRST_OUTPUT)
                limit = self._output_limits.setdefault(name, new)
                limit.set_seconds(order[name])
                self.limits.append(limit)

    def clear_limits(self) -> None:
        self.limits.clear()
        self.signal_at = None

    def output_sizes(self) -> tuple[int, ...] | None:
        """Bytes of the files that its command writes to, and of its reports; None if some of its output is not seen."""
        try:
            streams = [os.stat(f"/proc/{self.pid}/fd/{number}") for number in (1, 2)]
        except OSError:
            return None
        if not all(stat.S_ISREG(stream.st_mode) for stream in streams):
            return None
        return (*(stream.st_size for stream in streams), _size(self._report))

    @property
    def runs(self) -> bool:
        """Whether its command has neither ended nor been sent a signal to end."""
        return self.status is None and self.kill_at is None


class Worker:
    """The loop of one worker process."""

    def __init__(
        self,
        listener: socket.socket | None,
        journal_descriptor: int,
        boot: str = "",
        image: Image | None = None,
    ) -> None:
        """Without a listener no engine can connect; the worker gets its attempts by `give`.

        `image` has the modules of the template that forked it.
        """
        self._image = image
        self._listener = listener
        self._journal = journal_descriptor
        self._boot = boot
        self._offset = 0
        self._engine: socket.socket | None = None
        self._inbox = b""
        self._descriptors: deque[int] = deque()
        self._leases: list[tuple[str, int]] = []
        self._environments: dict[str, dict[str, str]] = {}
        self._queue: deque[dict[str, Any]] = deque()
        self._given: set[str] = set()
        """Every attempt that ever arrived; a journal's length bounds it."""
        self._current: RunningAttempt | None = None
        self._childless = True
        """Whether the last wait found no child, alive or not."""
        self._leaving = False
        self._tied = False
        """Whether its attempts end with the engine: they belong to an allocation that does."""
        self._unhinted_since: float | None = None
        self._alarm, alarm_end = socket.socketpair()
        self._alarm.setblocking(False)
        alarm_end.setblocking(False)
        self._alarm_end = alarm_end
        self._poller = select.poll()
        if self._listener is not None:
            self._listener.setblocking(False)
            self._poller.register(self._listener, select.POLLIN)
        self._poller.register(self._alarm, select.POLLIN)
        signal.set_wakeup_fd(alarm_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def let_go(self) -> None:
        """Close all that is the worker's, in a process that it forked."""
        for connection in (self._listener, self._engine, self._alarm, self._alarm_end):
            if connection is not None:
                connection.close()

    def serve(self) -> None:
        """Work until the engine says to leave or, once it is gone, until no attempt is left."""
        self._accept()
        while self._is_needed():
            self._end_if_cut_off()
            self._start_next()
            self._listen(self._timeout())
            self._reap()
            self._keep_time()
            self._finish()
            self._hint_overdue()
        self._release_leases()

    @property
    def lost_engine(self) -> bool:
        """Whether the engine hung up, or died."""
        return self._engine is None

    def _is_needed(self) -> bool:
        busy = self._current is not None or bool(self._queue)
        return busy or (self._engine is not None and not self._leaving)

    def _end_if_cut_off(self) -> None:
        """Start nothing more and kill what runs, if the engine is gone and the attempts end with it."""
        if not self._tied or not (self._engine is None or _is_hung_up(self._engine)):
            return
        self._queue.clear()
        if self._current is not None:
            self._stop(self._current.key, 0.0, signal.SIGKILL)

    # -- orders from the engine ------------------------------------------------------------------

    def _accept(self) -> None:
        """Accept the newest connection: a new engine replaces a dead one, whose last orders still count."""
        if self._listener is None:
            return
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                while self._engine is not None and self._receive(self._engine):
                    pass
                self._hang_up()
                connection.setblocking(False)
                self._engine = connection
                self._poller.register(connection, select.POLLIN)
                self._hint()

    def _hang_up(self) -> None:
        """Drop the engine with its incomplete order, and the lease that came with it."""
        if self._engine is not None:
            self._poller.unregister(self._engine)
            self._engine.close()
        self._engine, self._inbox = None, b""
        while self._descriptors:
            os.close(self._descriptors.popleft())

    def _listen(self, timeout: float | None) -> None:
        ready = {descriptor for descriptor, _ in self._poller.poll(None if timeout is None else timeout * 1000)}
        if self._alarm.fileno() in ready:
            self._signalled(self._alarm.recv(4096))
        if self._engine is not None and self._engine.fileno() in ready:
            self._receive(self._engine)
        if self._listener is not None and self._listener.fileno() in ready:
            self._accept()

    def _signalled(self, numbers: bytes) -> None:
        """Signals came; SIGCHLD is all that a worker of an engine gets, and `_reap` follows."""

    def _receive(self, engine: socket.socket) -> bool:
        """Read and execute orders; False when there are no more for now."""
        try:
            data, descriptors, _, _ = socket.recv_fds(engine, PIECE_BYTES, 8)
        except BlockingIOError:
            return False
        except OSError:
            data, descriptors = b"", []
        self._descriptors.extend(descriptors)
        if not data:
            self._hang_up()
            return False
        *lines, self._inbox = (self._inbox + data).split(b"\n")
        for line in lines:
            self._execute(json.loads(line))
        return True

    def give(self, order: dict[str, Any], variables: dict[str, str]) -> None:
        """Queue an attempt, with the environment that it names."""
        self._execute({"do": "environment", "digest": order["environment"], "variables": variables})
        self._execute({"do": "run", **order})

    def _execute(self, order: dict[str, Any]) -> None:
        match order["do"]:
            case "run":
                self._given.add(order["attempt"])
                self._tied = order.get("tied", False)
                self._queue.append(order)
            case "account" if order["attempt"] not in self._given:
                self._write(journal.AttemptReturned(order["attempt"], time.time()))
                self._hint()
            case "environment":
                self._environments[order["digest"]] = order["variables"]
            case "lease":
                descriptor = self._descriptors.popleft()
                os.set_inheritable(descriptor, True)
                self._leases.append((order["path"], descriptor))
            case "stop":
                self._stop(order["attempt"], order["grace"], order.get("signal") or signal.SIGTERM)
            case "give way" | "limit" as change:
                {"give way": self._give_way, "limit": self._set_limits}[change](order)
            case "recall":
                self._recall()
            case "release" if self._current is None and not self._queue:
                self._release_leases()
            case "leave":
                self._leaving = True

    def _recall(self) -> None:
        while self._queue:
            self._write(journal.AttemptReturned(self._queue.popleft()["attempt"], time.time()))
        self._hint()

    def _stop(self, key: str, grace: float, signal_number: int) -> None:
        for order in [order for order in self._queue if order["attempt"] == key]:
            self._queue.remove(order)
            self._write(journal.AttemptReturned(key, time.time()))
            self._hint()
        if self._current is not None and self._current.key == key:
            if self._current.why in (journal.EXITED, journal.PREEMPTED) and self._current.status is None:
                self._current.why = journal.STOPPED
            self._terminate(self._current, grace, signal_number)

    def _give_way(self, order: dict[str, Any]) -> None:
        """Ask the attempt to leave. A new engine repeats the order.

        Only a process that handles the signal gets it: the others would die of it, and with them the work since the
        last save. An attempt without such a process stays.
        """
        attempt = self._current
        if attempt is None or attempt.key != order["attempt"] or not attempt.runs or attempt.why != journal.EXITED:
            return
        if not order["saves"]:
            attempt.why = journal.PREEMPTED
            self._terminate(attempt, order["seconds"], order["signal"])
        elif savers := processes.that_handle(_descendants(), order["signal"]):
            attempt.why = journal.PREEMPTED
            attempt.leave_until = _boot_clock() + order["seconds"]
            processes.send(savers, order["signal"])

    def _set_limits(self, order: dict[str, Any]) -> None:
        for queued in self._queue:
            if queued["attempt"] == order["attempt"]:
                queued.update({name: value for name, value in order.items() if name != "do"})
        attempt = self._current
        if attempt is not None and attempt.key == order["attempt"] and attempt.runs:
            attempt.set_limits(order)

    # -- the attempt -----------------------------------------------------------------------------

    def _start_next(self) -> None:
        while self._queue and self._current is None:
            order = self._queue.popleft()
            if self._image is not None and order.get("warm") and self._image.outdated():
                self._return_outdated(order)
                return
            self._write(journal.AttemptStarted(order["attempt"], time.time()))
            try:
                self._current = self._spawn(order)
            except Refused as refusal:
                why = journal.NOT_STARTED
                self._over(journal.AttemptExited(order["attempt"], time.time(), refusal.code, 0, why, 0, refusal.note))
            except StartDeferred as shortage:
                self._give_back(order["attempt"], shortage)

    def _return_outdated(self, order: dict[str, Any]) -> None:
        """Return all attempts, for a worker with the modules as they are now."""
        self._queue.appendleft(order)
        self._recall()
        self._hint(OUTDATED)

    def _give_back(self, key: str, shortage: StartDeferred) -> None:
        """Return an attempt that cannot be started now, and those behind it if they could not be started either."""
        self._over(journal.AttemptReturned(key, time.time(), shortage.errno, shortage.note))
        if is_machine_wide(shortage.errno):
            self._recall()

    def _spawn(self, order: dict[str, Any]) -> RunningAttempt:
        sizes = (*(_size(os.path.join(order["cwd"], order[name])) for name in ("out", "err")), _size(_report_of(order)))
        pid = launch(order, {**self._environments[order["environment"]], **order["extra"]}, self._image)
        self._write(journal.Born(order["attempt"], pid, os.getpid(), processes.ticks_now(), self._boot))
        self._childless = False
        return RunningAttempt(order, pid, sizes)

    def _reap(self) -> None:
        """Collect every child that ended: the command, and orphans of it."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._childless = True
                return
            if pid == 0:
                return
            if self._current is not None and pid == self._current.terminator:
                self._current.terminator, self._current.kill_at = None, _boot_clock()
            elif self._current is not None:
                self._current.peak = max(self._current.peak, usage.ru_maxrss * 1024)
                if pid == self._current.pid:
                    self._current.status = status
                    self._current.clear_limits()

    def _finish(self) -> None:
        """Close the attempt when its command has ended and no process that came from it is left."""
        attempt = self._current
        if attempt is None or attempt.status is None:
            return
        if not self._childless:
            if attempt.linger_at is None and attempt.kill_at is None:
                attempt.linger_at = max(_boot_clock() + LINGER_SECONDS, attempt.leave_until or 0.0)
            return
        self._current = None
        code, signal_number = _exit_of(attempt.status)
        end = journal.AttemptExited(
            attempt.key, time.time(), code, signal_number, attempt.why, attempt.peak, attempt.note
        )
        self._over(end)

    def _keep_time(self) -> None:
        attempt = self._current
        if attempt is None:
            return
        now = _boot_clock()
        if attempt.leave_until is not None and now >= attempt.leave_until:
            attempt.leave_until = None
            if attempt.why == journal.PREEMPTED and attempt.runs:
                attempt.why = journal.EXITED
        if attempt.kill_at is not None and now >= attempt.kill_at:
            if self._terminates_mps(attempt, now):
                return
            processes.send(_descendants(), signal.SIGKILL)
            attempt.kill_at = now + attempt.kill_interval
            attempt.kill_interval = min(2 * attempt.kill_interval, KILL_INTERVAL_LIMIT_SECONDS)
        elif attempt.linger_at is not None and now >= attempt.linger_at:
            attempt.linger_at = None
            left = _descendants()
            attempt.note = _leftover_note(len(left))
            self._terminate(attempt, LINGER_GRACE_SECONDS)
        elif limit := next(
            (limit for limit in attempt.limits if limit.at <= now and limit.is_reached(attempt, now)), None
        ):
            attempt.why, attempt.note = limit.why, limit.note
            self._terminate(attempt, attempt.grace)
        elif attempt.signal_at is not None and now >= attempt.signal_at:
            attempt.signal_at, attempt.signalled_before = None, attempt.time_limit_at
            self._send_early(attempt)

    def _send_early(self, attempt: RunningAttempt) -> None:
        """Send the signal that an order wants before its limit, to all processes or to the command alone."""
        if attempt.early is not None:
            alone = attempt.early["command_only"]
            targets = [process for process in _descendants() if not alone or process.pid == attempt.pid]
            processes.send(targets, attempt.early["number"])

    def _terminates_mps(self, attempt: RunningAttempt, now: float) -> bool:
        """Run the `mps_terminate` program before the kill; True while it runs."""
        if attempt.mps_terminate:
            doomed = [str(process.pid) for process in _descendants()]
            words, attempt.mps_terminate = [*attempt.mps_terminate, *doomed], None
            attempt.terminator = spawn_silently(words) if doomed else None
            attempt.terminator_until = now + MPS_TERMINATE_SECONDS
        if attempt.terminator is None or now >= attempt.terminator_until:
            return False
        attempt.kill_at = attempt.terminator_until
        return True

    def _terminate(self, attempt: RunningAttempt, grace: float, signal_number: int = signal.SIGTERM) -> None:
        """Send TERM to all processes now and KILL after the grace; a second order only shortens that."""
        kill_at = _boot_clock() + grace
        attempt.clear_limits()  # the first reason stays
        if attempt.kill_at is None and grace > 0:
            processes.send(_descendants(), signal_number)
            if attempt.has_terminal and signal_number == signal.SIGTERM:  # which interactive shells ignore
                processes.send(_descendants(), signal.SIGHUP)
        attempt.kill_at = kill_at if attempt.kill_at is None else min(kill_at, attempt.kill_at)
        self._keep_time()

    # -- reporting -------------------------------------------------------------------------------

    def _over(self, end: journal.AttemptExited | journal.AttemptReturned) -> None:
        self._write(end)
        now = time.monotonic()
        self._unhinted_since = self._unhinted_since or now
        if not self._queue or now - self._unhinted_since >= HINT_INTERVAL_SECONDS:
            self._hint()

    def _hint_overdue(self) -> None:
        attempt = self._current
        if attempt is not None and not attempt.hinted and time.monotonic() - attempt.began >= QUIET_START_SECONDS:
            attempt.hinted = True
            self._hint()

    def _write(self, record: journal.Record) -> None:
        line = journal.line_of(record)
        os.pwrite(self._journal, line, self._offset)
        self._offset += len(line)

    def _hint(self, hint: bytes = b"!") -> None:
        self._unhinted_since = None
        if self._engine is not None:
            with contextlib.suppress(OSError):  # full: it has enough hints; closed: the next read finds that
                self._engine.send(hint)

    def _timeout(self) -> float | None:
        attempt = self._current
        if attempt is None:
            return None if self._engine is not None else 0.0
        others = attempt.kill_at, attempt.linger_at, attempt.signal_at, attempt.leave_until
        moments = [*(at for at in others if at is not None), *(limit.at for limit in attempt.limits)]
        timeout = min(max(0.0, min(moments) - _boot_clock()), LONGEST_WAIT_SECONDS) if moments else None
        if not attempt.hinted:
            return QUIET_START_SECONDS if timeout is None else min(timeout, QUIET_START_SECONDS)
        return timeout

    def _release_leases(self) -> None:
        for path, descriptor in self._leases:
            with contextlib.suppress(OSError):
                os.unlink(path)
            os.close(descriptor)
        self._leases.clear()


def _report_of(order: dict[str, Any]) -> str:
    """The file of the values that the attempt reports: they show that it lives."""
    report: str = order["extra"].get(REPORT, "")
    return report


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _is_hung_up(connection: socket.socket) -> bool:
    """Whether the other end is closed, though what it sent may not be read yet."""
    poller = select.poll()
    poller.register(connection, 0)
    return bool(poller.poll(0))


def _descendants() -> list[processes.SeenProcess]:
    """All that the worker runs; none if it has no descriptor left to look, so that it tries again later."""
    try:
        return processes.descendants(os.getpid())
    except OSError:
        return []


def _leftover_note(count: int) -> str:
    if count == 0:  # the last of them ended at this moment
        return ""
    return (
        f"left {count} processes behind, which were stopped"
        if count > 1
        else "left 1 process behind, which was stopped"
    )


def _exit_of(status: int) -> tuple[int, int]:
    """Exit code as a shell has it, and the signal (0 for none)."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status), os.WTERMSIG(status)
    return os.WEXITSTATUS(status), 0


def _boot_clock() -> float:
    """Seconds that no change of the clock moves, and that count while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
