"""The files between the head and a pilot: orders one way, events the other, each with one writer.

A pilot is a job of Slurm's in which an ordinary engine runs on the GPUs that Slurm gave it. It claims every attempt
that it takes, so that the head can tell what a dead pilot had taken from what it never saw.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from stoker.core.job import Event, Job
from stoker.features.slurm.guard import EVENTS
from stoker.features.slurm.shared import CLAIMS, ERRORS, ORDERS, BundleFolder, append, sync

PLAN = "pilot.json"


class PilotPlan(Struct, frozen=True):
    """The configuration of a pilot."""

    cluster: str
    reports: str
    """Directory on the shared one for reports of jobs."""
    idle: float
    """Seconds without work after which it leaves."""
    simulated_gpus: str = ""
    """In place of those that Slurm gives."""
    ledger: str = ""
    """Directory with a ledger for each node; empty is the ledger of the node."""
    whole_node: bool = False
    """Whether it uses all GPUs of the node, as far as the ledger has them free, rather than those that Slurm gave."""
    gpus: int = 1
    """GPUs without which it is of no use."""
    files: str = ""
    """Directory of the queue on the shared one; empty if there is none."""


class RunJob(Struct, frozen=True, tag="run"):
    """Run one attempt of a job."""

    job: Job
    environment: dict[str, str] | None = None
    """The environment that the job names; None if an earlier order had it."""


class Recall(Struct, frozen=True, tag="recall"):
    """Give an attempt back that has not started."""

    job: int


class Stop(Struct, frozen=True, tag="stop"):
    """Stop the attempt of a job."""

    job: int
    note: str
    grace: float
    signal: int


class GiveWay(Struct, frozen=True, tag="give way"):
    """Let the running attempt of a job save its state and leave."""

    job: int
    to: int
    """The waiting job that gets its GPUs; 0 is any."""
    note: str


class Ping(Struct, frozen=True, tag="ping"):
    """Answer with `Alive`: Slurm does not say whether the pilot lives."""


class Leave(Struct, frozen=True, tag="leave"):
    """Start nothing more, give back what waits, and end when nothing runs."""


class CheckOrder(Struct, frozen=True, tag="check"):
    """Kill what is left of another allocation on the node, and say in its folder that nothing is."""

    allocation: str
    """The mark of its processes (`runner.processes.ALLOCATION`)."""
    path: str
    line: str
    """The line to append to that file."""


class PilotReady(Struct, frozen=True, tag="ready"):
    """The pilot works."""

    node: str
    gpus: int


class AttemptReport(Struct, frozen=True, tag="report"):
    """An event of an attempt."""

    attempt: str
    event: Event


class IdleReport(Struct, frozen=True, tag="idle"):
    """The GPUs of a running attempt are not used, or are used again."""

    attempt: str
    seconds: float | None
    """For how long; None if they are used."""


class Alive(Struct, frozen=True, tag="alive"):
    """The pilot lives."""


class Leaving(Struct, frozen=True, tag="leaving"):
    """The pilot takes nothing more."""


class Over(Struct, frozen=True, tag="over"):
    """No process of the pilot is left, written by the process that guarded it, or by a check of its node."""


PilotOrder = RunJob | Recall | Stop | GiveWay | Ping | Leave | CheckOrder
PilotEvent = PilotReady | AttemptReport | IdleReport | Alive | Leaving | Over
Message = TypeVar("Message")


@cache
def _orders() -> msgspec.json.Decoder[PilotOrder]:
    return msgspec.json.Decoder(PilotOrder)


@cache
def _events() -> msgspec.json.Decoder[PilotEvent]:
    return msgspec.json.Decoder(PilotEvent)


class PilotFolder(BundleFolder):
    """The folder of a pilot."""

    def make_pilot(self, plan: PilotPlan) -> None:
        for name in (CLAIMS, ERRORS):
            os.makedirs(self.at(name), mode=0o700, exist_ok=True)
        for name in (ORDERS, EVENTS):
            os.close(os.open(self.at(name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        made = Path(self.at(f"{PLAN}.new"))
        made.write_bytes(msgspec.json.encode(plan))
        made.rename(self.at(PLAN))
        sync(self.path)

    @property
    def is_complete(self) -> bool:
        return os.path.exists(self.at(PLAN))

    def plan(self) -> PilotPlan:
        return msgspec.json.decode(Path(self.at(PLAN)).read_bytes(), type=PilotPlan)

    def give(self, orders: list[PilotOrder]) -> None:
        append(self.at(ORDERS), b"".join(msgspec.json.encode(order) + b"\n" for order in orders))

    def report(self, events: list[PilotEvent]) -> None:
        append(self.at(EVENTS), b"".join(msgspec.json.encode(event) + b"\n" for event in events))

    def read_orders(self, offset: int) -> tuple[list[PilotOrder], int]:
        return self._read(ORDERS, offset, _orders())

    def read_events(self, offset: int) -> tuple[list[PilotEvent], int]:
        return self._read(EVENTS, offset, _events())

    def claim_as(self, name: str) -> bool:
        """Claim an attempt; `sync_claims` makes it last."""
        try:
            Path(self.at(CLAIMS, name)).mkdir(mode=0o700)
        except FileExistsError:
            return False
        return True

    def sync_claims(self) -> None:
        sync(self.at(CLAIMS))

    def _read(self, name: str, offset: int, decoder: msgspec.json.Decoder[Message]) -> tuple[list[Message], int]:
        with open(self.at(name), "rb") as file:
            file.seek(offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        return list(_decoded(whole, decoder)), offset + len(whole)


def _decoded(lines: bytes, decoder: msgspec.json.Decoder[Message]) -> Iterator[Message]:
    """The messages of whole lines, without one that its writer was killed in."""
    for line in lines.splitlines():
        with contextlib.suppress(msgspec.DecodeError):
            yield decoder.decode(line)
