"""The campaign draws by its seed, calls findings by their kind, and the documentation names every fault."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.faults.campaign import KINDS, Campaign, kind_of, run_round
from support.faults.table import TABLE, Fault
from support.storm.background import QueueStorm

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"


def test_the_seed_decides_what_is_drawn() -> None:
    """The same seed draws the same faults in the same order, each of them once."""
    names = ["kill-engine", "kill-worker", "reboot", "two-engines"]
    drawn = [[fault.name for fault, _ in Campaign(seed, names)._drawn()] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(sorted(each) == names for each in drawn)


@pytest.mark.parametrize(
    ("finding", "kind"),
    [
        ("start of job (1, 1) 2 times", "double run"),
        ("double run: the kernel saw attempt 1.2 beside another run", "double run"),
        ("job 9 was submitted and is not there", "lost"),
        ("attempt 7.1 refused with 126, signal 0, as no attempt should", "wrong code"),
        ("stuck: jobs [3] never came to their end", "stuck"),
        ("left over: process 12", "leak"),
        ("an engine said: ValueError", "other"),
    ],
)
def test_a_finding_has_a_kind(finding: str, kind: str) -> None:
    """So that the counts tell what was broken."""
    assert kind_of(finding) == kind
    assert kind in KINDS


def test_a_broken_promise_is_a_finding_and_its_directory_stays(tmp_path: Path) -> None:
    """Whether the fault saw it itself, or something went wrong on the way."""

    def see(trial: QueueStorm) -> None:
        trial.feed(1)
        trial.broken.append("seen")

    def fail(trial: QueueStorm) -> None:
        trial.feed(1)
        raise OSError("on the way")

    for inject, text in ((see, "seen"), (fail, "on the way")):
        done = run_round(Fault("test", "none", inject, devices="declared"), 1, tmp_path)
        assert text in "".join(done.findings)
        assert done.home is not None
        assert done.home.exists()


def test_the_documentation_names_every_fault() -> None:
    """And none that does not exist."""
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", DOCUMENT.read_text()))
    assert set(TABLE) <= named
    assert {name for name in named if "-" in name} <= set(TABLE)
