"""Run sbatch, squeue, scancel, scontrol and sinfo, one at a time and without waiting, and read what they print.

Nothing else runs a command of the scheduler: another scheduler would be another module of this size.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO, Literal, NamedTuple

from stoker.core.cluster import SlurmFact
from stoker.core.slurm import parse_gres

Kind = Literal["submit", "query", "cancel", "configuration", "nodes", "drained"]
PATIENCE_SECONDS = 120.0
"""A command that takes longer is killed, and counts as unanswered."""
IDS_AT_ONCE = 500
TAG = "stoker:"
"""All tags begin with it."""
CANNOT_RUN = "cannot run"
_FORMAT = "%i|%T|%r|%S|%k|%N"
"""Id, state, reason, start, comment and node: fields that every release since 2.6 has, without a width."""
_UNREACHABLE = re.compile(
    "unable to contact slurm controller|socket timed out|connection refused|try again|temporarily|too many|"
    "throttl|unable to allocate|protocol authentication|zero bytes were transmitted|communications connection|"
    f"in standby mode|slurm backup|MaxSubmit|SubmitJobLimit|job submit limit|slurmctld is not|{CANNOT_RUN}",
    re.IGNORECASE,
)
"""Refusals that have nothing to do with the job: the same sbatch may succeed later."""


class Done(NamedTuple):
    """A command that has ended."""

    kind: Kind
    subject: str
    """What it was about: the tag of a submit."""
    ok: bool
    out: str
    error: str
    """The last words on standard error."""
    began: float
    """When it was started, by the monotonic clock."""
    seconds: float

    @property
    def is_refusal(self) -> bool:
        """Whether the command failed for a reason that stays."""
        return not self.ok and bool(self.error) and not _UNREACHABLE.search(self.error)


class _Running(NamedTuple):
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]
    kind: Kind
    subject: str
    began: float


class SlurmCommands:
    """Runs one command at a time; `finished` tells when it has ended."""

    def __init__(self, environment: Mapping[str, str], user: int) -> None:
        """`environment` is all that the commands get; `user` is whose jobs are asked for."""
        self._environment = {**environment, "SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0"}
        self._user = user
        self._running: _Running | None = None
        self._failed: Done | None = None
        """A command that could not even be started."""

    @property
    def busy(self) -> bool:
        return self._running is not None or self._failed is not None

    def submit(self, tag: str, options: Sequence[str], script: str) -> None:
        fixed = ["--parsable", "--no-requeue", f"--comment={tag}", "--output=/dev/null", "--error=/dev/null"]
        self._start("submit", tag, ["sbatch", *fixed, "--chdir=/", *options], script)

    def query(self) -> None:
        """Ask for all jobs of this user, also those that have just ended."""
        self._start("query", "", ["squeue", "-h", "-t", "all", "-u", str(self._user), "-o", _FORMAT])

    def cancel(self, ids: Sequence[str]) -> None:
        self._start("cancel", "", ["scancel", *ids[:IDS_AT_ONCE]])

    def signal(self, ids: Sequence[str], name: str) -> None:
        """Send a signal to the node's program alone."""
        self._start("cancel", "", ["scancel", "--batch", f"--signal={name}", *ids[:IDS_AT_ONCE]])

    def configuration(self) -> None:
        self._start("configuration", "", ["scontrol", "show", "config"])

    def nodes(self, partition: str) -> None:
        """Ask what the nodes of a partition have."""
        self._start("nodes", "", ["sinfo", "-h", *(["-p", partition] if partition else []), "-o", "%G|%m|%c"])

    def drained(self) -> None:
        """Ask for the names of the nodes that take no more jobs, or will not when those that run there are over."""
        self._start("drained", "", ["sinfo", "-h", "-N", "-t", "drained,draining", "-o", "%N"])

    def finished(self) -> Done | None:
        """The command that has ended since the last call; None while it runs, or where none does."""
        failed, self._failed = self._failed, None
        if failed is not None or self._running is None:
            return failed
        process, out, err, kind, subject, began = self._running
        code, seconds = process.poll(), time.monotonic() - began
        if code is None:
            if seconds > PATIENCE_SECONDS:
                process.kill()
            return None
        self._running = None
        with out, err:
            said = [line for line in _text(err).splitlines() if line.strip()]
            return Done(kind, subject, code == 0, _text(out), said[-1] if said else "", began, seconds)

    def close(self) -> None:
        """Leave; a command under way ends by itself."""
        if self._running is not None:
            self._running.process.returncode = 0  # Popen must not warn of it
            self._running.out.close()
            self._running.err.close()
            self._running = None

    def _start(self, kind: Kind, subject: str, words: list[str], given: str = "") -> None:
        assert not self.busy
        began = time.monotonic()
        try:
            self._running = _Running(*self._spawn(words, given), kind, subject, began)
        except OSError as error:
            problem = f"{CANNOT_RUN} {words[0]}: {error.strerror}"
            self._failed = Done(kind, subject, False, "", problem, began, 0.0)

    def _spawn(self, words: list[str], given: str) -> tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]:
        """The process and the files that it writes to; a pipe would stop it when it is full."""
        program = shutil.which(words[0], path=self._environment.get("PATH", os.defpath)) or words[0]
        with contextlib.ExitStack() as stack:
            stdin, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
            stdin.write(given.encode(errors="surrogateescape"))
            stdin.seek(0)
            process = subprocess.Popen(
                [program, *words[1:]], stdin=stdin, stdout=out, stderr=err, env=self._environment, cwd="/"
            )
            stack.pop_all()
        stdin.close()
        return process, out, err


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def read_facts(text: str) -> dict[tuple[str, int], SlurmFact]:
    """The tasks with a tag of ours, by tag and index, as `query` printed them."""
    facts: dict[tuple[str, int], SlurmFact] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) < 5 or not fields[4].startswith(TAG):
            continue
        job, state, reason, start, tag, node, *_ = (field.strip() for field in (*fields, ""))
        base, _, tasks = job.partition("_")
        for index in indices(tasks) if tasks else (None,):
            shown = base if index is None else f"{base}_{index}"
            fact = SlurmFact(state.partition(" ")[0], reason, shown, _moment(start), node)
            known = facts.get((tag, index or 0))
            if known is None or known.is_over:  # a requeued or doubled task: the one that lives counts
                facts[tag, index or 0] = fact
    return facts


def indices(text: str) -> list[int]:
    """The indices of `3`, `[3-7,9]` or `[0-99:4%8]`."""
    found: list[int] = []
    for part in text.strip("[]").partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if match:
            first, last, step = match.groups()
            found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def _moment(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


class NodeSize(NamedTuple):
    """What one node has."""

    gpus: int
    memory: int
    """MiB."""
    cpus: int


def read_nodes(text: str) -> NodeSize:
    """The largest of the nodes that `nodes` printed; without GPUs where none has any."""
    rows = [line.strip().rsplit("|", 2) for line in text.splitlines()]
    sizes = [
        NodeSize(parse_gres(gres), *(int(re.sub(r"\D.*", "", each) or 0) for each in rest))
        for gres, *rest in rows
        if len(rest) == 2
    ]
    return max(sizes, default=NodeSize(0, 0, 0))


def read_submitted(text: str) -> str:
    """The id that `sbatch --parsable` printed; the name of a cluster may follow it."""
    return text.strip().splitlines()[-1].partition(";")[0] if text.strip() else ""
