"""Damaged journals and folders of workers: they stop no other worker, and nothing runs twice."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.runner.forkserver_client import Forkserver
from stoker.runner.interface import WorkerLost
from stoker.runner.journal import (
    AttemptExited,
    AttemptReturned,
    AttemptStarted,
    Born,
    JournalReader,
    JournalUnreadable,
    Record,
    create,
    line_of,
    record_of,
)
from stoker.runner.local import LocalRunner
from support.hostile import hostile, mutated
from support.local import Yard, yard
from support.wait import wait_until

WAITS = "while ! [ -e go ]; do sleep 0.01; done; exit 7"
WRITTEN: list[Record] = [
    AttemptStarted("1.1", 1700000000.125),
    Born("1.1", 4711, 4700, 123456, "5d4b5f0e-0000-4000-8000-000000000000"),
    AttemptExited("1.1", 1700000001.5, 1, 0, "exited", 123456, 'é "x"\n'),
    AttemptReturned("2.1", 1700000002.0),
    AttemptStarted("3.1", 1700000003.0),
    AttemptReturned("3.1", 1700000003.5, 28, "cannot write its output to /x: No space left on device"),
    AttemptStarted("4.1", 1700000004.0),
    Born("4.1", 4712, 4700, 123457, "5d4b5f0e-0000-4000-8000-000000000000"),
]
BYTES = b"".join(map(line_of, WRITTEN))


@pytest.fixture
def works(tmp_path: Path) -> Iterator[Yard]:
    with yard(tmp_path, "second") as made:
        yield made


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a journal, whose contents a test replaces."""
    path = tmp_path_factory.mktemp("journal") / "journal"
    os.close(create(str(path)))
    return path


def read(path: Path, contents: bytes) -> tuple[list[Record], JournalReader]:
    """What a reader makes of the contents, followed by NUL bytes as in a journal."""
    path.write_bytes(contents + bytes(4096))
    reader = JournalReader(str(path))
    return reader.news(), reader


@hostile
@given(st.data())
def test_reading_never_raises(journal: Path, data: st.DataObject) -> None:
    """Whatever was done to a journal: what is read is bounded, in order, and at most one attempt runs at a time."""
    records, reader = read(journal, data.draw(mutated(BYTES)))
    running: set[str] = set()
    for record in [*records, *reader.ends(["1.1", "4.1"])]:
        record_of(line_of(record)[:-1])
    for record in records:
        if isinstance(record, AttemptStarted):
            assert not running
            running.add(record.attempt)
        elif isinstance(record, AttemptExited) or (isinstance(record, AttemptReturned) and record.errno):
            running.remove(record.attempt)
    assert reader.news() == []
    reader.contents()
    reader.close()


class NoForkserver(Forkserver):
    """A forkserver that is not there."""

    def __init__(self) -> None:
        self._running = None
        self._failures = {}


