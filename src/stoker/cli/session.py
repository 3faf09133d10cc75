"""A session: one job whose terminal is the user's, with what the user sees while it waits, is idle or ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from stoker.app.jobs.local_time import clock_text
from stoker.cli.console import say, to_stderr
from stoker.cli.relay import Relay
from stoker.cli.screens.run_lines import QuietView
from stoker.core.job import Active, Ended, Job, JobEvent, Started, id_text, started_at
from stoker.core.planner.reasons import Leased, sentence
from stoker.core.text import printable, shortened, title
from stoker.core.units import span_text
from stoker.engine.foreground import Foreground
from stoker.runner import processes
from stoker.store import queries
from stoker.store.engine_lock import QUEUE
from stoker.store.status_file import read_status

QUIET_SECONDS = 0.5
"""Seconds for which a session may wait before the user is told why."""
CHECK_INTERVAL = 1.0
FORECAST_INTERVAL = 5.0
LONGEST_WARNING = 300.0
"""Seconds before its end at which the user of a session is warned."""
NAMED_JOBS = 2
"""Jobs that are named as the reason why a session waits, each with at most so many characters of its title."""
LONGEST_TITLE = 20
LEAST_CPU = 0.05
"""Part of a core below which a session counts as idle; a Jupyter server without work takes about 0.01."""


class SessionView:
    """Shows why the session waits, then connects the terminals; warns before a limit; a `View`."""

    interval: float | None = CHECK_INTERVAL

    def __init__(self, relay: Relay, idle_seconds: float | None) -> None:
        self.ids: dict[int, None] = {}
        self._relay = relay
        self._run: Foreground | None = None
        self._idle = None if idle_seconds is None else Idle(idle_seconds)
        self._last_words: list[str] = []
        self._ending = QuietView(self._last_words.append)
        self._waits = Waits()
        self._keys = False
        self._warned_of: float | None = None
        """The time limit of which the user was warned."""

    def attach(self, run: Foreground) -> None:
        """Let the engine watch the relay; a session without its terminal is ended, as a login shell is."""

        def received() -> None:
            self._keys = True
            if not self._relay.receive():
                run.engine.unwatch(self._relay)
                cancel_session(run, None, "its terminal was closed")

        run.engine.watch(self._relay, received)
        self._run = run

    def _banner(self, job: Job) -> str:
        """`job 12 on GPU 0,1, until 16:05 (stoker cancel 12 ends it)`."""
        labels = {} if self._run is None else {device.id: device.label for device in self._run.engine.snapshot.devices}
        devices = job.state.devices if isinstance(job.state, Active) else ()
        place = f"GPU {','.join(labels.get(device, device) for device in devices)}" if devices else "no GPU"
        now, limit = time.time(), job.spec.limit
        until = "" if limit is None else f", until {clock_text((started_at(job) or now) + limit, now)}"
        return f"job {job.id} on {place}{until} (stoker cancel {job.id} ends it)"

    def happened(self, job_event: JobEvent) -> None:
        if isinstance(job_event.event, Started):
            self._waits.clear()
            say(self._banner(job_event.job))
            self._relay.begin()
        self._ending.happened(job_event)
        if isinstance(job_event.job.state, Ended):
            self.close()

    def refresh(self, run: Foreground) -> None:
        job = next(iter(run.engine.active_jobs), None)
        if job is None:
            self._waits.show(run)
        elif (began := started_at(job)) is not None:
            self._warn_of_limit(job, began)
            if self._idle is not None:
                self._check_idle(run, job, self._idle)

    def say(self, text: str) -> None:
        if self._relay.begun:
            self._relay.say(printable(text))
        else:
            self._waits.clear()
            say(text)

    def close(self) -> None:
        self._waits.clear()
        self._relay.end(self._last_words)

    def _warn_of_limit(self, job: Job, began: float) -> None:
        limit = job.spec.limit
        if limit is None or limit == self._warned_of:
            return
        left = began + limit - time.time()
        if left <= warning_seconds(limit):
            self._warned_of = limit
            self.say(f"this session ends in {span_text(left)}: its time limit (stoker edit {job.id} -t changes it)")

    def _check_idle(self, run: Foreground, job: Job, idle: Idle) -> None:
        keys, self._keys = self._keys, False
        if text := idle.check(_use(run, job), time.monotonic(), keys=keys):
            self.say(text)
        if idle.over:
            cancel_session(run, None, f"no keyboard, GPU or CPU use for {span_text(idle.seconds)} (--idle)")


class Waits:
    """One line on the terminal that tells why the session has not started."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._shown = ""
        self._forecast_due = 0.0
        self._start: float | None = None
        self._own: list[Job] = []
        """Jobs of this user's queue that hold GPUs."""

    def show(self, run: Foreground) -> None:
        job, now = run.engine.next_queued, time.monotonic()
        if job is None or now - self._since < QUIET_SECONDS:
            return
        if now >= self._forecast_due:
            self._own = _jobs_on_gpus(run)
            self._start = run.engine.site.forecast().starts.get(job.id) or _expected_room(run, job, self._own)
            self._forecast_due = now + FORECAST_INTERVAL
        text = self._text(run, job)
        if text != self._shown:
            self.clear()
            self._shown = text
            width = os.get_terminal_size().columns if sys.stderr.isatty() else 80
            to_stderr(shortened(printable(text), max(20, width - 1)))

    def clear(self) -> None:
        if self._shown:
            to_stderr("\r\x1b[K" if sys.stderr.isatty() else "\n")
            self._shown = ""

    def _text(self, run: Foreground, job: Job) -> str:
        now, reason = time.time(), run.engine.reason(job)
        clock = partial(clock_text, now=now)
        why = "no free GPU" if reason is None else sentence(reason, clock, run.store.shown_id)
        when = "" if self._start is None else f" until about {clock(self._start)}"
        if isinstance(reason, Leased) and self._own:
            named = ", ".join(f"{id_text(own)} {title(own, LONGEST_TITLE)}" for own in self._own[:NAMED_JOBS])
            more = ", …" if len(self._own) > NAMED_JOBS else ""
            why = f"for {'your jobs' if len(self._own) > 1 else 'your job'} {named}{more}; {why}"
        return f"stoker: waiting{when} (Ctrl-C to stop waiting): {why}"


