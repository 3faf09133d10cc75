"""The Slurm site keeps what every site promises, in direct mode and with pilots."""

from __future__ import annotations

from pathlib import Path

import pytest

from features.slurm.worlds import DirectWorld, PilotWorld
from sites.contract import SiteContract, SiteWorld


class TestDirect(SiteContract):
    """Each attempt is a task of Slurm's; the test plays the nodes."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> SiteWorld:
        return DirectWorld(tmp_path)


class TestPilots(SiteContract):
    """Attempts run in pilots, which the test plays."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> SiteWorld:
        return PilotWorld(tmp_path)
