"""Attempts that are clients of MPS: waiting for their daemon, served, refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from stoker.core.job import Job, Starting
from stoker.core.spec import Resources
from stoker.devices.mps.client import Client, PendingClient
from stoker.devices.mps.daemon import DaemonPaths, MpsTrouble
from stoker.sites.machine.allocations import Allocation
from stoker.sites.machine.mps import MpsClients
from support.build import GIB, a_job, declared, simulated
from support.fakes import START, FakeRunner

RESOURCES = Resources(memory=4 * GIB, mps=50)
GPUS = simulated(24, 24)


class FakePendingClient:
    """A daemon that is ready when a test says so."""

    def __init__(self) -> None:
        self.trouble: MpsTrouble | None = None
        self.client: Client | None = None
        self.error: MpsTrouble | None = None
        self.closed = False

    def poll(self, _: float) -> Client | None:
        if self.error:
            raise self.error
        return self.client

    def close(self) -> None:
        self.closed = True


class Clients(MpsClients):
    """With daemons of the test."""

    def __init__(self, runner: FakeRunner) -> None:
        super().__init__(runner)
        self.asked: list[FakePendingClient] = []

    def _request(self, allocation: Allocation, environment: Mapping[str, str]) -> PendingClient:
        self.asked.append(FakePendingClient())
        return self.asked[-1]  # type: ignore[return-value]


def a_client(note: str = "") -> Client:
    return Client(DaemonPaths("/tmp/mps"), os.open(os.devnull, os.O_RDONLY), ("terminate",), note)


def a_job_on_mps(job_id: int = 1) -> Job:
    return a_job(job_id, RESOURCES, state=Starting(1, "w1", ("0",), START))


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


@pytest.fixture
def allocation() -> Allocation:
    return Allocation("w1", RESOURCES, GPUS[:1])


def test_an_attempt_waits_until_its_daemon_is_ready(runner: FakeRunner, allocation: Allocation) -> None:
    """Then it gets the variables of a client, and the worker keeps the daemon alive."""
    clients, job = Clients(runner), a_job_on_mps()
    assert clients.serve(job, allocation, {}, START) is None
    assert clients.busy
    clients.asked[0].client = a_client("MPS was started")
    served = clients.serve(job, allocation, {}, START)
    assert served is not None
    assert (served.mps_terminate, clients.busy, len(clients.asked)) == (("terminate",), False, 1)
    assert served.variables["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/mps/pipe"
    assert served.variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert served.variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert runner.called("give_lease") == [["w1", ""]]
    assert [clients.news(), clients.news()] == ["MPS was started", ""]
    runner.close()


def test_a_worker_keeps_one_membership(runner: FakeRunner, allocation: Allocation) -> None:
    """The descriptor of the second attempt is closed."""
    clients = Clients(runner)
    descriptors = []
    for job_id in (1, 2):
        clients.serve(a_job_on_mps(job_id), allocation, {}, START)
        clients.asked[-1].client = client = a_client()
        descriptors.append(client.lock)
        assert clients.serve(a_job_on_mps(job_id), allocation, {}, START) is not None
    assert len(runner.called("give_lease")) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[1])
    runner.close()


def test_a_daemon_that_will_not_come_is_trouble(runner: FakeRunner, allocation: Allocation) -> None:
    """The attempt waits no more."""
    clients, job = Clients(runner), a_job_on_mps()
    clients.serve(job, allocation, {}, START)
    clients.asked[0].trouble = MpsTrouble("slow", "wait")
    assert clients.trouble == "slow; wait"
    clients.asked[0].error = MpsTrouble("refused", "ask the administrator")
    with pytest.raises(MpsTrouble):
        clients.serve(job, allocation, {}, START)
    assert (clients.busy, clients.asked[0].closed) == (False, True)


def test_a_cancelled_attempt_waits_no_more(runner: FakeRunner, allocation: Allocation) -> None:
    """Nor does any when the engine closes."""
    clients = Clients(runner)
    for job_id in (1, 2):
        clients.serve(a_job_on_mps(job_id), allocation, {}, START)
    clients.forget(a_job_on_mps(1))
    clients.forget(a_job_on_mps(1))
    assert [inquiry.closed for inquiry in clients.asked] == [True, False]
    clients.close()
    assert (clients.busy, clients.asked[1].closed) == (False, True)


@pytest.mark.parametrize(
    ("devices", "words"),
    [(GPUS, "only one GPU"), (declared("0"), "needs an NVIDIA GPU"), (GPUS[:1], "is not found")],
)
def test_what_cannot_be_served(
    runner: FakeRunner, devices: tuple[object, ...], words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Several GPUs, a device that is only a name, or a machine without MPS."""
    monkeypatch.setenv("PATH", str(tmp_path))
    allocation = Allocation("w1", RESOURCES, devices)  # type: ignore[arg-type]
    with pytest.raises(MpsTrouble, match=words):
        MpsClients(runner).serve(a_job_on_mps(), allocation, {"PATH": str(tmp_path)}, START)
