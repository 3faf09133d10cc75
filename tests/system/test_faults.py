"""Every fault of the table once, each on a queue of its own: no promise is broken.

Storms and faults of a cluster are in tests of their own: test_storm, test_sweep_adaptive, test_cluster_faults and
test_cluster_pilots.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from support.faults.campaign import Campaign, is_gap
from support.faults.table import TABLE, Fault

pytestmark = pytest.mark.timeout(1500)

SEED = 1


@pytest.mark.parametrize("needs_programs", [False, True])
def test_no_fault_breaks_a_promise(tmp_path: Path, needs_programs: bool) -> None:
    """Jobs run once, keep their exit codes and end, whatever happens to engine, workers, disks, files and driver."""
    chosen = [fault for fault in TABLE.values() if bool(fault.needs) == needs_programs and not _has_own_test(fault)]
    names = [fault.name for fault in chosen if fault.usual]
    campaign = Campaign(SEED, names, directory=tmp_path)
    campaign.run()
    assert campaign.findings() == [], campaign.summary()
    assert len(campaign.done) + len(campaign.skipped) == len(names)
    assert not is_gap(campaign), campaign.skipped


def _has_own_test(fault: Fault) -> bool:
    return fault.name.startswith("storm") or "slurm" in fault.needs
