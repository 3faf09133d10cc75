"""`stoker run --dry-run` as data, and together with --resume."""

from __future__ import annotations

import msgspec

from stoker.cli.screens.dry_run import DryRun
from support.cli import Stoker


def test_as_data(stoker: Stoker) -> None:
    """With --json the plan is one value, with the device of what starts and the reason of what waits."""
    result = stoker("run", "--devices", "7", "--dry-run", "--json", "-", stdin="touch a\ntouch b\n")
    first, second = msgspec.json.decode(result.out, type=DryRun).jobs
    assert (first.devices, first.why) == (["7"], "starts at once")
    assert (second.devices, second.why) == ([], "needs 1 GPU; none free")
    assert not (stoker.cwd / "a").exists()


def test_what_succeeded_before_is_told(stoker: Stoker) -> None:
    """With --resume, what would be skipped says so, and the others move up."""
    stoker.write("jobs.txt", "true", "false")
    stoker("run", "--devices", "0", "jobs.txt")
    result = stoker("run", "--devices", "0", "--dry-run", "--resume", "jobs.txt")
    _, first, second = result.out.splitlines()
    assert first.endswith("succeeded before")
    assert second.endswith("starts at once")


def test_a_dry_run_writes_no_jobs(stoker: Stoker) -> None:
    """After a dry run the queue is as empty as before."""
    stoker("run", "--devices", "0", "--dry-run", "-", stdin="true\n")
    assert stoker("logs").code == 4


def test_each_line_is_an_array_with_its_own_limit(stoker: Stoker) -> None:
    """The limit of one array does not hold back another."""
    stoker.write("jobs.txt", "echo a{i}", "echo b{i}")
    result = stoker("run", "--devices", "0,1", "--dry-run", "-G", "0", "-a", "0-1%1", "jobs.txt")
    reasons = [line.rpartition("\t")[2] for line in result.out.splitlines()[1:]]
    assert [reason == "starts at once" for reason in reasons] == [True, False, True, False]


def test_a_moment_is_told(stoker: Stoker) -> None:
    """A job that begins later does not start at once."""
    stoker.write("jobs.txt", "echo a")
    later = stoker("run", "--devices", "0", "--dry-run", "-b", "now+1hour", "jobs.txt")
    assert "begins" in later.out.splitlines()[1].rpartition("\t")[2]
