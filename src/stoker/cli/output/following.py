"""Shows what a job writes while it writes it, over all its runs, until it is over."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from stoker.cli.control.watching import WHY_DELAY, Watch, why_waits
from stoker.cli.control.wishes import Control, warn
from stoker.cli.output.log_files import Tail
from stoker.cli.output.log_output import Output, Source
from stoker.core.attempt import INHERIT
from stoker.core.job import Active, Ended, Job
from stoker.store import AttemptRow
from stoker.words import printable

WHY_INTERVAL = 2.0
"""Seconds between two looks why a job waits."""


def runs_of(attempts: Sequence[AttemptRow]) -> list[AttemptRow]:
    """The attempts that have files of their own: one that was given back before it started shares the next one's."""
    return [attempt for attempt in attempts if attempt.why != "returned"]


def files_of(run: AttemptRow, number: int) -> dict[Source, str]:
    """What a run wrote to; the terminal of a foreground run is no file."""
    named = {Source(number, "out"): run.log, Source(number, "err"): run.errors}
    return {source: path for source, path in named.items() if path and path != INHERIT}


class Follower:
    """One job, and how far its output has been shown."""

    def __init__(self, control: Control, job_id: int, lines: int | None, output: Output) -> None:
        self._control = control
        self._id = job_id
        self._lines = lines
        self._output = output
        self._tails: dict[Source, Tail] = {}
        self._run = 0
        """Which of the job's runs is being shown, from 1."""
        self._said = ""
        self._why_at = time.monotonic() + WHY_DELAY

    def follow(self) -> Job:
        """Show all that comes until the job is over; returns it as it ended."""
        watch = Watch(self._control, [self._id])
        while True:
            watch.look()
            job = self._job()
            runs = runs_of(self._control.store.attempts(self._id))  # looked up before the files, which may grow on
            if self._catch_up(runs):
                watch.hurry()
            if isinstance(job.state, Ended):
                self._close()
                self._output.end()
                return job
            if not isinstance(job.state, Active):
                self._say_why(job)
            watch.sleep()

    def _job(self) -> Job:
        job = self._control.store.job(self._id)
        assert job is not None
        return job

    def _catch_up(self, runs: Sequence[AttemptRow]) -> bool:
        """Show what is new in the files of the runs; whether there was anything."""
        self._run = self._run or max(1, len(runs))
        came = self._drain()
        while self._run <= len(runs):
            if not self._tails:
                files = files_of(runs[self._run - 1], self._run)
                self._tails = {source: Tail(path, self._lines) for source, path in files.items()}
                self._lines = None
            came = self._drain() or came
            if self._run == len(runs):
                break
            self._next_run()
        return came

    def _next_run(self) -> None:
        self._close()
        self._run += 1
        self._say(f"{self._run}. run")

    def _drain(self) -> bool:
        came = False
        for source, tail in self._tails.items():
            for block in tail.read():
                self._output.show(source, block)
                came = True
        sys.stdout.buffer.flush()
        return came

    def _close(self) -> None:
        for tail in self._tails.values():
            tail.close()
        self._tails = {}

    def _say_why(self, job: Job) -> None:
        now = time.monotonic()
        if now < self._why_at:
            return
        self._why_at = now + WHY_INTERVAL
        self._say(why_waits(self._control, job))

    def _say(self, text: str) -> None:
        """A word beside the output, once."""
        if text != self._said:
            self._said = text
            warn(printable(text))
