"""`stoker run` with what makes jobs wait: arrays, dependencies and moments; and with configured defaults."""

from __future__ import annotations

import time

from support.cli import Stoker, until
from support.wait import wait_until


def test_an_array(stoker: Stoker) -> None:
    """A command runs once for each index, which it finds in its words and in a variable."""
    result = stoker("run", "--devices", "0,1", "-a", "2-6:2", "echo {i} $STOKER_ARRAY_INDEX >> ran")
    assert result.code == 0, result.err
    assert sorted(stoker.lines("ran")) == ["2 2", "4 4", "6 6"]


def test_an_array_has_its_limit(stoker: Stoker) -> None:
    """With %1 no two tasks run at once, however many devices there are."""
    line = "mkdir alone && sleep 0.05 && rmdir alone"
    assert stoker("run", "--devices", "0,1,2", "-a", "0-4%1", line).code == 0


def test_every_line_is_an_array_of_its_own(stoker: Stoker) -> None:
    """A list and a stream are spread alike, and the limit holds for each line."""
    stoker.write("jobs.txt", "echo a{i} >> ran", "echo b{i} >> ran")
    assert stoker("run", "--devices", "0,1", "-a", "0-1%1", "jobs.txt").code == 0
    assert stoker("run", "--devices", "0,1", "-a", "2-2", "-", stdin="echo c{i} >> ran\n").code == 0
    assert sorted(stoker.lines("ran")) == ["a0", "a1", "b0", "b1", "c2"]
    with_ids = stoker("history").out
    assert [name in with_ids for name in ("1.0", "1.1", "3.0", "3.1", "5.2")] == [True] * 5


def test_what_is_missing_of_an_array_is_resumed(stoker: Stoker) -> None:
    """--resume tells tasks apart, though their command is the same."""
    line = "test {i} != 1 -o -e mended && echo {i} >> ran"
    assert stoker("run", "--devices", "0", "-a", "0-2", line).code == 1
    (stoker.cwd / "mended").touch()
    assert stoker("run", "--devices", "0", "--resume", "-a", "0-2", line).code == 0
    assert stoker.lines("ran") == ["0", "2", "1"]


def test_after_a_job_of_another_run(stoker: Stoker) -> None:
    """It starts when that one has succeeded, and is skipped where it did not; an unknown id is refused."""
    first = stoker.start("run", "--devices", "0", "--", "sh", "-c", until("gate"))
    wait_until(lambda: stoker("run", "--devices", "1", "--dry-run", "-d", "1", "--", "true").code == 0, pause=0.1)
    second = stoker.start("run", "--devices", "1", "-d", "1", "--", "touch", "after")
    third = stoker.start("run", "--devices", "2", "-d", "notok:1", "--", "touch", "never")
    (stoker.cwd / "gate").touch()
    assert stoker.finish(first).code == 0
    assert stoker.finish(second).code == 0
    assert stoker.finish(third).code == 1
    assert (stoker.cwd / "after").exists()
    assert not (stoker.cwd / "never").exists()
    assert stoker("run", "--devices", "0", "-d", "99", "--", "true").code == 4


def test_not_before_a_moment(stoker: Stoker) -> None:
    """It waits for the moment, and starts then."""
    began = time.time()
    assert stoker("run", "--devices", "0", "-b", "now+2seconds", "--", "touch", "ran").code == 0
    assert (stoker.cwd / "ran").stat().st_mtime >= began + 1.9


def test_configured_defaults(stoker: Stoker) -> None:
    """A project's options hold for its runs too, and those of the command line go before them."""
    stoker.write("stoker.toml", "[defaults]", "gpus = 0", "[defaults.env]", "SEED = 3", "SIZE = 1")
    assert stoker("run", "--env", "SIZE=2", "--", "sh", "-c", "echo $SEED $SIZE > ran").code == 0
    assert stoker.lines("ran") == ["3 2"]
