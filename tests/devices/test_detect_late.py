"""A driver that is loaded after the engine has started."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.nvml import DRIVER_NOT_LOADED, Bench, FakeGpu, FakeMachine
from support.wait import ending, line_from

_LOOKER = """
import json, sys, time
from stoker.devices.detect import LateDevices
devices = LateDevices(sys.argv[1:], "no GPU found: at first", soonest=0.1)
for line in sys.stdin:
    deadline = time.monotonic() + 30
    while True:
        seen = devices.snapshot(time.time())
        if line.strip() in (seen.note, str(len(seen.devices))) or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    print(json.dumps([[each.id for each in seen.devices], seen.note]), flush=True)
devices.close()
"""
TWO = FakeMachine((FakeGpu("GPU-aaaa-1"), FakeGpu("GPU-bbbb-2")))


@pytest.fixture
def bench(bench: Bench) -> Bench:
    """A machine whose driver is not loaded yet."""
    bench.write(FakeMachine(init=DRIVER_NOT_LOADED))
    return bench


class Looker:
    """A process that polls until it sees the expected devices."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def look_for(self, wanted: str) -> tuple[list[str], str]:
        """Wait for a note, or for a number of devices."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(wanted + "\n")
        self._process.stdin.flush()
        ids, note = json.loads(line_from(self._process.stdout))
        return ids, note


@pytest.fixture
def looker(bench: Bench, request: pytest.FixtureRequest) -> Iterator[Looker]:
    """A process beside the stand-in driver; the parameters are the devices that the user named."""
    command = [sys.executable, "-c", _LOOKER, *getattr(request, "param", [])]
    process = subprocess.Popen(command, env=bench.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with ending(process):
        yield Looker(process)


def test_a_driver_that_comes_late_is_found(bench: Bench, looker: Looker) -> None:
    """Until then the reason is the real one, and it changes with what is found."""
    not_loaded = "no GPU found: libnvidia-ml.so.1 is there, but the NVIDIA driver is not loaded"
    assert looker.look_for(not_loaded) == ([], not_loaded)
    bench.write(FakeMachine())
    nothing = "no GPU found: the NVIDIA driver is loaded, but shows no GPU that jobs could use"
    assert looker.look_for(nothing) == ([], nothing)
    bench.write(TWO)
    assert looker.look_for("2") == (["GPU-aaaa-1", "GPU-bbbb-2"], "")


@pytest.mark.parametrize("looker", [["1"]], indirect=True)
def test_of_late_devices_only_the_named_are_used(bench: Bench, looker: Looker) -> None:
    """As if they had been there from the start."""
    bench.write(TWO)
    assert looker.look_for("1") == (["GPU-bbbb-2"], "")


@pytest.mark.parametrize("looker", [["7"]], indirect=True)
def test_late_devices_without_the_named_are_none(bench: Bench, looker: Looker) -> None:
    """And the reason says which there are."""
    bench.write(TWO)
    wanted = "no device '7' on this machine; there are 0, 1"
    assert looker.look_for(wanted) == ([], wanted)
