"""Sweep files of Weights & Biases with their scripts, unchanged: no network, no agent."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from features.sweep.sweeps import wait_sweep
from support.background import Background

LONG_SECONDS = 150.0
"""wandb itself takes seconds to start and to end."""
FILE = """\
program: train.py
method: bayes
metric: {name: val loss, goal: minimum}
run_cap: 4
early_terminate: {type: hyperband, min_iter: 2, eta: 2}
anything: of another tool
parameters:
  lr: {min: 0.0, max: 1.0}
  layers: {value: [8, 8]}
"""
SCRIPT = """\
import time, wandb
wandb.init(project="demo")
for epoch in range(5):
    wandb.log({"val loss": (wandb.config.lr - 0.3) ** 2 + 1 / (epoch + 1) + sum(wandb.config.layers)})
    wandb.log({"other": 1})
    time.sleep(PAUSE)
"""
STAND_IN = """\
import json, os
config = json.load(open(os.environ["WANDB_SWEEP_PARAM_PATH"]))
run = f"{os.environ['WANDB_DIR']}/wandb/offline-run-1-{os.environ['WANDB_RUN_ID']}/files"
os.makedirs(run)
value = config["lr"]["value"] + sum(config["layers"]["value"])
json.dump({"val loss": value}, open(f"{run}/wandb-summary.json", "w"))
"""


def submit(background: Background, script: str) -> int:
    """Submit the file with this script."""
    (background.cwd / "train.py").write_text(script)
    command = f'command: ["{sys.executable}", "${{program}}"]\n'
    (background.cwd / "sweep.yaml").write_text(FILE + command)
    said = background("sweep", "@sweep.yaml", "--parsable", "-G", "0", "--max-parallel", "2")
    assert said.code == 0, said.err
    assert said.err == "stoker: anything of the file is not used\n"
    return int(said.out)


def test_the_summary_file_is_enough(background: Background) -> None:
    """A program that knows nothing of Stoker finds its parameters and is read, as a script with wandb is."""
    view = wait_sweep(background, submit(background, STAND_IN))
    assert [trial["state"] for trial in view["trials"]] == ["done"] * 4
    assert all(trial["values"]["val loss"] == pytest.approx(trial["params"]["lr"] + 16) for trial in view["trials"])


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_what_wandb_logs_is_read_while_the_trial_runs(background: Background) -> None:
    """All steps; bad trials are stopped early."""
    view = wait_sweep(background, submit(background, SCRIPT.replace("PAUSE", "1.3")), LONG_SECONDS)
    states = [trial["state"] for trial in view["trials"]]
    assert set(states) == {"done", "stopped"}
    for trial in view["trials"]:
        steps = trial["step"]
        assert trial["values"]["val loss"] == pytest.approx(
            (trial["params"]["lr"] - 0.3) ** 2 + 1 / steps + 16, abs=1e-5
        )
        assert (steps == 5) == (trial["state"] == "done")
