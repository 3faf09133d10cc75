"""A Slurm that runs nothing and answers at once, and an engine at its site: tests play the nodes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from stoker.core.settings import ClusterSettings
from stoker.features.slurm.commands import Done, Kind, SlurmCommands
from stoker.features.slurm.site import SlurmConfig, SlurmSite
from stoker.sites.interface import SiteContext
from support.fakes import EngineTest

NODE = "n1"
AWAY = "Unable to contact slurm controller"
LIMIT = "QOSMaxSubmitJobPerUserLimit; Job violates accounting/QOS policy (job submit limit, ...)"


def write_program(directory: Path, name: str, script: str) -> None:
    """A shell script that stands in for one of Slurm's programs."""
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)


@dataclass
class Task:
    """A task in the fake Slurm."""

    number: str
    state: str = "PENDING"
    reason: str = "Priority"
    node: str = ""
    start: str = "N/A"


class FakeSlurm(SlurmCommands):
    """Slurm's commands, which have ended as soon as they are asked for."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__({}, 0, clock)
        self.tasks: dict[tuple[str, int], Task] = {}
        """By tag and index, all that were ever submitted."""
        self.forgotten: set[tuple[str, int]] = set()
        """Tasks that squeue does not print."""
        self.options: dict[str, Sequence[str]] = {}
        """Of each sbatch, by its tag."""
        self.scripts: dict[str, str] = {}
        self.cancelled: list[str] = []
        self.signalled: list[str] = []
        self.drained_nodes: list[str] = []
        self.confines = True
        self.error = ""
        """What sbatch says, which takes nothing then."""
        self.is_away = False
        self.loses_submits = False
        """Whether no sbatch arrives."""
        self.loses_answers = False
        """Whether sbatch does not hear from the controller."""
        self.submits = 0
        self.most: int | None = None
        """How many tasks a submit limit allows."""
        self._numbers = count(1)
        self._time = clock
        self._done: Done | None = None

    @property
    def busy(self) -> bool:
        return self._done is not None

    def submit(self, tag: str, options: Sequence[str], script: str) -> None:
        self.submits += 1
        if self.error or self.is_away or self.loses_submits:
            self._answer("submit", tag=tag)
            return
        match = next((match for word in options if (match := re.match(r"--array=0-(\d+)", word))), None)
        count = int(match[1]) + 1 if match else 1
        if self.most is not None and len(self.tasks) + count > self.most:
            self._answer("submit", tag=tag, error=LIMIT)
            return
        number = next(self._numbers)
        for index in range(count):
            self.tasks[tag, index] = Task(f"{number}_{index}" if match else str(number))
        self.options[tag], self.scripts[tag] = options, script
        self._answer("submit", f"{number}\n", tag)

    def query(self) -> None:
        lines = [
            f"{task.number}|{task.state}|{task.reason}|{task.start}|{tag}|{task.node}\n"
            for (tag, index), task in self.tasks.items()
            if (tag, index) not in self.forgotten
        ]
        self._answer("query", "".join(lines))

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled += ids
        for task in self.tasks.values():
            if task.state == "PENDING" and {task.number, task.number.partition("_")[0]} & set(ids):
                task.state = "CANCELLED"
        self._answer("cancel")

    def signal(self, ids: Sequence[str], name: str) -> None:
        self.signalled += ids
        self._answer("cancel")

    def configuration(self) -> None:
        tracking = "proctrack/cgroup" if self.confines else "proctrack/linuxproc"
        self._answer("configuration", f"MaxArraySize = 11\nProctrackType = {tracking}\n")

    def nodes(self, partition: str) -> None:
        self._answer("nodes", "gpu:4|64000|32\n")

    def drained(self) -> None:
        self._answer("drained", "\n".join(self.drained_nodes))

    def finished(self) -> Done | None:
        done, self._done = self._done, None
        return done

    def _answer(self, kind: Kind, out: str = "", tag: str = "", error: str = "") -> None:
        if self.is_away or (kind == "submit" and self.loses_answers):
            error = AWAY
        elif kind == "submit":
            error = error or self.error
        self._done = Done(kind, tag, not error, "" if error else out, error, self._time(), 0.0)

    def run(self, tag: str, index: int = 0) -> None:
        """Give a task a node."""
        task = self.tasks[tag, index]
        task.state, task.reason, task.node, task.start = "RUNNING", "None", NODE, str(int(self._time()))


class EngineOnFakeSlurm(EngineTest):
    """An engine at the site of a fake Slurm, with a plain directory as the shared one."""

    cluster = "lab"

    def __init__(self, directory: Path, settings: ClusterSettings) -> None:
        super().__init__(directory)
        self.slurm = FakeSlurm(self.clock)
        self.settings = replace(settings, shared=str(directory / "shared"))
        self.files = self.paths.share(self.cluster, Path(self.settings.shared))
        self._instances = count(1)
        self.open()

    def open_site(self) -> SlurmSite:
        config = SlurmConfig(self.cluster, self.settings, "tester", {})
        instance = f"engine{next(self._instances)}"
        context = SiteContext(self.name, instance, "label", self.paths, self.store, self.jobs)
        self.site = SlurmSite(config, context, self.files, self.slurm)
        return self.site
