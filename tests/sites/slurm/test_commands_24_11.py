"""The squeue of Slurm 24.11.5 is read like that of 22.05."""

from __future__ import annotations

from pathlib import Path

from stoker.sites.slurm.commands import read_facts

RECORDED = Path(__file__).parents[2] / "data/slurm-24.11.5/squeue.txt"


def test_states_of_tasks() -> None:
    """Tasks that run, that wait in one line, that failed, and their reasons."""
    facts = {key: (fact.state, fact.reason) for key, fact in read_facts(RECORDED.read_text()).items()}
    limit = ("PENDING", "JobArrayTaskLimit")
    assert facts == {
        ("stoker:x/1", 0): ("RUNNING", "None"),
        ("stoker:x/1", 1): ("RUNNING", "None"),
        ("stoker:x/1", 2): limit,
        ("stoker:x/1", 3): limit,
        ("stoker:x/2", 0): ("FAILED", "NonZeroExitCode"),
        ("stoker:x/3", 0): ("PENDING", "Resources"),
    }
