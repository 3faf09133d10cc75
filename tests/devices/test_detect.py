"""Finding out which devices to work with, with the stand-in driver, without one, and with a broken one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.device import Snapshot, resolve
from stoker.core.errors import Impossible
from stoker.devices.detect import DeclaredDevices, NoDevices, Subset, known_names, simulate
from support.build import simulated
from support.nvml import DRIVER_NOT_LOADED, Bench, FakeGpu, FakeMachine, compiled

TWO = FakeMachine((FakeGpu("GPU-aaaa-1"), FakeGpu("GPU-aabb-2")))
MACHINE = Snapshot(0.0, simulated(24, 24))

PROGRAM = """
import json, sys
from stoker.core.errors import StokerError
from stoker.devices.detect import declare, detect
function, *words = sys.argv[1:]
try:
    devices = declare(words) if function == "declare" else detect(words, 0.0)
except StokerError as error:
    print(json.dumps([type(error).__name__, error.message, error.hint]))
else:
    seen = devices.snapshot(0.0).devices
    print(json.dumps([type(devices).__name__, [[each.label, each.visible, each.claims, each.share] for each in seen]]))
    devices.close()
"""


@pytest.fixture
def bench(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Bench:
    """A machine with two GPUs."""
    made = Bench(compiled(tmp_path_factory.getbasetemp()), tmp_path / "state")
    made.write(TWO)
    return made


@pytest.fixture
def bare(tmp_path: Path) -> Mapping[str, str]:
    """An environment in which no driver can be loaded, even if the machine has one."""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"")
    return {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}


def ask(environment: Mapping[str, str], *words: str) -> list[object]:
    """What a process with this environment finds."""
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    found: list[object] = json.loads(done.stdout)
    return found


class TestDriver:
    """Where a driver answers."""

    def test_all(self, bench: Bench) -> None:
        """Without names all of the driver's devices are taken."""
        kind, devices = ask(bench.environment, "detect")
        assert kind == "NvidiaDevices"
        assert devices == [
            ["0", "GPU-aaaa-1", ["GPU-aaaa-1"], 1],
            ["1", "GPU-aabb-2", ["GPU-aabb-2"], 1],
        ]

    def test_some(self, bench: Bench) -> None:
        """Names choose among them, in the order given, by index or by the beginning of a UUID."""
        kind, devices = ask(bench.environment, "detect", "GPU-aab", "0")
        assert kind == "Subset"
        assert devices == [
            ["1", "GPU-aabb-2", ["GPU-aabb-2"], 1],
            ["0", "GPU-aaaa-1", ["GPU-aaaa-1"], 1],
        ]

    def test_unknown_name(self, bench: Bench) -> None:
        """A name that no device has is impossible, and the devices that there are, are named."""
        assert ask(bench.environment, "detect", "7") == [
            "Impossible",
            "no device '7' on this machine",
            "there are 0, 1",
        ]

    def test_listed_twice(self, bench: Bench) -> None:
        """A device that is listed twice takes two jobs, which share its claim."""
        kind, devices = ask(bench.environment, "detect", "0", "0")
        assert kind == "DeclaredDevices"
        assert devices == [["0", "0", ["GPU-aaaa-1"], 2]] * 2

    def test_declared(self, bench: Bench) -> None:
        """Declared names stay the user's own words, and claim the devices that they mean."""
        _, devices = ask(bench.environment, "declare", "1", "GPU-aaa", "elsewhere")
        assert devices == [
            ["1", "1", ["GPU-aabb-2"], 1],
            ["GPU-aaa", "GPU-aaa", ["GPU-aaaa-1"], 1],
            ["elsewhere", "elsewhere", ["name:elsewhere"], 1],
        ]


class TestNoDriver:
    """Where there is no driver, or one that does not work."""

    def test_nothing_named(self, bare: Mapping[str, str]) -> None:
        """Without driver and names there is nothing to work with, and the hint says what can be done."""
        kind, message, hint = ask(bare, "detect")
        assert kind == "Impossible"
        assert str(message).startswith("no GPU found: ")
        assert all(option in str(hint) for option in ("--devices", "--sim", "-G 0"))

    @pytest.mark.parametrize("function", ["detect", "declare"])
    def test_named(self, bare: Mapping[str, str], function: str) -> None:
        """Names are taken as they are."""
        assert ask(bare, function, "0", "b") == [
            "DeclaredDevices",
            [["0", "0", ["name:0"], 1], ["b", "b", ["name:b"], 1]],
        ]

    @pytest.mark.parametrize("function", ["detect", "declare"])
    def test_driver_that_is_not_loaded(self, bench: Bench, function: str) -> None:
        """A library without a driver behind it is like no library."""
        bench.write(FakeMachine(init=DRIVER_NOT_LOADED))
        assert ask(bench.environment, function, "0")[0] == "DeclaredDevices"
        assert ask(bench.environment, "detect")[0] == "Impossible"


class TestSimulated:
    """Simulated devices."""

    def test_all(self, tmp_path: Path) -> None:
        """Without names all of them are taken."""
        with closing(simulate("2x24G,1x80G", str(tmp_path), [], 0.0)) as devices:
            assert [device.label for device in devices.snapshot(0.0).devices] == ["0", "1", "2"]

    def test_some(self, tmp_path: Path) -> None:
        """Names choose among them; one that is repeated counts once."""
        with closing(simulate("4x24G", str(tmp_path), ["3", "1", "3"], 0.0)) as devices:
            snapshot = devices.snapshot(5.0)
        assert [device.label for device in snapshot.devices] == ["3", "1"]
        assert snapshot.at == 5.0
        assert devices.variables["STOKER_SIM"] == "4x24G"


class TestNames:
    """Words for devices."""

    @pytest.mark.parametrize(("word", "device"), [("0", "0"), (" 1 ", "1")])
    def test_resolved(self, word: str, device: str) -> None:
        """Blanks around a word do not matter."""
        assert resolve(MACHINE, word) == device

    @pytest.mark.parametrize("word", ["", "2", "00", "cuda:0"])
    def test_unknown(self, word: str) -> None:
        """Anything else is impossible."""
        with pytest.raises(Impossible, match="no device"):
            resolve(MACHINE, word)

    def test_ambiguous(self, tmp_path: Path) -> None:
        """The beginning of several ids is refused, and is no name of any of them."""
        with closing(simulate("2x1G", str(tmp_path), [], 0.0)) as devices:
            snapshot = devices.snapshot(0.0)
        with pytest.raises(Impossible, match="more than one device begins with 'SIM'"):
            resolve(snapshot, "SIM")
        assert known_names(snapshot) == {"0": "SIM-0", "1": "SIM-1", "SIM-0": "SIM-0", "SIM-1": "SIM-1"}


def test_no_devices() -> None:
    """Jobs that need no GPU run on a machine that has none."""
    with closing(NoDevices()) as devices:
        assert devices.snapshot(3.0) == Snapshot(3.0, ())
        assert (devices.fileno(), devices.variables) == (-1, {})


def test_device_that_vanishes() -> None:
    """A chosen device that the driver no longer shows is not in the snapshot."""
    with closing(Subset(DeclaredDevices(["a", "b"]), ["b", "gone"])) as devices:
        assert [device.id for device in devices.snapshot(0.0).devices] == ["b"]
        assert devices.fileno() == -1
