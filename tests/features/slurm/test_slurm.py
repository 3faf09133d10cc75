"""What Slurm's commands print, and the variables they need. Texts in this file were printed by Slurm 22.05.8."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.settings import ClusterSettings
from stoker.features.slurm.slurm import (
    JobReport,
    Limits,
    NodeGroup,
    is_usable,
    parse_config,
    parse_gres,
    parse_job,
    parse_sinfo,
    parse_version,
    slurm_environment,
    version_text,
)

SINFO = """\
all*|up|10:00:00|2|idle|gpu:4
all*|up|10:00:00|1|down*|gpu:4
urgent|up|infinite|3|drain|(null)
"""
CONFIG = """\
Configuration data as of 2026-11-17T04:13:26
MaxArraySize            = 1001
MaxJobCount             = 10000
MaxJobId                = 67043328
MinJobAge               = 300 sec
"""
JOB = """\
JobId=1 JobName=wrap
   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=42:0
   NodeList=n1
   BatchHost=n1
"""


DATA = Path(__file__).parents[2] / "data/slurm-24.11.5"
"""What that release printed, with an array of four, a job that failed and one that waits on three nodes."""


def test_a_newer_release() -> None:
    """Slurm 24.11.5 prints the same fields; a node that is planned for a waiting job can take others."""
    assert [(group.state, group.nodes, group.gpus) for group in parse_sinfo((DATA / "sinfo.txt").read_text())] == [
        ("mix", 2, 4),
        ("plnd", 1, 4),
    ] * 2
    assert parse_job((DATA / "job.txt").read_text()) == JobReport("FAILED", "NonZeroExitCode", 42, "n3")
    assert parse_config((DATA / "config.txt").read_text()) == Limits(1001, 300, 10000)


@pytest.mark.parametrize("release", ["20.11.4", "26.05.5"])
def test_other_releases(release: str) -> None:
    """An older and a newer one print the same fields."""
    data = DATA.with_name(f"slurm-{release}")
    groups = parse_sinfo((data / "sinfo.txt").read_text())
    assert [(group.state, group.nodes, group.gpus) for group in groups] == [("mix", 2, 4), ("idle", 1, 4)] * 2
    report = parse_job((data / "job.txt").read_text())
    assert report is not None
    assert (report.state, report.node) == ("CANCELLED", "n1")
    assert parse_config((data / "config.txt").read_text()) == Limits(1001, 300, 10000)


@pytest.mark.parametrize(
    ("state", "usable"),
    [("idle", True), ("mix-", True), ("plnd", True), ("idle*", False), ("drain", False), ("unk*", False)],
)
def test_usable(state: str, usable: bool) -> None:
    """A sign after the state tells more about the node; a star, that it does not answer."""
    assert is_usable(state) is usable


def test_nodes() -> None:
    """A star marks the default partition, and nodes that do not answer."""
    assert parse_sinfo(SINFO) == [
        NodeGroup("all", True, True, "10:00:00", 2, "idle", True, 4),
        NodeGroup("all", True, True, "10:00:00", 1, "down", False, 4),
        NodeGroup("urgent", False, True, "infinite", 3, "drain", True, 0),
    ]


@pytest.mark.parametrize("text", ["", "\n", "sinfo: error: x", "all|up|1:00"])
def test_other_lines_are_skipped(text: str) -> None:
    """Warnings among the lines are no nodes."""
    assert parse_sinfo(text) == []


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("(null)", 0),
        ("gpu:4", 4),
        ("gpu:a100:4(S:0-1)", 4),
        ("gpu:a100:2,gpu:v100:3,mps:400", 5),
        ("gpu", 1),
        ("x:2", 0),
    ],
)
def test_gpus(text: str, gpus: int) -> None:
    """GPUs of all types are counted, and nothing else."""
    assert parse_gres(text) == gpus


def test_limits() -> None:
    """Numbers are read, and one that is missing is unknown."""
    assert parse_config(CONFIG) == Limits(1001, 300, 10000)
    assert parse_config("") == Limits(None, None, None)
    assert parse_config("ProctrackType           = proctrack/cgroup\n").confines
    assert not parse_config("ProctrackType           = proctrack/linuxproc\n").confines


def test_jobs() -> None:
    """State, reason, exit code and node; an unknown job is none."""
    assert parse_job(JOB) == JobReport("FAILED", "NonZeroExitCode", 42, "n1")
    assert parse_job("slurm_load_jobs error: Invalid job id specified") is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm-wlm 22.05.8", (22, 5, 8)),
        ("slurm 23.02.7\n", (23, 2, 7)),
        ("slurm 24.11", (24, 11, 0)),
        ("sbatch?", None),
    ],
)
def test_versions(text: str, version: tuple[int, int, int] | None) -> None:
    """Builds of distributions have another name before the number."""
    assert parse_version(text) == version


def test_version_text() -> None:
    """The month has two digits."""
    assert version_text((22, 5, 8)) == "22.05.8"


def test_environment() -> None:
    """An unpacked Slurm goes first; what the user has stays."""
    base = {"PATH": "/bin", "A": "b", "LD_LIBRARY_PATH": "/mine"}
    assert slurm_environment(ClusterSettings(), base) == {**base, "PATH": "/bin:/usr/sbin:/sbin"}
    found = slurm_environment(ClusterSettings(prefix="/s", conf="/s/slurm.conf"), base)
    assert found["PATH"] == "/s/usr/bin:/s/usr/sbin:/bin:/usr/sbin:/sbin"
    assert found["LD_LIBRARY_PATH"] == "/s/libraries:/s/libraries/slurm-wlm:/mine"
    assert (found["SLURM_CONF"], found["A"]) == ("/s/slurm.conf", "b")
