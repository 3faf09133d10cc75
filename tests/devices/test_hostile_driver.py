"""Whatever the driver says, the engine lives and gives no GPU away twice."""

from __future__ import annotations

import os
from unittest import mock

import msgspec
from hypothesis import given

from stoker.core.device import Account, Device, Process, Reading, Snapshot
from stoker.core.planner.plan import plan
from stoker.core.planner.reasons import sentence
from stoker.core.settings import Policy
from stoker.devices.nvidia import NvidiaDevices, ProbeAnswer
from support.build import GIB, a_job, a_need, a_queue
from support.hostile import hostile, mutated

NOW = 1000.0


def a_card(number: int) -> Device:
    uuid = f"GPU-{number}"
    return Device(uuid, str(number), uuid, (uuid,), "nvidia", model="A100", memory=40 * GIB, near=("GPU-0",))


PROCESS = Process(4242, 3 * GIB, "alice", "python train.py")
READINGS = {
    "GPU-0": Reading(0, 0, 30, 50.0),
    "GPU-1": Reading(3 * GIB, 90, 70, 300.5, (PROCESS,), accounts=(Account(4242, 3 * GIB, 90),)),
    "GPU-2": Reading(problem="lost"),
}
VALID = msgspec.json.encode(ProbeAnswer(Snapshot(NOW, tuple(map(a_card, range(3))), READINGS, "a note")))


@hostile
@given(mutated(VALID))
def test_answers(answer: bytes) -> None:
    """An answer that cannot be read is no answer; one that can be leads to a plan and to sentences."""
    with mock.patch.multiple("stoker.devices.nvidia._Probe", ended=lambda _: False, start=lambda _: None):
        devices = NvidiaDevices()
        try:
            os.write(devices._probe._answers_end, answer.replace(b"\n", b" ")[:60_000] + b"\n")
            snapshot = devices.snapshot(NOW)
        finally:
            devices.close()
    jobs = [a_job(1), a_job(2, a_need(2)), a_job(3, a_need(gib=6)), a_job(4, a_need(gib=6)), a_job(5, a_need(gib=30))]
    decided = plan(a_queue(*jobs), [], snapshot, [], Policy(), NOW)
    for job in jobs:
        reason = decided.reason(job)
        assert reason is None or sentence(reason)
    names = {device.id: device.claims or (device.id,) for device in snapshot.devices}
    exclusive = [
        name
        for start in decided.starts
        if start.resources.memory is None
        for device in start.devices
        for name in names[device]
    ]
    assert len(exclusive) == len(set(exclusive))
