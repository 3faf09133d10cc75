"""A machine on which people type `schedule`, with a queue, a ledger and an info file of its own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.desk import PROGRAMS, JobBuilder
from support.users import User, typed_by
from support.wait import wait_until


class Task:
    """A running `schedule`, and what it printed so far."""

    def __init__(self, words: Sequence[str], builder: ScheduleDesk, user: User | None = None) -> None:
        self._out, self._err = builder.directory / f"{id(self)}.out", builder.directory / f"{id(self)}.err"
        typed = [str(PROGRAMS / "schedule"), *words]
        command = typed if user is None else typed_by(user, *typed)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=builder.directory,
                env=builder.environment_of(user),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def printed(self) -> str:
        """Standard output so far."""
        return self._out.read_text()

    @property
    def said(self) -> str:
        """Standard error so far."""
        return self._err.read_text()

    def wait_printed(self, text: str) -> None:
        """Wait until standard output has the text."""
        wait_until(lambda: text in self.printed)

    def wait_started(self) -> int:
        """The number of the task's process, as soon as it is announced."""
        self.wait_printed("TASK PGID: ")
        return int(self.printed.partition("TASK PID: ")[2].split()[0])

    def press(self, number: signal.Signals = signal.SIGINT) -> None:
        """Send a signal; SIGINT is what Ctrl-C does."""
        self.process.send_signal(number)

    def terminated(self) -> bool:
        """Ask it to end, once more each time, and give it a second."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.press(signal.SIGTERM)
            self.process.wait(1)
        return self.process.poll() is not None

    def end(self) -> tuple[int, str, str]:
        """Wait: exit code, standard output and standard error."""
        self.process.wait(timeout=60)
        return self.process.returncode, self.printed, self.said


class ScheduleDesk(JobBuilder):
    """A desk whose info file is apart from everybody else's."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.home = directory
        self.info_path = directory / "gpu_scheduler_info"
        self.environment["STOKER_SCHEDULE_INFO"] = str(self.info_path)
        self.tasks: list[Task] = []

    def begin(self, *words: str, user: User | None = None) -> Task:
        """Start `schedule` and leave it running."""
        self.tasks.append(Task(words, self, user))
        return self.tasks[-1]

    def hold(self, *words: str, gate: str = "gate", user: User | None = None) -> Task:
        """Run a task that keeps its GPUs until a gate is opened."""
        task = self.begin(f"sh -c 'until [ -e {gate} ]; do sleep 0.01; done'", *words, user=user)
        task.wait_started()
        return task

    def schedule(self, *words: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of `schedule` with these words."""
        return self.begin(*words).end()

    def info(self) -> dict[str, list[Any]]:
        """What the file says."""
        table: dict[str, list[Any]] = json.loads(self.info_path.read_text())
        return table

    def mark(self, number: int, **values: object) -> None:
        """Change the file as another script would."""
        table = self.info()
        for name, value in values.items():
            table[name][number] = value
        self.info_path.write_text(json.dumps(table))

    def wait_file(self, name: str) -> None:
        """Wait until a task has made a file."""
        wait_until((self.directory / name).exists)

    def environment_of(self, user: User | None) -> dict[str, str]:
        """Each user has a state of his own, and shares the rest."""
        if user is None:
            return self.environment
        state = self.home / f"state-{user.name}"
        if not state.exists():
            state.mkdir(0o700)
            os.chown(state, user.uid, user.gid)
        return {**self.environment, "STOKER_STATE": str(state), "HOME": str(state)}

    def close(self) -> None:
        """End what still runs."""
        for task in self.tasks:
            wait_until(task.terminated)
