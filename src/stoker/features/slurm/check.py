"""`stoker cluster check`: whether jobs can run on a cluster, and what to do if they cannot."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import structs

from stoker import __version__
from stoker.app.service.doctor import Verdict, note, ok, problem
from stoker.core.errors import did_you_mean
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.slurm import TESTED, USABLE, NodeGroup, parse_config, parse_version, version_text
from stoker.features.slurm.status import NO_SHARED, OTHER_SHARED, Probe, Reply, ask, partitions, probe_node
from stoker.store.paths import NETWORK_FILE_SYSTEMS, file_system_of

SKEW_SECONDS = 60.0
"""Slurm refuses what is older than five minutes; times on screens are off by as much."""


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
    python = settings.python or sys.executable
    yield from _about("node", check_node(probe_node(settings, python, seconds), settings, python))


def _about(topic: str, found: list[Verdict] | Iterator[Verdict]) -> Iterator[Verdict]:
    return (structs.replace(verdict, topic=topic) for verdict in found)


def check_release(reply: Reply) -> Iterator[Verdict]:
    """Whether Slurm's commands are here, and their release."""
    version = parse_version(reply.out)
    if version is None:
        text = f"sbatch does not work: {reply.error or reply.out.strip() or 'no output'}"
        yield problem(text, "log in where Slurm's commands work; or see PATH and conf")
    elif version[:2] < TESTED:
        told = f"Slurm {version_text(version)} is older than any release that Stoker was tried with"
        yield note(told, f"it was tried with {version_text(TESTED)}; please report problems")
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
        told = f"Slurm remembers finished jobs for {limits.min_job_age} s"
        short = limits.min_job_age < 60
        yield note(f"{told} (MinJobAge)", "set poll below that in the configuration") if short else ok(told)


def check_partition(name: str, groups: list[NodeGroup]) -> Iterator[Verdict]:
    """The partition of the jobs, and its nodes."""
    partitions = list(dict.fromkeys(group.partition for group in groups))
    default = next((group.partition for group in groups if group.is_default), "")
    wanted = name or default
    mine = [group for group in groups if group.partition == wanted]
    if not wanted:
        yield problem("there is no default partition", f"set partition to one of {', '.join(partitions)}")
    elif not mine:
        hint = did_you_mean(wanted, partitions, f"known: {', '.join(partitions)}")
        yield problem(f"there is no partition {wanted!r}", hint)
    elif not any(group.is_up for group in mine):
        yield problem(f"partition {wanted} is down", "ask the administrators, or choose another")
    else:
        yield from _nodes(wanted, mine)


def _nodes(name: str, groups: list[NodeGroup]) -> Iterator[Verdict]:
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
    elif report.state in ("PENDING", "CONFIGURING"):
        why = f"no node took a job in time (Slurm says {report.reason or report.state})"
        yield note(why, "jobs will wait too; check again with a longer --timeout")
    elif report.code == NO_SHARED:
        yield problem(f"{report.node} has no {settings.shared}", "set shared to a directory that all nodes see")
    elif report.code == OTHER_SHARED:
        told = f"{settings.shared} on {report.node} is another directory than here"
        yield problem(told, "set shared to a directory on a shared file system")
    elif not probe.facts.get("host"):
        yield problem(
            f"a job on {report.node} ended as {report.state} (exit code {report.code}) without an answer",
            "its node may be short of disk, or show the shared directory very late",
        )
    else:
        yield from _answer(probe, settings, python)


def _answer(probe: Probe, settings: ClusterSettings, python: str) -> Iterator[Verdict]:
    host, said = probe.facts["host"], probe.facts.get("stoker", "")
    same = probe.facts.get("token") == probe.token
    yield (
        ok(f"{host} sees {settings.shared}")
        if same
        else problem(
            f"{host} reads an old state of {settings.shared}", "set shared to a directory on a shared file system"
        )
    )
    if said.split()[-1:] == [__version__]:
        yield ok(f"{host} runs {python} with stoker {__version__}")
    else:
        advice = f"install stoker {__version__} where nodes see it, and set python to its interpreter"
        yield problem(f"{host} cannot run stoker with {python}: {said or 'no answer'}", advice)
    away = skew(probe)
    if abs(away) > SKEW_SECONDS:
        yield problem(f"the clock of {host} is off by {away:+.0f} s", "synchronise the clocks with NTP")
    else:
        yield ok(f"the clock of {host} agrees")


def skew(probe: Probe) -> float:
    """Seconds by which a node's clock is surely ahead, negative if behind."""
    try:
        told = float(probe.facts.get("time", ""))
    except ValueError:
        return 0.0
    return max(0.0, told - probe.answered) + min(0.0, told - probe.submitted)
