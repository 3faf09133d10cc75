"""MPS control programs for tests: a scripted one that is always there, and NVIDIA's own where it can be had."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from stoker.devices.mps.daemon import DaemonPaths
from support.optional import refuse

NAME = "nvidia-cuda-mps-control"
GPU = "GPU-11111111-2222-3333-4444-555555555555"
CLIENT = Path(__file__).with_name("client.py")


def scripted(directory: Path) -> str:
    """The scripted program under its usual name in a directory, which may then go on the path."""
    return _script(directory, NAME, f'exec "{sys.executable}" -I -S "{Path(__file__).with_name("scripted.py")}" "$@"')


def scripted_smi(directory: Path, answer: str = "echo Default") -> str:
    """An nvidia-smi that writes down what it is asked, and then does what the line says."""
    return _script(directory, "nvidia-smi", f'echo "$@" >> "{directory}/asked"; {answer}')


def real(directory: Path) -> str:
    """A copy of NVIDIA's program that every user can reach."""
    found = _cached() or shutil.which(NAME)
    if found is None:
        refuse("NVIDIA's MPS daemon is not here: run .ci/fetch_mps")
    for program in Path(found).parent.glob("nvidia-cuda-mps-*"):
        shutil.copy(program, directory)
    return str(directory / NAME)


def perform(dialogue: Callable[[str, str], None], program: str, root: Path) -> None:
    """Let a dialogue be the whole program of a process of ours, which must end well."""
    start = f"import sys; from {dialogue.__module__} import {dialogue.__name__} as main; main(*sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", start, program, str(root)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def log_of(paths: DaemonPaths) -> str:
    """What the daemon has written down so far."""
    log = Path(paths.log, "control.log")
    return log.read_text() if log.exists() else ""


def client_words(path: Path, *manner: str) -> list[str]:
    """The command of a client."""
    return [sys.executable, "-I", "-S", str(CLIENT), str(path), *manner]


def _cached() -> str | None:
    cache = _cache(os.environ) / NAME
    return str(cache) if os.access(cache, os.X_OK) else None


def _cache(environment: Mapping[str, str]) -> Path:
    """As in .ci/fetch_mps."""
    if chosen := environment.get("STOKER_REAL_MPS"):
        return Path(chosen)
    return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache", "stoker-real-mps")


def _script(directory: Path, name: str, body: str) -> str:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return str(path)
