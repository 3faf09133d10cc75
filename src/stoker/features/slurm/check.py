"""`stoker cluster check`: whether jobs can run on a cluster, by a job that shows what a node sees."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct, structs

from stoker import __version__
from stoker.app.service.doctor import Verdict, note, ok, problem
from stoker.core.errors import did_you_mean
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.cluster import ENDED_STATES, WAITING_STATES, settings_words
from stoker.features.slurm.commands import (
    TESTED,
    USABLE,
    JobReport,
    Nodes,
    Reply,
    ask,
    parse_config,
    parse_job,
    parse_version,
    read_submitted,
    version_text,
)
from stoker.features.slurm.orders import interpreter
from stoker.features.slurm.status import partitions
from stoker.store.paths import NETWORK_FILE_SYSTEMS, file_system_of
from stoker.store.waiting import Backoff, wait_until

SKEW_SECONDS = 60.0
"""Slurm refuses what is older than five minutes; times on screens are off by as much."""
NO_SHARED, OTHER_SHARED = 41, 42
"""Exit codes of the probe job, which cannot say anything else without the shared directory."""


def check_cluster(name: str, settings: ClusterSettings, seconds: float) -> Iterator[Verdict]:
    """The findings, each as soon as it is known; without a controller there is nothing more to ask."""
    yield from _about("slurm", check_release(ask(settings, "sbatch", "--version")))
    groups = partitions(settings)
    if isinstance(groups, str):
        start = f"stoker cluster up {name}" if settings.private else "see scontrol ping; ask the administrators"
        yield from _about("slurm", [problem(f"the controller does not answer: {groups}", start)])
        return
    yield from _about("slurm", check_limits(ask(settings, "scontrol", "show", "config").out))
    verdicts = [
        *_about("partition", check_partition(settings.partition, groups)),
        *_about("shared", check_shared(settings)),
    ]
    yield from verdicts
    if any(verdict.level == "problem" for verdict in verdicts):
        return  # a job could not run, or not answer
    python = interpreter(settings)
    yield from _about("node", check_node(probe_node(settings, python, seconds), settings, python))


def _about(topic: str, verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    return (structs.replace(verdict, topic=topic) for verdict in verdicts)


def check_release(reply: Reply) -> Iterator[Verdict]:
    """Whether Slurm's commands are here, and their release."""
    version = parse_version(reply.out)
    if version is None:
        text = f"sbatch does not work: {reply.error or reply.out.strip() or 'no output'}"
        yield problem(text, "log in where Slurm's commands work; or see PATH and conf")
    elif version[:2] < TESTED:
        text = f"Slurm {version_text(version)} is older than any release that Stoker was tried with"
        yield note(text, f"it was tried with {version_text(TESTED)}; please report problems")
    else:
        yield ok(f"Slurm {version_text(version)}")


def check_limits(text: str) -> Iterator[Verdict]:
    """Numbers of the controller that shape how jobs are handed over."""
    limits = parse_config(text)
    if limits.max_array is not None and limits.max_array < 2:
        yield note("arrays are off (MaxArraySize), so every job is a separate sbatch", "submits are slower")
    elif limits.max_array is not None:
        yield ok(f"arrays of up to {limits.max_array - 1} tasks; longer ones become several")
    if limits.min_job_age is not None:
        text = f"Slurm remembers finished jobs for {limits.min_job_age} s"
        short = limits.min_job_age < 60
        yield note(f"{text} (MinJobAge)", "set poll below that in the configuration") if short else ok(text)


def check_partition(name: str, groups: list[Nodes]) -> Iterator[Verdict]:
    """The partition of the jobs, and its nodes."""
    partitions = list(dict.fromkeys(group.partition for group in groups))
    default = next((group.partition for group in groups if group.default), "")
    wanted = name or default
    mine = [group for group in groups if group.partition == wanted]
    if not wanted:
        yield problem("there is no default partition", f"set partition to one of {', '.join(partitions)}")
    elif not mine:
        hint = did_you_mean(wanted, partitions, f"known: {', '.join(partitions)}")
        yield problem(f"there is no partition {wanted!r}", hint)
    elif not any(group.up for group in mine):
        yield problem(f"partition {wanted} is down", "ask the administrators, or choose another")
    else:
        yield from _nodes(wanted, mine)


def _nodes(name: str, groups: list[Nodes]) -> Iterator[Verdict]:
    usable = [group for group in groups if group.responds and group.state in USABLE]
    total, good = (sum(group.nodes for group in some) for some in (groups, usable))
    gpus = sum(group.nodes * group.gpus for group in usable)
    text = f"{name}: {good} of {total} nodes can take jobs, with {gpus} GPUs in Slurm; limit {groups[0].time_limit}"
    if not good:
        yield problem(text, "see sinfo -R for why")
    else:
        yield ok(text) if good == total else note(text, "see sinfo -R for why not all")


