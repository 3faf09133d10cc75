"""Ask the Slurm of a cluster: its state as data, and a job that shows what a node sees."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from stoker.core.device import node_gpu
from stoker.core.job import Active, id_text
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.slurm import (
    SINFO_FORMAT,
    JobReport,
    NodeGroup,
    is_usable,
    parse_job,
    parse_sinfo,
    slurm_environment,
)
from stoker.store import queries
from stoker.store.engine_lock import engine_of
from stoker.store.paths import Paths
from stoker.store.writer import open_store

SLURM_SECONDS = 30.0
"""How long one of Slurm's commands may take; without a controller they give up after about ten seconds."""
NO_SHARED, OTHER_SHARED = 41, 42
"""Exit codes of the probe job, which cannot say anything else without the shared directory."""


class Reply(NamedTuple):
    """How one of Slurm's commands ended."""

    ok: bool
    out: str
    error: str
    """Its last words, or why it could not be run."""


def ask(settings: ClusterSettings, *words: str, given: str = "", seconds: float = SLURM_SECONDS) -> Reply:
    """Run one of Slurm's commands for a cluster."""
    environment = slurm_environment(settings, os.environ)
    if (program := shutil.which(words[0], path=environment["PATH"])) is None:
        return Reply(False, "", f"{words[0]} is not on the PATH of this machine")
    try:
        done = subprocess.run(
            [program, *words[1:]],
            input=given,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        return Reply(False, "", f"{words[0]} {f'takes longer than {seconds:g} s' if late else error}")
    complaints = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    return Reply(done.returncode == 0, done.stdout, complaints[-1] if complaints else "")


class Nodes(Struct, frozen=True):
    """Nodes of a partition that are alike and in the same state."""

    partition: str
    default: bool
    up: bool
    time_limit: str
    nodes: int
    state: str
    responds: bool
    gpus: int
    """Of each node."""


class ClusterStatus(Struct, frozen=True):
    """One cluster: `stoker cluster status`."""

    name: str
    kind: str
    private: bool
    shared: str
    answers: bool
    trouble: str
    """Why the controller does not answer."""
    nodes: list[Nodes]
    jobs: int
    """Jobs of this queue for it that are not over."""
    active: int
    """Those of them that were handed to Slurm."""


class Clusters(Struct, frozen=True):
    """`stoker cluster status --json`."""

    schema: str
    clusters: list[ClusterStatus]


def cluster_status(name: str, settings: ClusterSettings, paths: Paths) -> ClusterStatus:
    reply = ask(settings, "sinfo", "-h", "-o", SINFO_FORMAT)
    load = cluster_load(paths, name)
    return ClusterStatus(
        name=name,
        kind=settings.kind,
        private=settings.private,
        shared=settings.shared,
        answers=reply.ok,
        trouble="" if reply.ok else reply.error,
        nodes=[Nodes(*group) for group in parse_sinfo(reply.out)],
        jobs=load.open,
        active=load.active,
    )


def partitions(settings: ClusterSettings) -> list[NodeGroup] | str:
    """The partitions of a controller, or why it does not answer."""
    reply = ask(settings, "sinfo", "-h", "-o", SINFO_FORMAT)
    return parse_sinfo(reply.out) if reply.ok else reply.error


def usable_nodes(settings: ClusterSettings) -> list[str]:
    """Names of the nodes that answer and take jobs."""
    lines = [line.split() for line in ask(settings, "sinfo", "-h", "-N", "-o", "%N %t").out.splitlines()]
    return [line[0] for line in lines if len(line) == 2 and is_usable(line[1])]


def jobs_on_nodes(paths: Paths, name: str) -> dict[str, list[tuple[str, str]]]:
    """GPU and job of all that runs on the cluster, by node."""
    on_nodes: dict[str, list[tuple[str, str]]] = {}
    with contextlib.closing(open_store(paths)) as store:
        active = [owned.job for owned in queries.all_active(store) if owned.job.spec.cluster == name]
    for job in active:
        for gpu in map(node_gpu, job.state.devices if isinstance(job.state, Active) else ()):
            if gpu is not None:
                on_nodes.setdefault(gpu.node, []).append((gpu.gpu, id_text(job)))
    return {node: sorted(jobs) for node, jobs in sorted(on_nodes.items())}


def cluster_load(paths: Paths, name: str) -> queries.Load:
    """Open jobs of this queue that belong to the cluster."""
    if not paths.database.exists():
        return queries.Load(0, 0, 0)
    with contextlib.closing(open_store(paths)) as store:
        return queries.loads(store).get(engine_of(name), queries.Load(0, 0, 0))


class Probe(Struct, frozen=True):
    """The answer of a job on a node."""

    submitted: float
    answered: float
    """When this machine read the answer."""
    report: JobReport | None
    refusal: str = ""
    """Why sbatch did not take the job."""
    facts: dict[str, str] = {}
    """host, time, token, stoker; empty if the node sees no shared directory."""
    token: str = ""
    """The content that the node should have read."""


@contextmanager
def _probe_folder(shared: Path) -> Iterator[Path]:
    """A folder in the shared directory, with files that exist before a node looks: NFS remembers missing names."""
    shared.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(tempfile.mkdtemp(prefix="check-", dir=shared))
    try:
        (folder / "token").write_text(secrets.token_hex(8))
        (folder / "answer").touch()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def probe_node(settings: ClusterSettings, python: str, seconds: float) -> Probe:
    """Let a node look at the shared directory and at Stoker, by a job of one minute."""
    shared = Path(settings.shared)
    with _probe_folder(shared) as folder:
        token, submitted = (folder / "token").read_text(), time.time()
        names = {"partition": settings.partition, "account": settings.account, "qos": settings.qos}
        chosen = [f"--{name}={value}" for name, value in names.items() if value]
        fixed = ["--parsable", "--job-name=stoker-check", "--time=1", "--output=/dev/null", "--chdir=/"]
        script = _probe_script(shared, folder, python)
        reply = ask(settings, "sbatch", *fixed, *chosen, *settings.options, given=script)
        if not reply.ok:
            return Probe(submitted, time.time(), None, reply.error)
        job = reply.out.strip().partition(";")[0]
        report = _wait_over(settings, job, time.monotonic() + seconds)
        facts = _wait_answer(folder / "answer") if report and report.state == "COMPLETED" else {}
        return Probe(submitted, time.time(), report, facts=facts, token=token)


def _probe_script(shared: Path, folder: Path, python: str) -> str:
    quoted = {"shared": str(shared), "folder": str(folder), "python": python}
    names = "\n".join(f"{name}={shlex.quote(value)}" for name, value in quoted.items())
    return f"""#!/bin/sh
{names}
[ -d "$shared" ] || exit {NO_SHARED}
cd "$folder" && [ -r token ] || exit {OTHER_SHARED}
{{
  echo "host $(hostname)"
  echo "time $(date +%s.%N)"
  echo "token $(cat token)"
  echo "stoker $(timeout 40 "$python" -P -m stoker --version 2>&1 | tail -n 1)"
  echo end
}} > answer
"""


def _wait_over(settings: ClusterSettings, job: str, deadline: float) -> JobReport | None:
    """How the job ended; one that does not end in time is cancelled, and its last state is told."""
    pause, report = 0.1, None
    while time.monotonic() < deadline:
        report = parse_job(ask(settings, "scontrol", "show", "job", job).out)
        if report is None or report.state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            return report
        time.sleep(pause)
        pause = min(2.0, pause * 1.5)
    ask(settings, "scancel", job)
    return report


def _wait_answer(path: Path) -> dict[str, str]:
    """Wait for the node's answer; a shared directory may show it a little later than Slurm knows the end."""
    deadline, text = time.monotonic() + 15.0, ""
    while not text.endswith("end\n") and time.monotonic() < deadline:
        text = path.read_text(errors="replace")  # opened anew: only an open asks the server of the file
        if not text.endswith("end\n"):
            time.sleep(0.2)
    return {key: value for key, _, value in (line.partition(" ") for line in text.splitlines())}
