"""A machine on which users type `schedule`, with a queue, a ledger and an info file of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from support.shell import PROGRAMS, Running, Shell
from support.users import User, typed_by
from support.wait import wait_until


class Task(Running):
    """A running `schedule`."""

    def wait_started(self) -> int:
        """The number of the task's process, as soon as it is announced."""
        self.wait_printed("TASK PGID: ")
        return int(self.printed.partition("TASK PID: ")[2].split()[0])


class InfoFile:
    """The info file as other scripts read and change it."""

    info_path: Path

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


class ScheduleMachine(InfoFile, Shell):
    """A machine whose info file no other test uses."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.home = directory
        self.info_path = directory / "gpu_scheduler_info"
        self.environment["STOKER_SCHEDULE_INFO"] = str(self.info_path)
        self.tasks: list[Task] = []

    def begin(self, *words: str, user: User | None = None) -> Task:
        """Start `schedule` and leave it running."""
        typed = [str(PROGRAMS / "schedule"), *words]
        command = typed if user is None else typed_by(user, *typed)
        self.tasks.append(Task(command, self.directory, self.environment_of(user)))
        return self.tasks[-1]

    def hold(self, *words: str, gate: str = "gate", user: User | None = None) -> Task:
        """Run a task that keeps its GPUs until a gate is opened."""
        task = self.begin(f"sh -c 'until [ -e {gate} ]; do sleep 0.01; done'", *words, user=user)
        task.wait_started()
        return task

    def schedule(self, *words: str) -> tuple[int, str, str]:
        """Exit code, standard output and standard error of `schedule` with these words."""
        return self.begin(*words).end()

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
            while task.process.poll() is None:
                task.press(signal.SIGTERM)
                try:
                    task.process.wait(1)
                except subprocess.TimeoutExpired:
                    continue
