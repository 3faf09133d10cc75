"""Slurm's commands: their variables, how they fail, and what they print.

Texts of sinfo and scontrol in this file were printed by Slurm 22.05.8.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from features.slurm.fake_slurm import write_program
from stoker.core.settings import ClusterSettings
from stoker.features.slurm.cluster import SlurmFact
from stoker.features.slurm.commands import (
    Done,
    JobReport,
    Limits,
    Nodes,
    SlurmCommands,
    ask,
    has_alive,
    indices,
    is_usable,
    parse_config,
    parse_gres,
    parse_job,
    parse_sinfo,
    parse_version,
    read_error,
    read_facts,
    read_submitted,
    slurm_environment,
    version_text,
)
from support.wait import wait_until

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
TAG = "stoker:lab-1/7-ab-1"
POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
)


def test_a_collapsed_array_is_spread() -> None:
    """squeue has one line for all tasks that wait."""
    text = (
        f"12_[3-5,9%2]|PENDING|Priority|1794888223|{TAG}\n"
        f"12_1|RUNNING|None|1794888000|{TAG}|n[1-2]\n"
        f"13|COMPLETED|None|N/A|{TAG}2|\n"
        "14|RUNNING|None|1794888000|somebody else's | comment\n"
        "15|RUNNING|None|1794888000|(null)\n"
    )
    facts = read_facts(text)
    assert sorted(facts) == [(TAG, 1), (TAG, 3), (TAG, 4), (TAG, 5), (TAG, 9), (f"{TAG}2", 0)]
    assert facts[TAG, 1] == SlurmFact("RUNNING", "None", "12_1", 1794888000.0, "n[1-2]")
    assert facts[TAG, 4] == SlurmFact("PENDING", "Priority", "12_4", 1794888223.0)
    assert facts[f"{TAG}2", 0] == SlurmFact("COMPLETED", "None", "13", None)


def test_of_two_tasks_with_one_tag_the_living_one_counts() -> None:
    """After a crash of its controller Slurm may show a finished task and start it again."""
    ended, runs = f"3_0|FAILED|None|N/A|{TAG}\n", f"9_0|RUNNING|None|N/A|{TAG}\n"
    assert read_facts(ended + runs)[TAG, 0].job == read_facts(runs + ended)[TAG, 0].job == "9_0"


@pytest.mark.parametrize(
    ("text", "found"), [("3", [3]), ("[0-8:4%2]", [0, 4, 8]), ("[1,3-4]", [1, 3, 4]), ("[1-3,...]", [1, 2, 3])]
)
def test_indices(text: str, found: list[int]) -> None:
    """All forms in which Slurm writes tasks."""
    assert indices(text) == found


@pytest.mark.parametrize(("text", "found"), [("12\n", "12"), ("a warning\n12;lab\n", "12"), ("", "")])
def test_the_id_of_a_submit(text: str, found: str) -> None:
    """The name of a cluster may follow it."""
    assert read_submitted(text) == found


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", "refused"),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", "refused"),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", "away"),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", "away"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition combination", "refused"),
        ("sbatch: error: Batch job submission failed: Invalid qos specification", "refused"),
        (f"AssocMaxSubmitJobLimit; {POLICY}", "limit"),
        (f"QOSMaxSubmitJobPerUserLimit; {POLICY}", "limit"),
        (POLICY, "limit"),
        (f"QOSMaxWallDurationPerJobLimit; {POLICY}", "refused"),
        ("Batch job submission failed: Insane message length", "away"),
        ("Batch job submission failed: Incompatible versions of client and server code", "away"),
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", "away"),
        ("", "away"),
    ],
)
def test_a_refusal_is_told_from_a_limit_and_from_a_controller_that_is_away(error: str, answer: str) -> None:
    """What was refused is not tried again; a limit of submitted jobs passes, one of a single job does not."""
    assert Done("submit", "", False, "", error, 0.0, 0.0).answer == answer


def test_the_words_of_an_administrator_are_kept() -> None:
    """A plugin of the controller says what is wrong; Slurm's own last line only says that something is."""
    text = "sbatch: error: Please give --time\nsbatch: error: Batch job submission failed: Unspecified error\n"
    assert read_error(text) == "Please give --time; Batch job submission failed: Unspecified error"
    assert read_error("no luck\n\n") == "no luck"
    assert read_error("error: \x1b[31mred") == r"\x1b[31mred"
    assert read_error("") == ""


def test_any_job_of_the_user_may_end() -> None:
    """Each counts for a submit limit, also one that another program submitted."""
    assert has_alive("1|COMPLETED|None|N/A|(null)\n2|PENDING|Priority|N/A|(null)\n")
    assert not has_alive("1|COMPLETED|None|N/A|(null)\n3_[1-2]|CANCELLED by 0|None|N/A|(null)\n")


def test_a_missing_program_is_no_refusal(tmp_path: Path) -> None:
    """Slurm may be installed later, or its file system be away for a moment."""
    commands = SlurmCommands({"PATH": str(tmp_path)}, os.getuid(), time.monotonic)
    commands.query()
    done = commands.finished()
    assert done is not None
    assert "cannot run squeue" in done.error
    assert not done.ok
    assert done.answer == "away"


def test_a_large_answer_does_not_block(tmp_path: Path) -> None:
    """Output goes to a file: a pipe would be full."""
    write_program(tmp_path, "squeue", "head -c 3000000 /dev/zero | tr '\\0' 'x'; echo no >&2; exit 1")
    commands = SlurmCommands({"PATH": f"{tmp_path}:{os.environ['PATH']}"}, os.getuid(), time.monotonic)
    commands.query()
    found: list[Done] = []

    def ended() -> bool:
        found.extend(filter(None, [commands.finished()]))
        return bool(found)

    wait_until(ended)
    assert (len(found[0].out), found[0].error, found[0].ok) == (3_000_000, "no", False)


# -- commands that are waited for --------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for programs that stand in for Slurm's."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_a_program_that_is_missing(programs: Path) -> None:
    """The reply names it."""
    reply = ask(ClusterSettings(), "snothing")
    assert (reply.ok, reply.error) == (False, "snothing is not on the PATH of this machine")


def test_the_last_words_of_a_program(programs: Path) -> None:
    """Users see them."""
    write_program(programs, "sinfo", "echo first >&2; echo slurm_load_partitions: refused >&2; exit 1")
    reply = ask(ClusterSettings(), "sinfo")
    assert (reply.ok, reply.error) == (False, "slurm_load_partitions: refused")


def test_a_program_that_hangs(programs: Path) -> None:
    """It is given up."""
    write_program(programs, "sinfo", "exec sleep 100")
    assert ask(ClusterSettings(), "sinfo", seconds=0.1).error == "sinfo takes longer than 0.1 s"


# -- variables, and what sinfo and scontrol print ----------------------------------------------------


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
        Nodes("all", True, True, "10:00:00", 2, "idle", True, 4),
        Nodes("all", True, True, "10:00:00", 1, "down", False, 4),
        Nodes("urgent", False, True, "infinite", 3, "drain", True, 0),
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
