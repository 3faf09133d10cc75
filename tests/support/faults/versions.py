"""An engine of an older version of the program beside the one of this version."""

from __future__ import annotations

import subprocess

from support.cli import PROGRAM
from support.faults.table import fault
from support.storm.background import QueueStorm
from support.storm.trial import FOREIGN
from support.storm.witness import read_witness
from support.versions import BEFORE_SCHEMA_4, code_of
from support.wait import PATIENCE_SECONDS, wait_until

JOBS = 8


@fault(
    "two-versions",
    "engines of two versions that share a ledger never give one GPU to two jobs",
    needs=("history",),
    devices="declared",
)
def two_versions(trial: QueueStorm) -> None:
    """Another queue of the older version has jobs on the same GPUs, while engines of this one are killed."""
    variables = {**trial.environment, "STORM": str(trial.home), "STOKER_STATE": str(trial.home / "older-state")}
    variables["PYTHONPATH"] = str(code_of(BEFORE_SCHEMA_4, trial.home / "older"))
    line = f"exec sh job.sh $(({FOREIGN} + STOKER_JOB_ID)) 0 0.15 plain"
    trial.feed(10)
    trial.at_work()
    submit = subprocess.run(
        [PROGRAM, "submit", "-a", f"1-{JOBS}", line],
        env=variables,
        cwd=trial.work,
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert submit.returncode == 0, submit.stderr
    trial.blows["engine"] += trial.at_work().kill()
    trial.feed(trial.next_number + 8)
    trial.at_work()
    trial.blows["older version"] += 1

    def ended() -> int:
        trial.at_work()
        return len([line for line in read_witness(trial.work) if line.number > FOREIGN and line.word == "end"])

    try:
        wait_until(lambda: ended() >= JOBS)  # one that finds the lock of its GPU held writes nothing
    except AssertionError:
        trial.broken.append(
            f"double run: only {ended()} of {JOBS} jobs of the older version had their GPU for themselves"
        )
