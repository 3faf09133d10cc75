"""`python -m stoker.features.sweep.wandb_trial WORD...`: run a command as the agent of W&B does.

Words `--nested=NAME` may precede it. The script finds its parameters in `wandb.config`, and `wandb.log` writes where
the sweep reads, without a network. A variable that the user has set stays. This imports nothing of Stoker, since it
precedes each trial.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from glob import glob
from itertools import takewhile
from typing import Any

FLUSH_SECONDS = "1"
"""How often wandb writes what was logged to its file."""
NESTED = "--nested="
"""Before the name of a parameter that has parameters."""
RUN_FILE = "run.json"
"""Tells the reader of values which run is that of the attempt, and below which directories it may be."""
_VARIABLE = re.compile(r"\$\{envvar:(\w+)\}")


def main(words: list[str]) -> int:
    """Write the parameters for wandb, set its variables, and become the command."""
    nested = [word.removeprefix(NESTED) for word in takewhile(lambda word: word.startswith(NESTED), words)]
    params = {name: _value(value) for name, value in json.loads(os.environ.get("STOKER_PARAMS", "{}")).items()}
    folder = os.path.abspath(os.path.join("wandb", f"job-{os.environ['STOKER_JOB_ID']}"))
    os.makedirs(folder, exist_ok=True)
    environment = {**_defaults(folder), **os.environ}
    environment["WANDB_SWEEP_PARAM_PATH"] = _write(
        folder,
        "config.yaml",
        {"wandb_version": 1, **{name: {"value": value} for name, value in _tree(params, nested).items()}},
    )
    _write(folder, RUN_FILE, _run(folder, environment))
    command = [part for word in words[len(nested) :] for part in _expanded(word, params, folder)]
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        print(f"stoker: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _tree(params: dict[str, Any], nested: list[str]) -> dict[str, Any]:
    """The parameters as `wandb.config` has them: those whose first word is nested are in a table of that name."""
    config: dict[str, Any] = {}
    for name, value in params.items():
        *path, last = name.split(".") if name.partition(".")[0] in nested else [name]
        table = config
        for word in path:
            table = table.setdefault(word, {})
        table[last] = value
    return config


def _defaults(folder: str) -> dict[str, str]:
    return {
        "WANDB_MODE": "offline",
        "WANDB_DIR": folder,
        "WANDB_RUN_ID": secrets.token_hex(4),
        "WANDB_RUN_GROUP": f"stoker sweep {os.environ.get('STOKER_SWEEP', '')}".strip(),
        "WANDB_NAME": os.environ.get("STOKER_JOB_NAME", ""),
        "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": FLUSH_SECONDS,
    }


def _run(folder: str, environment: dict[str, str]) -> dict[str, Any]:
    return {
        "attempt": int(environment["STOKER_ATTEMPT"]),
        "id": environment["WANDB_RUN_ID"],
        "folders": [os.path.abspath(environment["WANDB_DIR"]), os.getcwd()],
        "earlier": sorted(glob("wandb/*run-*", root_dir=folder)),  # noqa: PTH207 - pathlib takes longer to import
    }


def _write(folder: str, name: str, content: dict[str, Any]) -> str:
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)
    return path


def _value(value: Any) -> Any:
    """A value as the sweep file had it: lists and tables are texts of JSON in a sweep."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _expanded(word: str, params: dict[str, Any], folder: str) -> list[str]:
    """A word, with those macros of W&B's that depend on the values or on variables filled."""
    if word == "${args_json}":
        return [json.dumps(params)]
    if word == "${args_json_file}":
        return [_write(folder, "args.json", params)]
    if word == "${args_no_boolean_flags}":
        flags = [(name, value) for name, value in params.items() if value is not False]
        return [f"--{name}" if value is True else f"--{name}={value}" for name, value in flags]
    return [_VARIABLE.sub(lambda match: os.environ.get(match[1], match[1]), word)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
