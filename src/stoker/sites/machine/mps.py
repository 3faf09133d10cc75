"""MPS daemons for attempts: which attempts wait for one, and their variables once it is ready."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from stoker.core.device import Device
from stoker.core.job import Job, resources_of
from stoker.core.launch import attempt_key
from stoker.core.spec import amount_on
from stoker.devices.mps.client import Client, PendingClient, client_variables
from stoker.devices.mps.daemon import PROGRAM, MpsTrouble, daemon_paths
from stoker.runner.interface import Workers
from stoker.sites.machine.allocations import Allocation

POLL_INTERVAL = 0.02
"""Seconds between two polls of a daemon that is not ready."""


class Served(NamedTuple):
    """Variables and commands that MPS adds to an attempt."""

    variables: Mapping[str, str] = {}
    mps_terminate: tuple[str, ...] = ()


PLAIN = Served()


class MpsClients:
    """Daemons that are being made ready, by the attempts that wait for them."""

    def __init__(self, workers: Workers) -> None:
        self.exclusive = False
        """Whether to make a GPU's compute mode exclusive while it has a daemon."""
        self._note = ""
        self._workers = workers
        self._pending: dict[str, PendingClient] = {}

    @property
    def trouble(self) -> str:
        """Why an attempt still waits for its daemon; empty if none failed to start."""
        troubles = (pending.trouble for pending in self._pending.values())
        return next((str(trouble) for trouble in troubles if trouble), "")

    def news(self) -> str:
        """A note on a daemon that was made ready, returned once."""
        note, self._note = self._note, ""
        return note

    @property
    def busy(self) -> bool:
        return bool(self._pending)

    def serve(self, job: Job, allocation: Allocation, environment: Mapping[str, str], now: float) -> Served | None:
        """Variables for the attempt; None while it has to wait. Raises MpsTrouble if there will be no daemon for it."""
        key = attempt_key(job.id, job.attempts)
        try:
            if key not in self._pending:
                self._pending[key] = self._request(allocation, environment)
            client = self._pending[key].poll(now)
        except MpsTrouble:
            self.forget(job)
            raise
        if client is None:
            return None
        del self._pending[key]
        return self._admitted(client, job, allocation, environment)

    def forget(self, job: Job) -> None:
        """The job's attempt no longer waits."""
        if pending := self._pending.pop(attempt_key(job.id, job.attempts), None):
            pending.close()

    def close(self) -> None:
        for pending in self._pending.values():
            pending.close()
        self._pending.clear()

    def _request(self, allocation: Allocation, environment: Mapping[str, str]) -> PendingClient:
        device = _device(allocation)
        program = shutil.which(PROGRAM, path=environment.get("PATH")) or shutil.which(PROGRAM)
        if program is None:
            raise MpsTrouble(f"{PROGRAM} is not found", "install it, or run the job without --mps")
        paths = daemon_paths(device.id, os.environ)
        return PendingClient(program, paths, device.visible, environment, exclusive=self.exclusive)

    def _admitted(self, client: Client, job: Job, allocation: Allocation, environment: Mapping[str, str]) -> Served:
        """Hand the client's lock over to the worker, and keep none here."""
        self._note = client.note or self._note
        if allocation.mps_member:
            os.close(client.lock)
        else:
            allocation.mps_member = True
            self._workers.give_lease(allocation.worker, "", client.lock)
        resources, own = resources_of(job), {**environment, **dict(job.spec.extra_env)}
        amount = amount_on(resources, allocation.devices[0])
        return Served(client_variables(client.paths, resources.mps or 100, amount, own), client.mps_terminate)


def _device(allocation: Allocation) -> Device:
    """The one GPU of the attempt."""
    if len(allocation.devices) != 1:
        raise MpsTrouble("an MPS client can use only one GPU", "run the job without --mps, or with -G 1")
    (device,) = allocation.devices
    if not device.supports_mps:
        raise MpsTrouble(f"MPS needs an NVIDIA GPU, and {device.label} is only a name", "run the job without --mps")
    return device
