"""Findings about a cluster: what is said, and whether it is a problem."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stoker import __version__
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.check import (
    NO_SHARED,
    OTHER_SHARED,
    Probe,
    check_limits,
    check_node,
    check_partition,
    check_release,
    skew,
)
from stoker.features.slurm.commands import JobReport, Reply, parse_sinfo

LAB = ClusterSettings(shared="/shared")
FACTS = {"host": "n1", "time": "105", "token": "abc", "stoker": f"stoker, version {__version__}"}
SINFO = (
    "gpu*|up|1:00|2|idle|gpu:4\ngpu*|up|1:00|1|down*|gpu:4\nold|down|1:00|1|idle|(null)\nbad|up|1:00|1|drain|(null)\n"
)


def probe(state: str = "COMPLETED", code: int = 0, reason: str = "None", facts: Mapping[str, str] = FACTS) -> Probe:
    """What a job found that was submitted at 100 and answered at 110."""
    return Probe(100.0, 110.0, JobReport(state, reason, code, "n1"), facts={**FACTS, **facts}, token="abc")


@pytest.mark.parametrize(
    ("out", "error", "level", "words"),
    [
        ("slurm-wlm 22.05.8", "", "ok", "Slurm 22.05.8"),
        ("slurm 25.05.1", "", "ok", "Slurm 25.05.1"),
        ("slurm 19.05.5", "", "note", "Slurm 19.05.5 is older than any release that Stoker was tried with"),
        ("", "sbatch is not on the PATH of this machine", "problem", "sbatch is not on the PATH"),
    ],
)
def test_releases(out: str, error: str, level: str, words: str) -> None:
    """An old one is worth knowing, none is a problem."""
    [found] = check_release(Reply(not error, out, error))
    assert (found.level, words in found.text) == (level, True)


@pytest.mark.parametrize(
    ("name", "level", "words"),
    [
        ("", "note", "gpu: 2 of 3 nodes can take jobs, with 8 GPUs in Slurm; limit 1:00"),
        ("gpus", "problem", "there is no partition 'gpus'"),
        ("old", "problem", "partition old is down"),
        ("bad", "problem", "bad: 0 of 1 nodes can take jobs"),
    ],
)
def test_partitions(name: str, level: str, words: str) -> None:
    """The partition must exist, be up, and have a node."""
    [found] = check_partition(name, parse_sinfo(SINFO))
    assert (found.level, words in found.text) == (level, True)


def test_no_default_partition() -> None:
    """Then one must be chosen."""
    [found] = check_partition("", parse_sinfo(SINFO.replace("*|up", "|up")))
    assert (found.level, found.advice) == ("problem", "set partition to one of gpu, old, bad")


def test_limits() -> None:
    """A short memory of Slurm, and arrays that are off, are worth knowing."""
    assert [each.level for each in check_limits("MaxArraySize = 1001\nMinJobAge = 300 sec\n")] == ["ok", "ok"]
    assert [each.level for each in check_limits("MaxArraySize = 0\nMinJobAge = 2 sec\n")] == ["note", "note"]
    assert list(check_limits("")) == []


@pytest.mark.parametrize(
    ("found", "level", "words"),
    [
        (Probe(0, 1, None, refusal="invalid partition"), "problem", "sbatch refuses a job: invalid partition"),
        (Probe(0, 1, None), "problem", "Slurm does not know the job"),
        (probe("PENDING", reason="Priority"), "note", "no node took a job in time (Slurm says Priority)"),
        (probe("FAILED", NO_SHARED), "problem", "n1 has no /shared"),
        (probe("FAILED", OTHER_SHARED), "problem", "/shared on n1 is another directory than here"),
        (probe("FAILED", 1, facts={"host": ""}), "problem", "ended as FAILED (exit code 1) without an answer"),
    ],
)
def test_jobs_that_tell_nothing(found: Probe, level: str, words: str) -> None:
    """Each failure of the check's job has one finding."""
    [verdict] = check_node(found, LAB, "python")
    assert (verdict.level, words in verdict.text) == (level, True)


@pytest.mark.parametrize(
    ("facts", "levels"),
    [
        ({}, ["ok", "ok", "ok"]),
        ({"token": "old"}, ["problem", "ok", "ok"]),
        ({"stoker": "python: not found"}, ["ok", "problem", "ok"]),
        ({"stoker": "stoker, version 0.0.1"}, ["ok", "problem", "ok"]),
        ({"time": "300"}, ["ok", "ok", "problem"]),
        ({"time": "1"}, ["ok", "ok", "problem"]),
        ({"time": "now"}, ["ok", "ok", "ok"]),
    ],
)
def test_answers(facts: dict[str, str], levels: list[str]) -> None:
    """Directory, program and clock of the node."""
    assert [each.level for each in check_node(probe(facts=facts), LAB, "python")] == levels


def test_skew() -> None:
    """Only what the time between question and answer cannot explain counts."""
    assert [skew(probe(facts={"time": told})) for told in ("100", "110", "130", "40")] == [0, 0, 20, -60]
