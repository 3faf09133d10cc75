"""Finding out which devices to work with, with the stand-in driver, without one, and with a broken one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from stoker.core.device import Snapshot, resolve
from stoker.core.errors import Impossible, UsageError
from stoker.devices.detect import DeclaredDevices, NoDevices, Subset, known_names, simulate
from support.build import simulated
from support.nvml import DRIVER_NOT_LOADED, Bench, FakeGpu, FakeMachine
from support.wait import ending, line_from, wait_until

TWO = FakeMachine((FakeGpu("GPU-aaaa-1"), FakeGpu("GPU-aabb-2")))
UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
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
def bench(bench: Bench) -> Bench:
    """A machine with two GPUs."""
    bench.write(TWO)
    return bench


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
            "known devices: 0, 1",
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


class TestDeclared:
    """Devices that are only names given by the user."""

    @pytest.mark.parametrize(
        ("words", "ids", "claims", "share"),
        [
            (["2", "0", UUID], ["2", "0", UUID], ["name:2", "name:0", f"name:{UUID}"], [1, 1, 1]),
            # A word that is listed again is a further slot with an id of its own, and shares the claim.
            (["0", "0", "1", "0"], ["0", "0#2", "1", "0#3"], ["name:0", "name:0", "name:1", "name:0"], [3, 3, 1, 3]),
            (["0", "0", "0#2"], ["0", "0#3", "0#2"], ["name:0", "name:0", "name:0#2"], [2, 2, 1]),
            # A slot of several GPUs claims each of them once, and may be held as often as its most listed GPU.
            (["0,1"], ["0,1"], ["name:0 name:1"], [1]),
            (["0,0, 0", "1,"], ["0,0, 0", "1,"], ["name:0", "name:1"], [1, 1]),
            (["0", "0,1", "1"], ["0", "0,1", "1"], ["name:0", "name:0 name:1", "name:1"], [2, 2, 2]),
            # Blanks are seen by the job, but not by the ledger.
            (["1", " 1"], ["1", " 1"], ["name:1", "name:1"], [2, 2]),
            # The empty word claims nothing, may be listed often, and has an id that can be typed.
            (["", ""], ["none", "none#2"], ["", ""], [1, 1]),
        ],
    )
    def test_slots(self, words: list[str], ids: list[str], claims: list[str], share: list[int]) -> None:
        """There is one device per word in the listed order, and a job sees the word exactly as it was given."""
        devices = DeclaredDevices(words).snapshot(0.0).devices
        assert [device.visible for device in devices] == [device.label for device in devices] == words
        assert [device.id for device in devices] == ids
        assert [" ".join(device.claims) for device in devices] == claims
        assert [device.share for device in devices] == share

    def test_known_words_are_claimed_by_uuid(self) -> None:
        """Index and prefix of one GPU share its claim; a word that the driver does not know keeps its name."""
        words = ["0", "GPU-8932f937", UUID, "7"]
        devices = DeclaredDevices(words, dict.fromkeys(words[:3], UUID)).snapshot(0.0).devices
        assert [device.claims for device in devices] == [(UUID,), (UUID,), (UUID,), ("name:7",)]
        assert [device.share for device in devices] == [3, 3, 3, 1]

    def test_nothing_is_measured(self) -> None:
        """A declared device has no memory and no reading, so nothing is packed on it."""
        snapshot = DeclaredDevices(["0"]).snapshot(12.5)
        assert (snapshot.at, snapshot.readings) == (12.5, {})
        assert not snapshot.devices[0].measured
        assert snapshot.devices[0].memory is None

    def test_no_words_at_all_are_refused(self) -> None:
        """A run without any device is a mistake in the command."""
        with pytest.raises(UsageError) as caught:
            DeclaredDevices([])
        assert "for example" in caught.value.hint


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
        with pytest.raises(Impossible, match="more than one device starts with 'SIM'"):
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


_LOOKER = """
import json, sys, time
from stoker.devices.detect import LateDevices
devices = LateDevices(sys.argv[1:], "no GPU found: at first", soonest=0.1)
for _ in sys.stdin:
    seen = devices.snapshot(time.time())
    print(json.dumps([[device.id for device in seen.devices], seen.note]), flush=True)
devices.close()
"""


@pytest.fixture
def unloaded(bench: Bench) -> Bench:
    """A machine whose driver is not loaded yet."""
    bench.write(FakeMachine(init=DRIVER_NOT_LOADED))
    return bench


class Looker:
    """A process that looks at the devices when it is asked to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._ids: list[str] = []
        self._note = ""

    def look_for(self, wanted: str) -> tuple[list[str], str]:
        """Let it look until it sees a note, or a number of devices."""
        wait_until(lambda: self._sees(wanted))
        return self._ids, self._note

    def _sees(self, wanted: str) -> bool:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._ids, self._note = json.loads(line_from(self._process.stdout))
        return wanted in (self._note, str(len(self._ids)))


@pytest.fixture
def looker(unloaded: Bench, request: pytest.FixtureRequest) -> Iterator[Looker]:
    """A process beside the stand-in driver; the parameters are the devices that the user named."""
    command = [sys.executable, "-c", _LOOKER, *getattr(request, "param", [])]
    process = subprocess.Popen(
        command, env=unloaded.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with ending(process):
        yield Looker(process)


def test_a_driver_that_comes_late_is_found(unloaded: Bench, looker: Looker) -> None:
    """Until then the reason is the real one, and it changes with what is found."""
    not_loaded = "no GPU found: libnvidia-ml.so.1 is there, but the NVIDIA driver is not loaded"
    assert looker.look_for(not_loaded) == ([], not_loaded)
    unloaded.write(FakeMachine())
    nothing = "no GPU found: the NVIDIA driver is loaded, but shows no usable GPU"
    assert looker.look_for(nothing) == ([], nothing)
    unloaded.write(TWO)
    assert looker.look_for("2") == (["GPU-aaaa-1", "GPU-aabb-2"], "")


@pytest.mark.parametrize("looker", [["1"]], indirect=True)
def test_of_late_devices_only_the_named_are_used(unloaded: Bench, looker: Looker) -> None:
    """As if they had been there from the start."""
    unloaded.write(TWO)
    assert looker.look_for("1") == (["GPU-aabb-2"], "")


@pytest.mark.parametrize("looker", [["7"]], indirect=True)
def test_late_devices_without_the_named_are_none(unloaded: Bench, looker: Looker) -> None:
    """And the reason says which there are."""
    unloaded.write(TWO)
    wanted = "no device '7' on this machine; known devices: 0, 1"
    assert looker.look_for(wanted) == ([], wanted)