def _jobs_on_gpus(run: Foreground) -> list[Job]:
    active = (owned.job for owned in queries.all_active(run.store))
    return [job for job in active if isinstance(job.state, Active) and job.state.devices]


def _expected_room(run: Foreground, job: Job, own: Sequence[Job]) -> float | None:
    """When enough of the user's jobs will have ended; leases of other engines do not tell that. None where unknown."""
    status = read_status(run.setup.paths.status_file(QUEUE))
    forecast = status.ends if status else {}
    expected = (forecast.get(other.id) or _end_by_limit(other) for other in own)
    ends = sorted(end for end in expected if end is not None and end > time.time())
    wanted = job.spec.resources.gpus
    return ends[wanted - 1] if 0 < wanted <= len(ends) else None


def _end_by_limit(job: Job) -> float | None:
    began, limit = started_at(job), job.spec.limit
    return None if began is None or limit is None else began + limit


class Use(NamedTuple):
    """The usage of the processes of a session up to now."""

    cpu_seconds: float
    gpu_percent: int


class Idle:
    """Decides when a session is idle: no keystroke, no load of its GPUs, and less than LEAST_CPU of a core."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.over = False
        self._active_at: float | None = None
        self._before: tuple[float, float] = (0.0, 0.0)
        """When CPU time was read, and how much it was."""
        self._warned = False

    def check(self, read: Callable[[], Use], now: float, *, keys: bool) -> str:
        """Note what was used since the last call, and return a warning that is due."""
        if self._active_at is None:
            self._active_at, self._before = now, (now, read().cpu_seconds)
        if keys:
            self._note_active(now)
        elapsed = now - self._before[0]
        if elapsed < min(10.0, self.seconds / 10):
            return ""
        use = read()
        if use.gpu_percent or use.cpu_seconds - self._before[1] > LEAST_CPU * elapsed:
            self._note_active(now)
        self._before = now, use.cpu_seconds
        return self._judge(now - self._active_at)

    def _note_active(self, now: float) -> None:
        self._active_at, self._warned = now, False

    def _judge(self, idle: float) -> str:
        self.over = idle >= self.seconds
        if self.over or self._warned or idle < self.seconds - warning_seconds(self.seconds):
            return ""
        self._warned = True
        left = span_text(self.seconds - idle)
        return f"no keyboard, GPU or CPU use for {span_text(idle)}; this session ends in {left} unless you use it"


def warning_seconds(total: float) -> float:
    """How long before its end a session of such a length is warned."""
    return min(LONGEST_WARNING, total / 4)


def _use(run: Foreground, job: Job) -> Callable[[], Use]:
    """Reads the use of a session; a GPU that it shares counts as used also while others use it."""

    def read() -> Use:
        devices = job.state.devices if isinstance(job.state, Active) else ()
        readings = run.engine.snapshot.readings
        loads = [readings[device].utilisation or 0 for device in devices if device in readings]
        root = run.process_of(job)
        return Use(processes.cpu_seconds(root) if root is not None else 0.0, max(loads, default=0))

    return read


def cancel_session(run: Foreground, grace: float | None, note: str) -> None:
    """Cancel the job, whether it waits or runs."""
    queued = run.engine.next_queued
    for job in [*run.engine.active_jobs, *([queued] if queued else [])]:
        run.engine.cancel(job.id, grace, note)


def end_by_signal(run: Foreground, signal_number: signal.Signals, stage: int) -> None:
    """A signal to Stoker itself: Ctrl-C while the session waits, or kill."""
    run.stopped_by = signal_number
    cancel_session(run, None if stage < 3 else 0.0, f"stopped by {signal_number.name}")
    if stage > 3:
        raise KeyboardInterrupt  # a process cannot be killed, and the user wants to leave