def check_shared(settings: ClusterSettings) -> Iterator[Verdict]:
    """The shared directory as this machine sees it."""
    path = Path(settings.shared)
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    if not os.access(existing, os.W_OK) or not existing.is_dir():
        yield problem(f"{path} cannot be made or written", "set shared to a directory that all nodes see")
    elif (kind := file_system_of(existing)) not in NETWORK_FILE_SYSTEMS:
        yield note(
            f"{path} is on {kind}, which other machines usually do not see", "the check on a node, below, decides"
        )
    else:
        yield ok(f"{path} is on {kind}")


def check_node(probe: Probe, settings: ClusterSettings, python: str) -> Iterator[Verdict]:
    """Judge the answer of a job on a node."""
    if probe.refusal:
        yield problem(f"sbatch refuses a job: {probe.refusal}", "see partition, account, qos and options")
        return
    report = probe.report
    if report is None:
        yield problem(
            "Slurm does not know the job of this check any more",
            "see scontrol show config | grep MinJobAge, and its log",
        )
    elif report.state in WAITING_STATES:
        why = f"no node took a job in time (Slurm says {report.reason or report.state})"
        yield note(why, "jobs will wait too; check again with a longer --timeout")
    elif report.code == NO_SHARED:
        yield problem(f"{report.node} has no {settings.shared}", "set shared to a directory that all nodes see")
    elif report.code == OTHER_SHARED:
        text = f"{settings.shared} on {report.node} is another directory than here"
        yield problem(text, "set shared to a directory on a shared file system")
    elif not probe.facts.get("host"):
        yield problem(
            f"a job on {report.node} ended as {report.state} (exit code {report.code}) without an answer",
            "its node may be short of disk, or show the shared directory very late",
        )
    else:
        yield from _answer(probe, settings, python)


def _answer(probe: Probe, settings: ClusterSettings, python: str) -> Iterator[Verdict]:
    host, version = probe.facts["host"], probe.facts.get("stoker", "")
    same = probe.facts.get("token") == probe.token
    yield (
        ok(f"{host} sees {settings.shared}")
        if same
        else problem(
            f"{host} reads an old state of {settings.shared}", "set shared to a directory on a shared file system"
        )
    )
    if version.split()[-1:] == [__version__]:
        yield ok(f"{host} runs {python} with stoker {__version__}")
    else:
        advice = f"install stoker {__version__} where nodes see it, and set python to its interpreter"
        yield problem(f"{host} cannot run stoker with {python}: {version or 'no answer'}", advice)
    away = skew(probe)
    if abs(away) > SKEW_SECONDS:
        yield problem(f"the clock of {host} is off by {away:+.0f} s", "synchronise the clocks with NTP")
    else:
        yield ok(f"the clock of {host} agrees")


def skew(probe: Probe) -> float:
    """Seconds by which a node's clock is surely ahead, negative if behind."""
    try:
        moment = float(probe.facts.get("time", ""))
    except ValueError:
        return 0.0
    return max(0.0, moment - probe.answered) + min(0.0, moment - probe.submitted)


# -- a job on a node -------------------------------------------------------------------------------


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
        fixed = ["--parsable", "--job-name=stoker-check", "--time=1", "--output=/dev/null", "--chdir=/"]
        script = _probe_script(shared, folder, python)
        reply = ask(settings, "sbatch", *fixed, *settings_words(settings), *settings.options, given=script)
        if not reply.ok:
            return Probe(submitted, time.time(), None, reply.error)
        job = read_submitted(reply.out)
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
    """How the job ended; one that does not end in time is cancelled, and its last state is returned."""
    pauses, report = Backoff(0.1, 2.0), None
    while time.monotonic() < deadline:
        report = parse_job(ask(settings, "scontrol", "show", "job", job).out)
        if report is None or report.state in ENDED_STATES:
            return report
        pauses.wait(deadline)
    ask(settings, "scancel", job)
    return report


def _wait_answer(path: Path) -> dict[str, str]:
    """Wait for the node's answer; a shared directory may show it a little later than Slurm knows the end."""
    # Opened anew each time: only an open asks the server of the file.
    wait_until(lambda: path.read_text(errors="replace").endswith("end\n"), 15.0, Backoff(0.2, 0.2))
    text = path.read_text(errors="replace")
    return {key: value for key, _, value in (line.partition(" ") for line in text.splitlines())}
