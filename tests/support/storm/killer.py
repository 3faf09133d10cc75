"""Kills workers and forkservers of one state directory, and keeps in mind what each kill must lead to."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from support.storm.processes import (
    children,
    is_forked,
    is_free,
    is_template,
    kill_and_wait,
    marked,
    open_files,
    processes,
)
from support.wait import wait_until

AT_WORK = 0.8
"""How often a worker is sought that has something running, if there is one."""
WITH_JOBS = 0.5
"""How often what a worker runs is killed together with it."""


@dataclass(frozen=True)
class WorkerKill:
    """A worker that was killed, and the attempts that it had begun and not ended."""

    worker: str
    open: tuple[str, ...]


@dataclass
class Killer:
    """Strikes at random, by process number."""

    state: Path
    dice: random.Random
    kills: list[WorkerKill] = field(default_factory=list)

    def kill_forkserver(self, engine: int) -> bool:
        """Kill the forkserver of an engine; False if there is none."""
        servers = [child for child in children(engine) if is_forked(child) and not is_template(child)]
        for server in servers:
            kill_and_wait(server)
        return bool(servers)

    def kill_template(self, engine: int) -> bool:
        """Kill a template of an engine, maybe while it imports or forks; False if there is none."""
        templates = [child for child in children(engine) if is_template(child)]
        for template in templates:
            kill_and_wait(template)
        return bool(templates)

    def kill_worker(self, engines: list[int], *, with_job: bool | None = None) -> bool:
        """Kill one, by chance with its jobs; False if there is none."""
        workers = self.workers(engines)
        if not workers:
            return False
        name, pid = self.dice.choice(self._preferred(workers))
        return self.kill_one(name, pid, with_job=self.dice.random() < WITH_JOBS if with_job is None else with_job)

    def kill_one(self, name: str, pid: int, *, with_job: bool) -> bool:
        """Kill a worker, and read in its journal, which nobody writes any more, what it leaves open."""
        folder = self.state / "workers" / name
        with contextlib.ExitStack() as closing:
            try:
                journal, lock = [closing.enter_context((folder / file).open("rb")) for file in ("journal", "lock")]
            except FileNotFoundError:
                return False
            kill_and_wait(pid)
            if with_job:
                for process in marked(f"STOKER_WORKER={name}"):
                    kill_and_wait(process)
            wait_until(lambda: is_free(lock.fileno()))  # a child it was just starting has it until it executes
            self.kills.append(WorkerKill(name, open_attempts(journal.read())))
        return True

    def holders(self) -> Iterator[tuple[str, int]]:
        """The processes that have a journal open, by its worker's name."""
        for pid in processes():
            for path in open_files(pid) if is_forked(pid) else ():
                if path.name == "journal" and path.is_relative_to(self.state):
                    yield path.parent.name, pid

    def workers(self, engines: list[int]) -> list[tuple[str, int]]:
        """The living workers; forkservers and children that are just being started hold journals too."""
        holders = sorted(self.holders())
        others = {child for engine in engines for child in children(engine)}
        others |= {child for _, pid in holders if pid not in others for child in children(pid)}
        return [(name, pid) for name, pid in holders if pid not in others]

    def _preferred(self, workers: list[tuple[str, int]]) -> list[tuple[str, int]]:
        if self.dice.random() >= AT_WORK:
            return workers
        return [(name, pid) for name, pid in workers if self._is_at_work(name)] or workers

    def _is_at_work(self, worker: str) -> bool:
        try:
            return bool(open_attempts((self.state / "workers" / worker / "journal").read_bytes()))
        except FileNotFoundError:
            return False


def open_attempts(journal: bytes) -> tuple[str, ...]:
    """Attempts that a journal begins and does not end."""
    open_keys: dict[str, None] = {}
    for line in journal.partition(b"\0")[0].rpartition(b"\n")[0].decode().splitlines():
        kind, attempt, *_ = line.split(" ")
        if kind == "S":
            open_keys[attempt] = None
        elif kind in ("E", "R", "N"):
            open_keys.pop(attempt, None)
    return tuple(open_keys)
