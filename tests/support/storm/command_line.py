"""Submits by the command line itself, several at once, so that one of them has to start the engine."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.cli import PROGRAM
from support.storm.job_script import command
from support.storm.jobs import FIRST_EDITION, Work
from support.storm.request_log import RequestLog, SubmittedJob

TYPING_SECONDS = 60.0


def submit_at_once(
    works: Sequence[Work], directory: Path, environment: Mapping[str, str], request_log: RequestLog, sim: str = ""
) -> list[str]:
    """Submit each of the jobs by a command of its own; what went wrong, in words."""
    began = time.time()
    submits = [start_submit(work, directory, environment, sim) for work in works]
    faults = []
    for process, work in zip(submits, works, strict=True):
        out, err = process.communicate(timeout=TYPING_SECONDS)
        if out.strip().isdecimal():
            request_log.submitted[int(out)] = SubmittedJob(work, began)
        if process.returncode != 0:
            faults.append(f"a submit ended with {process.returncode}: {err}")
    return faults


def start_submit(
    work: Work,
    directory: Path,
    environment: Mapping[str, str],
    sim: str,
    wrapper: Sequence[str] = (),
    *,
    options: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Start a submit by the command line, with the words of another program before it."""
    line = command(work.number, work.codes, work.seconds, work.kind)
    devices = ["--sim", sim] if sim else []
    usual = ["-G", str(work.gpus), "-o", "/dev/null", "-s", line]
    return start_command(
        [*wrapper, PROGRAM, "submit", "--parsable", *devices, *options, *usual], directory, environment
    )


def start_command(words: Sequence[str], directory: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a command line of a user."""
    return subprocess.Popen(
        words,
        cwd=directory,
        env={**environment, "STORM_WORD": FIRST_EDITION},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
