"""The command that runs a trial as the agent of Weights & Biases does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.wait import PATIENCE_SECONDS

PARAMS = {"lr": 0.1, "flag": True, "off": False, "layers": "[1, 2]", "text": "[a"}
SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def run(cwd: Path, *words: str, **variables: str) -> tuple[list[str], dict[str, str]]:
    """The words and the variables that a trial with this command gets."""
    ended = started(cwd, sys.executable, "-c", SHOW, *words, **variables)
    assert ended.returncode == 0, ended.stderr
    found: tuple[list[str], dict[str, str]] = json.loads(ended.stdout)
    return found


def started(cwd: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """How the command of a trial ended."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "STOKER_"))}
    own = {"STOKER_JOB_ID": "7", "STOKER_ATTEMPT": "1", "STOKER_SWEEP": "3", "STOKER_JOB_NAME": "lr=0.1"}
    own["STOKER_PARAMS"] = json.dumps(PARAMS)
    return subprocess.run(
        [sys.executable, "-P", "-m", "stoker.features.sweep.wandb_trial", *words],
        cwd=cwd,
        env={**outside, **own, **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def in_folder(cwd: Path, name: str) -> Any:
    return json.loads((cwd / "wandb/job-7" / name).read_text())


def test_wandb_finds_parameters_and_writes_where_the_sweep_reads(tmp_path: Path) -> None:
    """Offline, with a name and a group; lists are lists again."""
    _, variables = run(tmp_path)
    folder = str(tmp_path / "wandb/job-7")
    given = {name: variables[f"WANDB_{name}"] for name in ("MODE", "DIR", "NAME", "RUN_GROUP", "SWEEP_PARAM_PATH")}
    assert given == {
        "MODE": "offline",
        "DIR": folder,
        "NAME": "lr=0.1",
        "RUN_GROUP": "stoker sweep 3",
        "SWEEP_PARAM_PATH": f"{folder}/config.yaml",
    }
    values = {name: field["value"] for name, field in in_folder(tmp_path, "config.yaml").items() if name in PARAMS}
    assert values == {**PARAMS, "layers": [1, 2]}
    assert in_folder(tmp_path, "run.json") == {
        "attempt": 1,
        "id": variables["WANDB_RUN_ID"],
        "folders": [folder, str(tmp_path)],
        "earlier": [],
    }


def test_the_next_attempt_names_the_runs_of_earlier_ones(tmp_path: Path) -> None:
    """All attempts of a trial share a folder."""
    (tmp_path / "wandb/job-7/wandb/offline-run-1-a").mkdir(parents=True)
    run(tmp_path, STOKER_ATTEMPT="2")
    described = in_folder(tmp_path, "run.json")
    assert (described["attempt"], described["earlier"]) == (2, ["wandb/offline-run-1-a"])


def test_what_the_user_chose_stays(tmp_path: Path) -> None:
    """Mode, directory, id, name and group."""
    own = {"WANDB_MODE": "online", "WANDB_DIR": "runs", "WANDB_RUN_ID": "a1", "WANDB_NAME": "n", "WANDB_RUN_GROUP": "g"}
    _, variables = run(tmp_path, **own)
    assert {name: variables[name] for name in own} == own
    described = in_folder(tmp_path, "run.json")
    assert (described["id"], described["folders"]) == ("a1", [str(tmp_path / "runs"), str(tmp_path)])


def test_nested_parameters_are_tables(tmp_path: Path) -> None:
    """In `wandb.config` only, and only those that the file nests: names with dots are also Hydra's."""
    params = {"opt.sgd.lr": 0.1, "opt.name": "sgd", "model.width": 3}
    ended = started(tmp_path, "--nested=opt", "true", STOKER_PARAMS=json.dumps(params))
    assert ended.returncode == 0
    config = in_folder(tmp_path, "config.yaml")
    assert config["opt"] == {"value": {"sgd": {"lr": 0.1}, "name": "sgd"}}
    assert config["model.width"] == {"value": 3}
    assert run(tmp_path, "--nested=2")[0] == ["--nested=2"], "a parameter may have that name"


def test_macros_that_depend_on_values(tmp_path: Path) -> None:
    """JSON, flags without false ones, and variables; a variable that is not set leaves its name, as with wandb."""
    words, _ = run(tmp_path, "${args_json}", "${args_no_boolean_flags}", "${envvar:A}/${envvar:NONE}", A="b c")
    assert json.loads(words[0]) == {**PARAMS, "layers": [1, 2]}
    assert words[1:] == ["--lr=0.1", "--flag", "--layers=[1, 2]", "--text=[a", "b c/NONE"]
    (path,), _ = run(tmp_path, "${args_json_file}")
    assert json.loads(Path(path).read_text())["lr"] == 0.1


@pytest.mark.parametrize(("word", "code"), [("./missing", 127), ("./plain", 126)])
def test_a_command_that_cannot_start(tmp_path: Path, word: str, code: int) -> None:
    """Has the exit code of a shell, and says why."""
    (tmp_path / "plain").touch()
    ended = started(tmp_path, word)
    assert ended.returncode == code
    assert ended.stderr.startswith(f"stoker: {word}: ")
