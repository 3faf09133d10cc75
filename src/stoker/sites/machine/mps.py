"""Attempts that are clients of MPS: which of them wait for a daemon, and what they are given."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from stoker.core.device import Device
from stoker.core.job import Job, resources_of
from stoker.core.launch import attempt_key
from stoker.core.spec import amount_on
from stoker.devices.mps.client import Client, Inquiry
from stoker.devices.mps.control import PROGRAM
from stoker.devices.mps.daemon import MpsTrouble, client_variables, place_of
from stoker.runner.interface import Workers
from stoker.sites.machine.allocations import Allocation

POLL_INTERVAL = 0.02
"""Seconds between two checks whether a daemon is ready."""


class Served(NamedTuple):
    """Variables of an attempt that is a client of MPS, and its program to terminate; empty for others."""

    variables: Mapping[str, str] = {}
    mps_terminate: tuple[str, ...] = ()


PLAIN = Served()


class MpsClients:
    """The daemons that are being made ready, by the attempts that wait for them."""

    def __init__(self, workers: Workers) -> None:
        self.exclusive = False
        """Whether a GPU's compute mode is to be exclusive while it has a daemon."""
        self._note = ""
        self._workers = workers
        self._inquiries: dict[str, Inquiry] = {}

    @property
    def trouble(self) -> str:
        """Why a daemon takes long to start; empty where all goes well."""
        troubles = (inquiry.trouble for inquiry in self._inquiries.values())
        return next((f"{trouble.message}; {trouble.hint}" for trouble in troubles if trouble), "")

    def news(self) -> str:
        """What the user should know of a daemon that was started; returned once."""
        note, self._note = self._note, ""
        return note

    @property
    def busy(self) -> bool:
        """Whether attempts wait."""
        return bool(self._inquiries)

    def serve(self, job: Job, allocation: Allocation, environment: Mapping[str, str], now: float) -> Served | None:
        """What the attempt is given; None while it has to wait. MpsTrouble is raised where no daemon will serve it."""
        key = attempt_key(job.id, job.attempts)
        try:
            if key not in self._inquiries:
                self._inquiries[key] = self._inquire(allocation, environment)
            client = self._inquiries[key].answer(now)
        except MpsTrouble:
            self.forget(job)
            raise
        if client is None:
            return None
        del self._inquiries[key]
        return self._admitted(client, job, allocation, environment)

    def forget(self, job: Job) -> None:
        """Let the job's attempt wait no more."""
        if inquiry := self._inquiries.pop(attempt_key(job.id, job.attempts), None):
            inquiry.close()

    def close(self) -> None:
        """Wait for no daemon any more."""
        for inquiry in self._inquiries.values():
            inquiry.close()
        self._inquiries.clear()

    def _inquire(self, allocation: Allocation, environment: Mapping[str, str]) -> Inquiry:
        device = _device(allocation)
        program = shutil.which(PROGRAM, path=environment.get("PATH")) or shutil.which(PROGRAM)
        if program is None:
            raise MpsTrouble(f"{PROGRAM} is not found", "install it, or run the job without --mps")
        place = place_of(device.id, os.environ)
        return Inquiry(program, place, device.visible, environment, exclusive=self.exclusive)

    def _admitted(self, client: Client, job: Job, allocation: Allocation, environment: Mapping[str, str]) -> Served:
        """Pass the membership of the daemon on to the worker."""
        self._note = client.note or self._note
        if allocation.mps_member:
            os.close(client.membership)
        else:
            allocation.mps_member = True
            self._workers.give_lease(allocation.worker, "", client.membership)
        resources, own = resources_of(job), {**environment, **dict(job.spec.extra_env)}
        amount = amount_on(resources, allocation.devices[0])
        return Served(client_variables(client.place, resources.mps or 100, amount, own), client.mps_terminate)


def _device(allocation: Allocation) -> Device:
    if len(allocation.devices) != 1:
        raise MpsTrouble("a client of MPS belongs to the daemon of one GPU", "run the job without --mps, or with -G 1")
    (device,) = allocation.devices
    if device.kind == "declared":
        raise MpsTrouble(f"MPS needs an NVIDIA GPU, and {device.label} is only a name", "run the job without --mps")
    return device
