"""The campaign notices broken promises, and the documentation names every fault."""

from __future__ import annotations

import re
from pathlib import Path

from support.faults.campaign import run_round
from support.faults.table import TABLE, Fault
from support.storm.background import QueueStorm

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"


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
