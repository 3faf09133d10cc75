"""Checks of nodes on which attempts were lost."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stoker.core.settings import ClusterSettings
from stoker.features.slurm.cluster import SlurmFact
from stoker.features.slurm.node_checks import NodeChecks, pilot_check
from stoker.features.slurm.orders import ClusterContext
from stoker.features.slurm.shared import BundleFolder
from stoker.sites.interface import EngineJobs
from support.fakes import FakeClock

FOLDER = BundleFolder(Path("/shared/pilot7-ab-1"))
CHECK = pilot_check(FOLDER)


def checks_of(*, pilot: bool) -> NodeChecks:
    """Checks where a pilot is on each node, or none."""
    jobs, unused = cast("EngineJobs", SimpleNamespace(clock=FakeClock())), cast("Any", None)
    context = ClusterContext("lab", ClusterSettings(), jobs, unused, unused, "stoker:queue/", "7-ab", count(1))
    return NodeChecks(context, lambda _node, _check: pilot)


@pytest.mark.parametrize("pilot", [True, False])
def test_a_pilot_on_the_node_makes_the_check(pilot: bool) -> None:
    """Where there is none, one job of Slurm's makes it, on that node."""
    checks = checks_of(pilot=pilot)
    for _ in range(3):
        assert not checks.is_clear(CHECK, "n1", FOLDER)
    jobs = list(checks.all.values())
    assert len(jobs) == (not pilot)
    assert all("--nodelist=n1" in job.options for job in jobs)


def test_a_refused_check_says_why() -> None:
    """Else users would see jobs that wait for ever for no reason."""
    checks = checks_of(pilot=False)
    assert not checks.is_clear(CHECK, "n1", FOLDER)
    assert not checks.refuse("pilot7-ab-1", "Invalid account")
    [name] = checks.all
    assert checks.refuse(name, "Invalid account")
    checks.judge({}, 0.0)
    waits = "jobs lost on n1 wait for a check there that nothing of them is left"
    assert checks.trouble == f"{waits}; Slurm refused it: Invalid account"
    checks.judge({}, 0.0)
    assert checks.trouble == ""


def test_a_check_that_is_over_is_forgotten() -> None:
    """By an answer to a question that was asked after its submit."""
    checks = checks_of(pilot=False)
    assert not checks.is_clear(CHECK, "n1", FOLDER)
    [job] = checks.all.values()
    facts = {(job.tag, 0): SlurmFact("COMPLETED")}
    for submitted_at, left in ((None, 1), (5.0, 1), (4.0, 0)):
        job.submitted_at = submitted_at
        checks.judge(facts, 5.0)
        assert len(checks.all) == left


def test_slurm_is_believed_where_it_keeps_processes_in_cgroups() -> None:
    """As it is of an attempt that never had a node."""
    checks = checks_of(pilot=False)
    assert checks.is_clear(CHECK, "", FOLDER)
    checks.trusts_slurm = True
    assert checks.is_clear(CHECK, "n1", FOLDER)
    assert not checks.all
