"""Grids of many points, which are few rows: commands see each trial as if it had a row of its own."""

from __future__ import annotations

import json

from features.sweep.sweeps import sweep_status
from support.background import Background
from support.wait import wait_until

SHOW = ("sh", "-c", 'echo "$STOKER_TRIAL $STOKER_PARAMS" "$@"', "show")
GRID = ("sweep", "--hold", "-G", "0", "-J", "big", "lr=0..99", "wd=0.0..0.9:0.1")


def rows(queue: Background) -> int:
    with queue.open_store() as store:
        return len(store.rows("SELECT 1 FROM jobs"))


def submitted(queue: Background) -> None:
    assert queue(*GRID, "--", *SHOW).out == "submitted sweep 1 (1,000 trials)\n"
    assert rows(queue) == 1


def test_trials_of_a_large_grid(background: Background) -> None:
    """A trial that runs has its own command, name and parameters; names and texts find those that wait."""
    submitted(background)
    background("resume", "1.123")
    background.wait_over(124)
    assert background("logs", "1.123").out == '123 {"lr":12,"wd":0.3} --lr=12 --wd=0.3\n'
    assert background.job(124).name == "big lr=12 wd=0.3"
    assert background.job(1000).command.words[-2:] == ("--lr=99", "--wd=0.9")
    assert background("cancel", "big lr=7 *").code == 0
    assert sweep_status(background, 1)["counts"] == {"cancelled": 10, "done": 1, "held": 989}
    assert background("edit", "1.5", "--name", "mine").code == 0
    assert background.job(6).name == "mine"
    assert background.job(7).name == "big lr=0 wd=0.6"
    assert "989 tasks" in background("edit", "1", "--priority", "4").out
    assert [background.job(job_id).name for job_id in (6, 7)] == ["mine", "big lr=0 wd=0.6"]
    assert background("retry", "1.70").code == 0
    assert background.job(71).name == "big lr=7 wd=0.0"
    found = json.loads(background("status", "--name", "big lr=99 wd=*", "-a", "--json").out)["jobs"]
    assert [job["id"] for job in found] == list(range(991, 1001))
    assert rows(background) < 20


def test_a_grid_that_was_submitted_before(background: Background) -> None:
    """It is refused; --resume submits what is new, of a larger grid and of one whose trials were cancelled."""
    submitted(background)
    again = background(*GRID, "--", *SHOW)
    assert "1,000 of 1,000 trials are already done or in the queue" in again.err
    assert "nothing was submitted" in background(*GRID, "--resume", "--", *SHOW).err
    background("cancel", "1.10-19")
    assert "990 of 1,000" in background(*GRID, "--", *SHOW).err
    larger = ("sweep", "--hold", "-G", "0", "-J", "big", "lr=0..100", "wd=0.0..0.9:0.1", "--resume", "--", *SHOW)
    assert "(20 trials; 990 submitted before)" in background(*larger).out
    other = ("sweep", "--hold", "-G", "0", "lr=200..300", "wd=0.0..0.9:0.1", "--", *SHOW)
    assert "(1,010 trials)" in background(*other).out


def test_a_grid_is_stopped_and_extended(background: Background) -> None:
    """Waiting trials are withdrawn at once; further ones begin after the last."""
    assert "(300 trials)" in background(*GRID, "-N", "300", "--", *SHOW).out
    assert "300 waiting trials withdrawn" in background("sweep", "stop", "1").out
    assert background("sweep", "extend", "1", "2").code == 0
    wait_until(lambda: sweep_status(background, 1)["counts"] == {"done": 2, "stopped": 300})
    assert [trial["params"]["lr"] for trial in sweep_status(background, 1)["trials"][299:]] == [29, 30, 30]


def test_a_part_of_a_large_table(background: Background) -> None:
    """A few trials in an order are those that a sort of all of them begins with."""
    command = ("sh", "-c", 'test "$1" = --lr=3 && exit 1; echo "loss=$2"', "show")
    words = ("lr=1..9", "wd=1..20", "--objective", "regex:loss=--wd=([0-9]+)", "-G", "0")
    background("sweep", *words, "--yes", "--", *command)
    wait_until(lambda: sweep_status(background, 1)["state"] == "done", pause=0.2)
    for column in ("trial", "value", "state", "time", "wd"):
        for more in ((), ("-r",)):
            table = background("sweep", "table", "--csv", "--sort", column, *more).out.splitlines()
            assert (
                background("sweep", "table", "--csv", "--sort", column, "-n", "7", *more).out.splitlines() == table[:8]
            )
