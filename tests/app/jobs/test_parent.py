"""Whether this process runs inside a job, and the devices of that job."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from stoker.app.jobs.parent import Parent, find_parent
from stoker.core.errors import Impossible
from stoker.core.parent import VARIABLE, ParentAllocation, ParentGpu
from stoker.store.paths import Paths

NAMED = (ParentGpu("2", "2", "name:2"), ParentGpu("5", "5", "name:5"))
SIMULATED = (ParentGpu("1", "1", "sim:1", 10, 24),)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a worker."""
    (tmp_path / "w-1").mkdir()
    (tmp_path / "w-1" / "lock").touch()
    return tmp_path / "w-1"


def environment(folder: Path, gpus: tuple[ParentGpu, ...] = NAMED) -> dict[str, str]:
    """What a job finds."""
    return {VARIABLE: ParentAllocation("12", str(folder), gpus).text}


class TestFinding:
    """The variable counts only below a living worker."""

    def test_below_the_worker(self, folder: Path) -> None:
        """The worker, or the process itself, has the lock open."""
        with (folder / "lock").open():
            parent = find_parent(environment(folder))
            assert parent is not None
            assert parent.worker == "w-1"
            assert parent.ledger == folder / "ledger"
            assert parent.ledger.is_dir()

    def test_elsewhere(self, folder: Path) -> None:
        """A shell that inherited the variable from a job is not in that job, also where its worker is gone."""
        assert find_parent(environment(folder)) is None
        assert find_parent(environment(folder / "gone")) is None
        assert find_parent({}) is None

    def test_simulated_gpus_inside_a_real_job(self, folder: Path) -> None:
        """Are a machine of their own; those of a simulated job are that job's."""
        with (folder / "lock").open():
            assert find_parent(environment(folder), Paths(folder / "host-simulated")) is None
            assert find_parent(environment(folder, SIMULATED), Paths(folder / "host-simulated")) is not None


class TestDevices:
    """The parent's GPUs by the names that users give them."""

    def test_declared(self) -> None:
        """Labels are what the user wrote, all else is the parent's."""
        parent = Parent(ParentAllocation("12", "/w", NAMED), 1, {})
        devices = parent.declare(["0", "1", "0,1", ""]).snapshot(0.0).devices
        assert [device.label for device in devices] == ["0", "1", "0,1", ""]
        assert [device.visible for device in devices] == ["2", "5", "2,5", ""]
        assert [device.claims for device in devices] == [("name:2",), ("name:5",), ("name:2", "name:5"), ()]
        assert [device.share for device in devices] == [2, 2, 2, 1]

    def test_without_a_choice(self) -> None:
        """All of them, in the parent's order."""
        parent = Parent(ParentAllocation("12", "/w", NAMED), 1, {})
        assert [device.label for device in parent.devices().snapshot(0.0).devices] == ["2", "5"]
        assert [device.label for device in parent.devices(["5"]).snapshot(0.0).devices] == ["5"]
        assert parent.numbers([5]) == (1,)
        assert parent.visible == "2,5"
        with pytest.raises(Impossible):
            parent.devices(["7"])

    def test_simulated(self, tmp_path: Path) -> None:
        """Those of the parent's own simulator, with the reserved memory as the total."""
        variables = {"STOKER_SIM": "2x24G", "STOKER_SIM_DIR": str(tmp_path)}
        parent = Parent(ParentAllocation("12", "/w", SIMULATED), 1, variables)
        with contextlib.closing(parent.devices()) as devices:
            snapshot = devices.snapshot(time.time())
            (device,) = snapshot.devices
            assert (device.id, device.memory, device.whole) == ("SIM-1", 10, 24)
            assert list(snapshot.readings) == ["SIM-1"]
            assert devices.variables == variables
