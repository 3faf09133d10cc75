"""What squeue, sbatch and scancel print, and how they fail."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from stoker.features.slurm.cluster import SlurmFact
from stoker.features.slurm.commands import (
    Done,
    SlurmCommands,
    has_alive,
    indices,
    read_error,
    read_facts,
    read_submitted,
)
from support.wait import wait_until

TAG = "stoker:lab-1/7-ab-1"
POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)


def test_a_collapsed_array_is_spread() -> None:
    """squeue has one line for all tasks that wait."""
    text = (
        f"12_[3-5,9%2]|PENDING|Priority|1794888223|{TAG}\n"
        f"12_1|RUNNING|None|1794888000|{TAG}|n[1-2]\n"
        f"13|COMPLETED|None|N/A|{TAG}2|\n"
        "14|RUNNING|None|1794888000|somebody else's | comment\n"
        "15|RUNNING|None|1794888000|(null)\n"
    )
    facts = read_facts(text)
    assert sorted(facts) == [(TAG, 1), (TAG, 3), (TAG, 4), (TAG, 5), (TAG, 9), (f"{TAG}2", 0)]
    assert facts[TAG, 1] == SlurmFact("RUNNING", "None", "12_1", 1794888000.0, "n[1-2]")
    assert facts[TAG, 4] == SlurmFact("PENDING", "Priority", "12_4", 1794888223.0)
    assert facts[f"{TAG}2", 0] == SlurmFact("COMPLETED", "None", "13", None)


def test_of_two_tasks_with_one_tag_the_living_one_counts() -> None:
    """After a crash of its controller Slurm may show a finished task and start it again."""
    ended, runs = f"3_0|FAILED|None|N/A|{TAG}\n", f"9_0|RUNNING|None|N/A|{TAG}\n"
    assert read_facts(ended + runs)[TAG, 0].job == read_facts(runs + ended)[TAG, 0].job == "9_0"


@pytest.mark.parametrize(
    ("text", "found"), [("3", [3]), ("[0-8:4%2]", [0, 4, 8]), ("[1,3-4]", [1, 3, 4]), ("[1-3,...]", [1, 2, 3])]
)
def test_indices(text: str, found: list[int]) -> None:
    """All forms in which Slurm writes tasks."""
    assert indices(text) == found


@pytest.mark.parametrize(("text", "found"), [("12\n", "12"), ("a warning\n12;lab\n", "12"), ("", "")])
def test_the_id_of_a_submit(text: str, found: str) -> None:
    """The name of a cluster may follow it."""
    assert read_submitted(text) == found


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", "refused"),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", "refused"),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", "away"),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", "away"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", "refused"),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "refused"),
        (f"AssocMaxSubmitJobLimit; {POLICY}", "limit"),
        (f"QOSMaxSubmitJobPerUserLimit; {POLICY}", "limit"),
        (POLICY, "limit"),
        (f"QOSMaxWallDurationPerJobLimit; {POLICY}", "refused"),
        ("Batch job submission failed: Insane message length", "away"),
        ("Batch job submission failed: Incompatible versions of client and server code", "away"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "away"),
        ("", "away"),
    ],
)
def test_a_refusal_is_told_from_a_limit_and_from_a_controller_that_is_away(error: str, answer: str) -> None:
    """What was refused is not tried again; a limit of submitted jobs passes, one of a single job does not."""
    assert Done("submit", "", False, "", error, 0.0, 0.0).answer == answer


def test_the_words_of_an_administrator_are_kept() -> None:
    """A plugin of the controller says what is wrong; Slurm's own last line only says that something is."""
    text = "sbatch: error: Please give --time\nsbatch: error: Batch job submission failed: Unspecified error\n"
    assert read_error(text) == "Please give --time; Batch job submission failed: Unspecified error"
    assert read_error("no luck\n\n") == "no luck"
    assert read_error("error: \x1b[31mred") == r"\x1b[31mred"
    assert read_error("") == ""


def test_any_job_of_the_user_may_end() -> None:
    """Each counts for a submit limit, also one that another program submitted."""
    assert has_alive("1|COMPLETED|None|N/A|(null)\n2|PENDING|Priority|N/A|(null)\n")
    assert not has_alive("1|COMPLETED|None|N/A|(null)\n3_[1-2]|CANCELLED by 0|None|N/A|(null)\n")


def test_a_missing_program_is_no_refusal(tmp_path: Path) -> None:
    """Slurm may be installed later, or its file system be away for a moment."""
    commands = SlurmCommands({"PATH": str(tmp_path)}, os.getuid(), time.monotonic)
    commands.query()
    done = commands.finished()
    assert done is not None
    assert "cannot run squeue" in done.error
    assert not done.ok
    assert done.answer == "away"


def test_a_large_answer_does_not_block(tmp_path: Path) -> None:
    """Output goes to a file: a pipe would be full."""
    program = tmp_path / "squeue"
    program.write_text("#!/bin/sh\nhead -c 3000000 /dev/zero | tr '\\0' 'x'; echo no >&2; exit 1\n")
    program.chmod(0o700)
    commands = SlurmCommands({"PATH": f"{tmp_path}:{os.environ['PATH']}"}, os.getuid(), time.monotonic)
    commands.query()
    found: list[Done] = []

    def ended() -> bool:
        found.extend(filter(None, [commands.finished()]))
        return bool(found)

    wait_until(ended)
    assert (len(found[0].out), found[0].error, found[0].ok) == (3_000_000, "no", False)
