"""What `stoker submit` refuses, with which exit code, and that nothing is left of it."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from pathlib import Path

import pytest

from stoker.store.paths import find_paths
from support.background import Background
from support.cli import Outcome, Stoker
from support.disk import fill, small_disk
from support.wait import wait_until


def jobs(queue: Background) -> int:
    """How many jobs were ever in the queue."""
    with queue.open_store() as store:
        return store.last_job() or 0


def assert_refused(outcome: Outcome, code: int, *words: str) -> None:
    """One sentence and a hint on stderr, and nothing on stdout."""
    assert (outcome.code, outcome.out) == (code, ""), outcome.err
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["-t", "soon"], "not a duration"),
        (["--grace", "x"], "not a duration"),
        (["-m", "3X"], "not a size"),
        (["-m", "automatic"], "auto or all"),
        (["-b", "25:99"], "not a time"),
        (["-a", "9-1"], "is a reversed range"),
        (["-a", "0-9%0"], "no task run"),
        (["-a", ""], "not an array"),
        (["-d", "foo:1"], "not a kind of dependency"),
        (["-d", "1,,2"], "id is missing"),
        (["--retry-on", "lost"], "neither a result nor an exit code"),
        (["--retry-on", "0"], "neither a result nor an exit code"),
        (["--retries", "-1"], "must not be negative"),
        (["-G", "-1"], "must not be negative"),
        (["--env", "A"], "NAME=VALUE"),
        (["--tag", "A"], "NAME=VALUE"),
        (["--group", "a\x1bb"], "is not printable or too long"),
        (["-o", "-"], "terminal"),
        (["-D", "nowhere"], "cannot enter"),
        (["--mem", "3G"], "did you mean --vram"),
        (["--sim", "0x"], "simulated GPUs"),
    ],
)
def test_what_cannot_be_understood(background: Background, arguments: list[str], word: str) -> None:
    """Exit code 2, a sentence, and no engine is started for it."""
    assert_refused(background("submit", *arguments, "true"), 2, word)
    assert (jobs(background), background.engine_process) == (0, None)


def test_commands_that_are_none(background: Background) -> None:
    """No command, an empty one, a list without -f, both a list and a command, and files without jobs."""
    background.write("jobs.txt", "true")
    background.write("empty.txt", "# nothing")
    assert_refused(background("submit"), 2, "no command given")
    assert_refused(background("submit", " "), 2, "the command is empty")
    assert_refused(background("submit", "jobs.txt"), 2, "did you mean -f jobs.txt?")
    assert_refused(background("submit", "-f", "jobs.txt", "true"), 2, "both a file and a command")
    assert_refused(background("submit", "-f", "empty.txt"), 2, "no job in empty.txt")
    assert_refused(background("submit", "-f", "nowhere"), 2, "cannot read")
    assert_refused(background("submit", "-f", "-", stdin=b"true\na\0b\n"), 2, "line 2", "NUL")
    assert jobs(background) == 0


def test_a_bad_line_keeps_the_whole_list_out(background: Background) -> None:
    """All or none: the error names the line."""
    background.write("jobs.jsonl", '{"command": "true"}', '{"command": "true", "time": "never"}')
    assert_refused(background("submit", "-f", "jobs.jsonl"), 2, "jobs.jsonl line 2", "not a duration")
    background.write("jobs.jsonl", '{"command": "true"}', '{"command": "true", "gpu_typ": "a100"}')
    assert_refused(background("submit", "-f", "jobs.jsonl"), 2, "jobs.jsonl line 2", "did you mean gpu_type?")
    assert jobs(background) == 0


@pytest.mark.parametrize("after", ["7", "any:7", "1-7", "1.9", "2.0", "nobody", "x*"])
def test_jobs_that_are_not_there(background: Background, after: str) -> None:
    """Nothing can wait for what does not exist."""
    background("submit", "--hold", "-a", "0-0", "true")
    assert_refused(background("submit", "-d", after, "true"), 4)
    assert jobs(background) == 1


def test_a_job_cannot_wait_for_itself(background: Background) -> None:
    """The id that it would get is not there yet."""
    assert_refused(background("submit", "-d", "1", "true"), 4, "the queue is empty")


class TestNeverSatisfied:
    """A need that this machine can never meet."""

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["-G", "3"], ["needs 3 GPUs; this machine has 2", "the GPUs are 0, 1"]),
            (["-m", "30G"], ["the largest has 24.0G"]),
            (["--gpu-type", "h100"], ["'h100'", "SIM 24G"]),
            (["--on", "7"], ["no device '7'", "known devices: 0, 1"]),
            (["-G", "2", "--on", "0"], ["1 is allowed"]),
        ],
    )
    def test_it_says_what_the_machine_has(self, background: Background, arguments: list[str], words: list[str]) -> None:
        """Exit code 5, at submit."""
        assert_refused(background("submit", *arguments, "true"), 5, *words)
        assert jobs(background) == 0

    def test_more_than_the_user_wants_to_have(self, background: Background) -> None:
        """A job for more GPUs than may be used at once would wait for ever."""
        assert_refused(background("submit", "-G", "2", "true", STOKER_MAX_USE="1"), 5)

    def test_a_machine_without_gpu(self, stoker: Stoker) -> None:
        """GPU jobs are refused with what was looked for; jobs that need none run."""
        assert_refused(stoker("submit", "true"), 5, "no GPU found", "-G 0")
        outcome = stoker("submit", "--parsable", "-G", "0", "touch ran")
        assert (outcome.code, outcome.out) == (0, "1\n")
        wait_until((stoker.cwd / "ran").exists)

    def test_a_refusal_leaves_no_engine_without_gpus_behind(self, stoker: Stoker) -> None:
        """Devices that are named right after it count, as the hint says."""
        assert_refused(stoker("submit", "true"), 5, "STOKER_DEVICES")
        outcome = stoker("submit", "--parsable", "echo $CUDA_VISIBLE_DEVICES > ran", STOKER_DEVICES="3")
        assert (outcome.code, outcome.out) == (0, "1\n")
        wait_until(lambda: (stoker.cwd / "ran").exists() and (stoker.cwd / "ran").read_text() == "3\n")


class TestTooLarge:
    """What the kernel would not start a program with."""

    def test_one_variable(self, background: Background) -> None:
        """Its name is told, and its value is not."""
        background.write("jobs.jsonl", json.dumps({"command": "true", "env": {"LARGE": "x" * 10_000_000}}))
        outcome = background("submit", "-f", "jobs.jsonl")
        assert_refused(outcome, 2, "jobs.jsonl line 1", "LARGE", "128K")
        assert len(outcome.err) < 1000

    def test_many_variables(self, background: Background) -> None:
        """All of them together."""
        env = {f"V{number}": "x" * 100_000 for number in range(100)}
        background.write("jobs.jsonl", json.dumps({"command": "true", "env": env}))
        assert_refused(background("submit", "-f", "jobs.jsonl"), 2, "together")

    def test_a_command(self, background: Background) -> None:
        """A line of a list, which a shell would be given as one word."""
        background.write("jobs.txt", "true", "true " + "x" * 140_000)
        assert_refused(background("submit", "-f", "jobs.txt"), 2, "jobs.txt line 2", "128K")
        assert jobs(background) == 0


class TestState:
    """A queue that cannot be used."""

    def test_a_full_disk(self, background: Background, tmp_path: Path) -> None:
        """Nothing is half-written; when there is space again, it goes on."""
        with small_disk(tmp_path / "disk", "size=2m") as disk:
            background.environment["STOKER_STATE"] = str(disk / "state")
            background.paths = find_paths(background.environment, os.uname().nodename, simulated=True)
            assert background("submit", "--hold", "-G", "0", "true").code == 0
            ballast = fill(disk)
            background.write("jobs.txt", *["true"] * 10_000)
            assert_refused(background("submit", "--hold", "-G", "0", "-f", "jobs.txt"), 125, "full")
            ballast.unlink()
            assert jobs(background) == 1
            assert background("submit", "--hold", "--parsable", "-G", "0", "true").out == "2\n"
            background("engine", "stop")

    def test_a_disk_that_nobody_can_write_to(self, background: Background, tmp_path: Path) -> None:
        """Refused with a sentence."""
        with small_disk(tmp_path / "disk", "ro") as disk:
            assert_refused(background("submit", "-G", "0", "true", STOKER_STATE=str(disk)), 125, "state directory")

    def test_a_damaged_queue(self, background: Background) -> None:
        """It is refused and left as it is."""
        background.paths.database.write_bytes(b"this is not a database" * 100)
        assert_refused(background("submit", "-G", "0", "true"), 125, "damaged")
        assert background.paths.database.read_bytes() == b"this is not a database" * 100

    def test_a_queue_of_a_newer_stoker(self, background: Background) -> None:
        """It is refused and left as it is."""
        with contextlib.closing(sqlite3.connect(background.paths.database)) as database:
            database.execute("PRAGMA user_version = 999")
        assert_refused(background("submit", "-G", "0", "true"), 125, "newer Stoker")
        with contextlib.closing(sqlite3.connect(background.paths.database)) as database:
            assert database.execute("PRAGMA user_version").fetchone() == (999,)

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
    def test_a_state_directory_of_somebody_else(self, background: Background) -> None:
        """What is in it could be anything."""
        os.chown(background.paths.state, 12345, 12345)
        assert_refused(background("submit", "-G", "0", "true"), 125, "belongs to another user")

    def test_a_directory_that_is_gone(self, background: Background) -> None:
        """Who submits from nowhere is told so."""
        outcome = background.typed("mkdir gone && cd gone && rmdir ../gone && stoker submit -G 0 true")
        assert_refused(outcome, 2, "current directory")