@hostile
@given(st.data())
def test_nothing_is_lost_while_a_lock_is_held(journal: Path, data: st.DataObject) -> None:
    """Whatever its journal says: a worker is not lost, and no attempt of it free for another, while something lives.

    The attempt that runs is the last one in the journal; that it ended is believed only if a whole line says so.
    """
    folder = journal.parent / "first-1"
    folder.mkdir(exist_ok=True)
    (folder / "journal").write_bytes(data.draw(mutated(BYTES)) + bytes(4096))
    runner = LocalRunner(journal.parent, "second", forkserver=NoForkserver())
    with (
        (folder / data.draw(st.sampled_from(["lock", "jobs"]))).open("w") as lock,
        patch("stoker.runner.processes._all_processes", return_value=[]),  # a look at all of them takes long
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        runner.adopt("first-1")
        runner.account("first-1", "4.1")
        said = [event for _ in range(2) for _, event in runner.poll()]
        assert WorkerLost not in map(type, said)
        assert not [event for event in said if isinstance(event, AttemptReturned) and event.attempt == "4.1"]
    runner.close()
    for name in ("lock", "jobs"):
        (folder / name).unlink(missing_ok=True)


@given(st.binary(max_size=200))
def test_any_line(line: bytes) -> None:
    """Bytes that no worker wrote are refused by one kind of error."""
    with contextlib.suppress(JournalUnreadable):
        record_of(line)


@pytest.mark.parametrize("position", range(0, len(BYTES), 7))
def test_a_nul_byte_is_no_end(journal: Path, position: int) -> None:
    """A NUL byte with more behind it is damage: at the end of a journal there are only NUL bytes."""
    _, reader = read(journal, BYTES[:position] + b"\0" + BYTES[position + 1 :])
    assert reader.damage
    reader.close()


def test_a_start_that_looks_like_a_return(journal: Path) -> None:
    """One flipped bit makes an R of an S. What follows shows it, so the attempt is not given to another worker."""
    start = BYTES.index(b"S 4.1")
    records, reader = read(journal, BYTES[:start] + b"R" + BYTES[start + 1 :])
    assert AttemptReturned("4.1", 1700000004.0) not in records
    assert "contradicts" in reader.damage
    reader.close()


def spoil(journal: Path) -> None:
    """Write over the beginning, as the report of this fault did."""
    with journal.open("r+b") as file:
        file.write(b"GARBAGE \xff\xfe line\n")


def test_a_living_worker_with_a_damaged_journal(works: Yard) -> None:
    """Others go on; it leaves when its attempt is over, whose exit code is found in what follows the damage."""
    copies = works.directory / "copies"
    first = Yard(works.directory, "first")
    worker = first.begin(WAITS, shell="/bin/sh")
    first.runner.close()
    spoil(works.workers / worker / "journal")
    works.runner._copies = copies
    assert works.runner.adopt(worker)
    works.runner.account(worker, "1.1")
    wait_until(lambda: not works.records(AttemptExited) and works.runner.trouble)
    assert f"the journal of worker {worker} is damaged" in works.runner.trouble
    assert (copies / f"{worker}.journal").read_bytes().startswith(b"GARBAGE")
    other = works.runner.start_worker()
    works.start(other, "2.1", "true")
    assert works.wait_over("2.1").code == 0
    (works.directory / "go").touch()
    assert works.wait_over().code == 7
    works.wait_lost(worker)
    assert works.said[worker][-1] == WorkerLost(0, True)


def test_a_worker_whose_journal_is_damaged_while_it_works(works: Yard) -> None:
    """It gets no more attempts, and is told to leave."""
    worker = works.begin(WAITS, shell="/bin/sh")
    wait_until(lambda: works.records(AttemptStarted) and works.runner.process_of(worker, "1.1"))
    with (works.workers / worker / "journal").open("r+b") as file:
        file.seek(works.runner._links[worker].reader.offset)  # type: ignore[union-attr]
        file.write(b"nonsense " * 9 + b"\n")
    works.runner.account(worker, "2.1")  # it answers, which overwrites a part of the nonsense
    wait_until(lambda: works.records(AttemptStarted) and works.runner.trouble)
    assert works.runner.journal_is_full(worker)
    (works.directory / "go").touch()
    assert works.wait_over().code == 7
    works.wait_lost(worker)


def without_journal(folder: Path) -> None:
    (folder / "journal").unlink()


def directory_for_journal(folder: Path) -> None:
    (folder / "journal").unlink()
    (folder / "journal").mkdir()


def fifo_for_journal(folder: Path) -> None:
    (folder / "journal").unlink()
    os.mkfifo(folder / "journal")


def without_lock(folder: Path) -> None:
    (folder / "lock").unlink()


def directory_for_lock(folder: Path) -> None:
    (folder / "lock").unlink()
    (folder / "lock").mkdir()


def without_socket(folder: Path) -> None:
    (folder / "socket").unlink()


def without_anything(folder: Path) -> None:
    shutil.rmtree(folder)


def file_for_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


ODD = [
    without_journal,
    directory_for_journal,
    fifo_for_journal,
    without_lock,
    directory_for_lock,
    without_socket,
    without_anything,
    file_for_folder,
]


@pytest.mark.parametrize("spoilt", ODD)
def test_an_odd_folder_of_a_living_worker(works: Yard, spoilt: Callable[[Path], None]) -> None:
    """It is not dead, so nothing of it is lost before it has left; then it is."""
    first = Yard(works.directory, "first")
    worker = first.begin(WAITS, shell="/bin/sh")
    first.runner.close()
    spoilt(works.workers / worker)
    assert not works.runner.is_dead(worker)
    assert works.runner.adopt(worker)
    works.runner.account(worker, "1.1")
    for _ in range(3):
        works.listen()
    assert WorkerLost not in map(type, works.said[worker])
    (works.directory / "go").touch()
    works.runner.stop_worker(worker)
    works.wait_lost(worker)
    assert works.runner.is_dead(worker)
    assert [end.code for end in works.said[worker] if isinstance(end, AttemptExited)] in ([7], [])


@pytest.mark.parametrize("spoilt", ODD)
def test_an_odd_folder_of_a_dead_worker(works: Yard, spoilt: Callable[[Path], None]) -> None:
    """What it left is ended before it counts as lost, or no trace of it is found."""
    first = Yard(works.directory, "first")
    worker = first.begin("echo $$ > pid; exec sleep 1000", shell="/bin/sh")
    first.process_of(worker).kill()
    first.runner.close()
    wait_until(lambda: works.runner.is_dead(worker))
    spoilt(works.workers / worker)
    assert works.runner.is_dead(worker)
    if works.runner.adopt(worker):
        works.runner.account(worker, "1.1")
        works.wait_lost(worker)
    wait_until(lambda: not works.sleepers())
