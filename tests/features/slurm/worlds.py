"""Worlds for tests of the Slurm site: a test plays the nodes of direct mode, or the pilots."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from features.slurm.fake_slurm import NODE, EngineOnFakeSlurm
from sites.contract import SiteWorld
from stoker.core.device import NodeGpu
from stoker.core.job import Active, Assigned, Exited, Returned, Started, started_at
from stoker.core.launch import attempt_key
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.attempts import read_ref
from stoker.features.slurm.guard import OWN_CLAIM
from stoker.features.slurm.orders import PILOT_MARK
from stoker.features.slurm.pilot.files import (
    AttemptReport,
    PilotEvent,
    PilotFolder,
    PilotOrder,
    PilotReady,
    Recall,
    RunJob,
    Stop,
)
from stoker.features.slurm.shared import JOURNALS, BundleFolder, append
from stoker.runner import journal

STOPPED = 143


class DirectWorld(SiteWorld, EngineOnFakeSlurm):
    """Plays the program that runs on a node for one task (node.py)."""

    def __init__(self, directory: Path, settings: ClusterSettings | None = None) -> None:
        super().__init__(directory, settings or ClusterSettings(pilots="never", poll=1.0))

    def _attempt(self, job_id: int) -> tuple[str, BundleFolder, int]:
        """Tag, folder and index of the attempt of a job."""
        state = self.job(job_id).state
        assert isinstance(state, Active)
        name, index = read_ref(state.ref)
        tag = next((tag for tag, _ in self.slurm.tasks if tag.endswith(f"/{name}")), "")
        return tag, BundleFolder(self.files.state / name), index

    @property
    def handed_over(self) -> int:
        return len(self.slurm.tasks)

    def begin(self, job_id: int) -> bool:
        if not isinstance(self.job(job_id).state, Active):
            return False
        tag, folder, index = self._attempt(job_id)
        if not tag or not folder.claim(index):
            return False
        self.slurm.run(tag, index)
        line = journal.line_of(journal.AttemptStarted(self.key(job_id), self.clock()))
        self.write(job_id, line[:-1] + f" {NODE} 0\n".encode())
        return True

    def end(self, job_id: int, code: int = 0, why: str = "exited") -> None:
        self.write(job_id, journal.line_of(journal.AttemptExited(self.key(job_id), self.clock(), code, 0, why, 1, "")))
        tag, _, index = self._attempt(job_id)
        self.slurm.tasks[tag, index].state = "COMPLETED"

    def lose(self, job_id: int) -> None:
        tag, _, index = self._attempt(job_id)
        self.slurm.tasks[tag, index].state = "NODE_FAIL"

    def stops(self, job_id: int) -> list[tuple[float, int]]:
        return [(message["grace"], message["signal"]) for message in self.messages(job_id) if "grace" in message]

    def obey(self) -> None:
        for job in self.store.open_jobs(self.name, 0, 1000):
            if isinstance(job.state, Active) and started_at(job) is not None and self.stops(job.id):
                self.end(job.id, STOPPED, why="stopped")

    def key(self, job_id: int) -> str:
        return attempt_key(job_id, self.job(job_id).attempts)

    def messages(self, job_id: int) -> list[dict[str, Any]]:
        """All that the head told the node of an attempt."""
        _, folder, index = self._attempt(job_id)
        return folder.messages(index)

    def fail(self, job_id: int, words: str) -> None:
        """Leave the words of a program that could not run."""
        _, folder, index = self._attempt(job_id)
        folder.fail(index, words)

    def write(self, job_id: int, line: bytes) -> None:
        """Write a line into the journal of an attempt."""
        _, folder, index = self._attempt(job_id)
        append(folder.at(JOURNALS, index), line)


class PilotWorld(SiteWorld, EngineOnFakeSlurm):
    """Plays the pilots, which Slurm starts at once."""

    def __init__(self, directory: Path, settings: ClusterSettings | None = None) -> None:
        self.holds_pilots = False
        """Whether pilots wait in Slurm."""
        self.pilot_words = ""
        """The last words of pilots that end before they work."""
        self._begun: set[str] = set()
        super().__init__(directory, settings or ClusterSettings(pilots="always", poll=1.0))

    @property
    def pilots(self) -> dict[str, PilotFolder]:
        """The folders of pilots that Slurm has started or will start, by tag."""
        tags = [tag for tag, _ in self.slurm.tasks if tag.rpartition("/")[2].startswith(PILOT_MARK)]
        folders = {tag: PilotFolder(self.files.state / tag.rpartition("/")[2]) for tag in tags}
        return {tag: folder for tag, folder in folders.items() if folder.is_complete}

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            super().step()
            for tag, folder in self.pilots.items():
                if self.slurm.tasks[tag, 0].state == "PENDING" and not self.holds_pilots and folder.claim(OWN_CLAIM):
                    self._begin_pilot(tag, folder)

    def _begin_pilot(self, tag: str, folder: PilotFolder) -> None:
        self.slurm.run(tag)
        if self.pilot_words:
            folder.fail(0, self.pilot_words)
            self.slurm.tasks[tag, 0].state = "FAILED"
        else:
            folder.report([PilotReady(NODE, 4)])

    def orders(self) -> Iterator[tuple[PilotFolder, PilotOrder]]:
        """All orders that pilots were given."""
        for folder in self.pilots.values():
            yield from ((folder, order) for order in folder.read_orders(0)[0])

    def _run_orders(self) -> dict[str, PilotFolder]:
        """The folder of the pilot of each attempt."""
        orders = ((folder, order) for folder, order in self.orders() if isinstance(order, RunJob))
        return {attempt_key(order.job.id, order.job.attempts + 1): folder for folder, order in orders}

    @property
    def handed_over(self) -> int:
        return len(self._run_orders())

    def key(self, job_id: int) -> str:
        return attempt_key(job_id, self.job(job_id).attempts)

    def begin(self, job_id: int) -> bool:
        key, now = self.key(job_id), self.clock()
        folder = self._run_orders().get(key)
        if folder is None or not folder.claim_as(key):
            return False
        self._begun.add(key)
        self.tell(folder, AttemptReport(key, Assigned("w1", ("GPU-1",), "/log", now)))
        self.tell(folder, AttemptReport(key, Started(1, now, (NodeGpu("lab", NODE, "0").id,))))
        return True

    def end(self, job_id: int, code: int = 0) -> None:
        key = self.key(job_id)
        self.tell(self._run_orders()[key], AttemptReport(key, Exited(1, code, 0, self.clock())))

    def lose(self, job_id: int) -> None:
        folder = self._run_orders()[self.key(job_id)]
        for tag, other in self.pilots.items():
            if other.path == folder.path:
                self.slurm.tasks[tag, 0].state = "NODE_FAIL"

    def stops(self, job_id: int) -> list[tuple[float, int]]:
        orders = (order for _, order in self.orders() if isinstance(order, Stop))
        return [(order.grace, order.signal) for order in orders if order.job == job_id]

    def obey(self) -> None:
        for folder, order in self.orders():
            if isinstance(order, Stop | Recall):
                self._obey(folder, order)

    def _obey(self, folder: PilotFolder, order: Stop | Recall) -> None:
        key, now = self.key(order.job), self.clock()
        if key not in self._begun:
            folder.claim_as(key)
            self.tell(folder, AttemptReport(key, Returned(0, now)))
        elif isinstance(order, Stop):
            self.tell(folder, AttemptReport(key, Exited(1, STOPPED, 15, now, why="stopped")))

    def tell(self, folder: PilotFolder, event: PilotEvent) -> None:
        folder.report([event])


CROWD_GPUS = 4
"""GPUs of each pilot in a crowd."""


class PlayedPilot:
    """One of many pilots: it takes what it was ordered since its last turn, and starts as much as it has GPUs."""

    def __init__(self, folder: PilotFolder) -> None:
        self.folder = folder
        self.running: deque[str] = deque()
        self._waiting: deque[str] = deque()
        self._offset = 0

    def end(self, count: int, now: float) -> int:
        """End the oldest of its jobs, begin with others, and say so; how many it ended."""
        self._take_orders()
        events: list[PilotEvent] = []
        ended = [self.running.popleft() for _ in range(min(count, len(self.running)))]
        events += [AttemptReport(key, Exited(1, 0, 0, now)) for key in ended]
        while self._waiting and len(self.running) < CROWD_GPUS:
            self.running.append(self._waiting.popleft())
            events += self._started(self.running[-1], now)
        if events:
            self.folder.report(events)
        return len(ended)

    def end_all(self, now: float) -> int:
        """Begin and end all that it was given."""
        self._take_orders()
        begun, new = len(self.running), list(self._waiting)
        events = [event for key in new for event in self._started(key, now)]
        events += [AttemptReport(key, Exited(1, 0, 0, now)) for key in (*self.running, *new)]
        self.running.clear()
        self._waiting.clear()
        if events:
            self.folder.report(events)
        return begun + len(new)

    def _started(self, key: str, now: float) -> list[PilotEvent]:
        place = NodeGpu("lab", NODE, "0").id
        return [
            AttemptReport(key, Assigned("w1", ("GPU-1",), "/log", now)),
            AttemptReport(key, Started(1, now, (place,))),
        ]

    def _take_orders(self) -> None:
        orders, self._offset = self.folder.read_orders(self._offset)
        self._waiting += [
            attempt_key(order.job.id, order.job.attempts + 1) for order in orders if isinstance(order, RunJob)
        ]


class PilotCrowd(EngineOnFakeSlurm):
    """Many pilots with jobs that end soon; a turn of the head takes no time unless a test lets it pass."""

    def __init__(self, directory: Path, pilots: int, waiting: int, **spec: object) -> None:
        """All pilots have begun and have as much to do as they are given at first; `waiting` more jobs wait."""
        super().__init__(directory, ClusterSettings(pilots="always", pilots_max=pilots, pilot_time=1e6))
        self.pilots: list[PlayedPilot] = []
        self.add(waiting + 3 * CROWD_GPUS * pilots, **spec)  # type: ignore[arg-type]
        while len(self.pilots) < pilots:
            self.clock.pass_seconds(1.0)
            self.turn()
            self._begin_pilots()
        while any(len(pilot.running) < CROWD_GPUS for pilot in self.pilots):
            self.settle(1.0)
            self.end(self.pilots, 0)
        self.settle(120.0)

    def _begin_pilots(self) -> None:
        for tag in [tag for tag, _ in self.slurm.tasks][len(self.pilots) :]:
            folder = PilotFolder(self.files.state / tag.rpartition("/")[2])
            assert folder.claim(OWN_CLAIM)
            self.slurm.run(tag)
            folder.report([PilotReady(NODE, CROWD_GPUS)])
            self.pilots.append(PlayedPilot(folder))

    def settle(self, seconds: float) -> None:
        """Let time pass, and the head do what is due then: also what Slurm's answers call for."""
        self.clock.pass_seconds(seconds)
        self.turn(6)

    def end(self, pilots: Iterable[PlayedPilot], count: int = 1) -> int:
        """Let pilots end jobs and begin with others; how many have ended."""
        return sum(pilot.end(count, self.clock()) for pilot in pilots)
