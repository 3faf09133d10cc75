"""The CSV file of priority_scheduler: rows taken, numbered and removed, with a crash wherever one may come."""

from __future__ import annotations

import fcntl
import io
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.app.jobs.task_list import Task
from stoker.core.errors import StokerError, UsageError
from stoker.features.compat.priority_scheduler import task_file
from stoker.features.compat.priority_scheduler.task_file import (
    TaskFile,
    TaskRow,
    TaskRows,
    Tickets,
    find_counter,
    reserve,
)
from support.wait import wait_until

HEADER = "Directory,Executable,Filename,Epochs,Priority\n"


def row(name: str) -> str:
    return f".,-1,{name}.py,1,1"


OPENED: list[TaskFile | io.FileIO] = []


@pytest.fixture(autouse=True)
def closed_at_the_end() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


def opened(path: Path, header: int | None) -> TaskFile:
    OPENED.append(file := TaskFile(str(path), header))
    return file


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.csv"
    path.write_text(HEADER + "".join(f"{row(name)}\n" for name in "abc"))
    return path


def test_all_but_the_row_stays_to_the_byte(path: Path) -> None:
    """Marks, line ends, quotes, blank lines, rows above the header and bytes that are not UTF-8 are left alone."""
    before = b'\xef\xbb\xbfexported,"by\r\nhand"\r\n\r\n' + HEADER.encode() + b'"d\xff",-1,x.py,1,1\r\n'
    after = b"\n,,,,\n.,-1,y.py,1,1"
    path.write_bytes(before + b'.,-1,"a.py, b",1,1\r\n' + after)
    opened(path, 1).remove('.,-1,"a.py, b",1,1')
    assert path.read_bytes() == before + after


def test_the_first_of_equal_rows_is_removed(path: Path) -> None:
    """Rows with the same text are as many tasks."""
    path.write_text(HEADER + f"{row('a')}\n" * 3)
    file = opened(path, 0)
    file.remove(row("a"))
    assert len(file.read()) == 2


def test_a_row_that_is_gone(path: Path) -> None:
    """What somebody else has removed need not be removed."""
    before = path.read_text()
    opened(path, 0).remove(row("z"))
    assert path.read_text() == before


def test_mode_and_links_stay(path: Path, tmp_path: Path) -> None:
    """The file keeps its mode, and a link to it stays a link."""
    path.chmod(0o640)
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    opened(link, 0).remove(row("a"))
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert row("a") not in path.read_text()


def test_what_a_killed_writer_left(path: Path, tmp_path: Path) -> None:
    """A half-written copy counts for nothing, and is gone after the next write."""
    (tmp_path / ".tasks.csv.new").write_text("half")
    opened(path, 0).remove(row("a"))
    assert os.listdir(tmp_path) == ["tasks.csv"]


def test_rows_appended_to_the_old_copy(path: Path) -> None:
    """Somebody who opened the file before it was replaced, and appends to it after that, is heard all the same."""
    file = opened(path, 0)
    with path.open("a") as late:
        file.remove(row("a"))
        late.write(f"{row('d')}\n")
    assert [task.text for task in file.read()] == [row("b"), row("c"), row("d")]
    with path.open("a") as late:
        file.remove(row("b"))
        late.write(f"{row('e')}\n")
    file.close()
    assert path.read_text().splitlines()[1:] == [row("c"), row("d"), row("e")]


def test_the_new_file_is_locked_at_once(path: Path) -> None:
    """A row is removed once, even if rows that were appended to the old copy cannot be brought over yet."""
    path.write_text(HEADER + f"{row('a')}\n" * 2)
    file = opened(path, 0)

    def append_and_lock() -> None:
        with path.open("a") as late:
            late.write(f"{row('b')}\n")
        held.append(os.open(path.with_name(".tasks.csv.new"), os.O_RDONLY))
        fcntl.flock(held[0], fcntl.LOCK_EX)

    held: list[int] = []
    file.remove(row("a"), append_and_lock)
    assert path.read_text() == HEADER + f"{row('a')}\n"
    os.close(held[0])
    assert [task.text for task in file.read()] == [row("a"), row("b")]


def test_a_file_that_somebody_holds(path: Path) -> None:
    """It is not changed under a lock of others."""
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            opened(path, 0).remove(row("a"))
    assert row("a") in path.read_text()


def test_a_file_that_vanished(path: Path) -> None:
    """Reading says so, and removing fails."""
    file = opened(path, 0)
    path.unlink()
    with pytest.raises(UsageError, match="No such file"):
        file.read()
    with pytest.raises(FileNotFoundError):
        file.remove(row("a"))


def test_no_header_names_the_option(path: Path) -> None:
    """Where the header is not found, the hint names the option for that."""
    path.write_text(row("a"))
    with pytest.raises(UsageError) as refused:
        opened(path, 0).read()
    assert "--header None" in refused.value.hint
    assert len(opened(path, None).read()) == 1


# -- rows ----------------------------------------------------------------------------------------


class Scheduler:
    """One run over a file, which may die without a word."""

    def __init__(self, directory: Path, *, size: int = 20, keep: bool = False) -> None:
        file = opened(directory / "tasks.csv", 0)
        self.tickets = Tickets(directory / "state" / "tickets", file.path)
        OPENED.append(self.tickets._file)
        self.rows = TaskRows(file, self.tickets, directory / "counter.txt", size=size, keep=keep)
        self.said: list[str] = []

    def batch(self, fault: Callable[[Task], str] = lambda _: "") -> list[TaskRow]:
        return self.rows.next_batch(fault, self.said.append)

    def names(self) -> list[str]:
        return [row.task.filename for row in self.batch()]

    def die(self) -> None:
        """As kill -9 does it: locks are gone, and nothing else happens."""
        self.tickets._file.close()

    def end(self, *, interrupted: bool = False) -> None:
        self.rows.close(interrupted=interrupted)
        self.tickets.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write(tmp_path, ("a", 3), ("b", 1), ("c", 2), ("d", 1), ("e", 0))
    return tmp_path


def write(directory: Path, *tasks: tuple[str, int]) -> None:
    lines = [f".,-1,{name},1,{priority}\n" for name, priority in tasks]
    (directory / "tasks.csv").write_text(HEADER + "".join(lines))


def left(directory: Path) -> list[str]:
    """The names in the file."""
    return [line.split(",")[2] for line in (directory / "tasks.csv").read_text().splitlines()[1:]]


# -- batches ---------------------------------------------------------------------------------------


def test_batches_are_in_file_order_and_sorted_inside(directory: Path) -> None:
    """A batch is the next rows of the file; within it lower priorities go first, equal ones as they stand."""
    scheduler = Scheduler(directory, size=4)
    assert scheduler.names() == ["b", "d", "c", "a"]


def test_the_next_batch_is_what_is_left_by_then(directory: Path) -> None:
    """Rows that succeeded are gone, those that failed are not taken again, and appended ones are."""
    scheduler = Scheduler(directory, size=2)
    good, bad = scheduler.batch()
    scheduler.rows.succeeded(good)
    scheduler.rows.failed(bad, "exit 1")
    with (directory / "tasks.csv").open("a") as file:
        file.write(".,-1,f,1,9\n")
    assert [scheduler.names(), left(directory)] == [["d", "c"], ["a", "c", "d", "e", "f"]]


def test_a_row_without_sense_is_passed_over_once(directory: Path) -> None:
    """It is told of once, takes no place in a batch and stays in the file."""
    scheduler = Scheduler(directory, size=2)
    first = scheduler.batch(lambda task: "no" if task.filename == "a" else "")
    assert [row.task.filename for row in first] == ["b", "c"]
    for row in first:
        scheduler.rows.succeeded(row)
    assert scheduler.names() == ["e", "d"]
    assert scheduler.said == [f"{directory}/tasks.csv line 2 is left out: no"]
    assert left(directory) == ["a", "d", "e"]


def test_the_file_is_kept(directory: Path) -> None:
    """With keep the file stays as it is, and each row is run once in a run, and again in the next."""
    for _ in range(2):
        scheduler = Scheduler(directory, keep=True)
        for row in scheduler.batch():
            scheduler.rows.succeeded(row)
        assert scheduler.names() == []
        scheduler.end()
    assert left(directory) == ["a", "b", "c", "d", "e"]
    assert (directory / "counter.txt").read_text() == "10"


# -- numbers ---------------------------------------------------------------------------------------


def test_numbers_go_on_from_the_counter(directory: Path) -> None:
    """They are positions after sorting, from what the counter says; it is moved before any of them is used."""
    (directory / "counter.txt").write_text("41\n")
    scheduler = Scheduler(directory, size=3)
    assert [(row.task.filename, row.ticket.number) for row in scheduler.batch()] == [("b", 41), ("c", 42), ("a", 43)]
    assert (directory / "counter.txt").read_text() == "44"


@pytest.mark.parametrize("text", ["many", "-3", "1.5", "1" * 40])
def test_a_counter_that_holds_no_number(tmp_path: Path, text: str) -> None:
    """It is refused rather than begun anew: its numbers may be in use."""
    (tmp_path / "counter.txt").write_text(text)
    with pytest.raises(UsageError, match="does not hold a number"):
        reserve(tmp_path / "counter.txt", 1)


def test_a_counter_that_cannot_be_written(tmp_path: Path) -> None:
    """It is said which file that is."""
    (tmp_path / "counter.txt").mkdir()
    with pytest.raises(StokerError, match=r"counter\.txt: Is a directory"):
        reserve(tmp_path / "counter.txt", 1)


def test_which_counter(tmp_path: Path) -> None:
    """The tool's own where there is one, else one beside the file."""
    spare = tmp_path / "spare"
    assert find_counter(tmp_path, tmp_path / "lists" / "tasks.csv", spare) == spare
    (tmp_path / "lists").mkdir()
    assert find_counter(tmp_path, tmp_path / "lists" / "tasks.csv", spare) == tmp_path / "lists" / "counter.txt"
    (tmp_path / "scheduler_files").mkdir()
    own = tmp_path / "scheduler_files" / "counter.txt"
    own.write_text("3")
    assert find_counter(tmp_path, tmp_path / "lists" / "tasks.csv", spare) == own


# -- crashes ---------------------------------------------------------------------------------------


def test_a_dead_run_leaves_numbers_to_the_next(directory: Path) -> None:
    """After kill -9 the same rows have the same tickets, and new rows get new numbers."""
    first = Scheduler(directory, size=3)
    before = {row.task.filename: row.ticket for row in first.batch()}
    first.die()
    second = Scheduler(directory)
    after = {row.task.filename: row.ticket for row in second.batch()}
    assert {name: after[name] for name in before} == before
    assert {after["d"].number, after["e"].number} == {3, 4}


def test_an_interrupted_run_goes_on_and_a_finished_one_does_not(directory: Path) -> None:
    """What a signal stopped goes on under its number; after an end, numbers are new."""
    numbers = []
    for interrupted in (True, False, False):
        scheduler = Scheduler(directory)
        numbers.append([row.ticket.number for row in scheduler.batch()])
        scheduler.end(interrupted=interrupted)
    assert numbers == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert os.listdir(directory / "state") == []


def test_a_row_in_the_hands_of_another_engine(directory: Path) -> None:
    """It is not taken again, all is not well, and the next run knows it by its ticket."""
    first = Scheduler(directory, size=1)
    (row,) = first.batch()
    first.rows.left_to_others(row)
    assert first.names() == ["b"]
    first.end()
    assert not first.rows.all_well
    assert [each.ticket for each in Scheduler(directory).batch() if not each.new] == [row.ticket]


def test_a_failed_row_begins_anew(directory: Path) -> None:
    """The next run gives it another number, even if this one is killed."""
    first = Scheduler(directory, size=1)
    (row,) = first.batch()
    first.rows.failed(row, "exit 1")
    first.die()
    (again,) = Scheduler(directory, size=1).batch()
    assert (again.task.filename, again.ticket.number, again.new) == ("a", 1, True)


def test_a_line_of_tickets_that_was_cut_off(directory: Path) -> None:
    """What a crash left unfinished counts for nothing, and what follows it does."""
    first = Scheduler(directory, size=1)
    (row,) = first.batch()
    first.die()
    with (directory / "state" / "tickets").open("ab") as file:
        file.write(b'\n{"dropped":"' + row.ticket.token.encode())
    second = Scheduler(directory, size=1)
    assert second.batch()[0].ticket == row.ticket
    second.rows.failed(second_row := TaskRow(row.task, row.ticket, new=False), "exit 1")
    second.die()
    assert Scheduler(directory, size=1).batch()[0].ticket != second_row.ticket


def test_one_scheduler_for_a_file(directory: Path) -> None:
    """A second one is refused while the first works, and welcome afterwards."""
    first = Scheduler(directory)
    with pytest.raises(UsageError, match="another priority_scheduler uses tasks"):
        Scheduler(directory)
    first.end()
    Scheduler(directory).end()


def test_a_row_that_cannot_be_removed(directory: Path) -> None:
    """It is not run again in this run nor in the next, which is told of it; and the trouble is told."""
    first = Scheduler(directory, size=1)
    (row,) = first.batch()
    text = (directory / "tasks.csv").read_text()
    (directory / "tasks.csv").unlink()
    first.rows.succeeded(row)
    (directory / "tasks.csv").mkdir()
    first.end()
    assert [each.task.filename for each in first.rows.unremoved] == ["a"]
    assert "cannot be updated: No such file" in first.rows.troubles[0]
    (directory / "tasks.csv").rmdir()
    (directory / "tasks.csv").write_text(text)
    assert Scheduler(directory, size=1).batch() == [TaskRow(row.task, row.ticket, new=False)]


# -- a crash at every system call ------------------------------------------------------------------


class DyingOs:
    """The module os, which ends the process at one of its calls, as kill -9 does."""

    def __init__(self, calls: int) -> None:
        self._left = calls
        self.path = os.path

    def __getattr__(self, name: str) -> object:
        member = getattr(os, name)
        if not callable(member):
            return member

        def call(*arguments: object, **named: object) -> object:
            self._left -= 1
            if self._left < 0:
                os._exit(9)
            return member(*arguments, **named)

        return call


def work(directory: Path, calls: int) -> bool:
    """Run a scheduler in a process of its own that dies after so many calls; whether it came to its end."""
    with warnings.catch_warnings(action="ignore"):  # this process has one thread that matters
        child = os.fork()
    if child == 0:
        vars(task_file)["os"] = DyingOs(calls)
        scheduler = Scheduler(directory, size=2)
        while batch := scheduler.batch():
            for row in batch:
                if row.ticket.token not in (directory / "trained").read_text():
                    with (directory / "trained").open("a") as trained:
                        trained.write(f"{row.ticket.token} {row.ticket.number}\n")
                scheduler.rows.succeeded(row)
        scheduler.end()
        os._exit(0)
    status: list[int] = []

    def has_ended() -> bool:
        pid, code = os.waitpid(child, os.WNOHANG)
        status.append(code)
        return pid == child

    wait_until(has_ended)
    return os.waitstatus_to_exitcode(status[-1]) == 0


def test_a_crash_at_every_system_call(tmp_path: Path) -> None:
    """Wherever a scheduler dies, each of several equal rows, also one that is appended then, is trained.

    It is trained twice only if the death comes between the two writes that end a row: three calls for each of two rows.
    """
    twice = 0
    for calls in itertools.count():
        directory = tmp_path / str(calls)
        directory.mkdir()
        (directory / "trained").touch()
        write(directory, ("a", 1), ("a", 1))
        finished = work(directory, calls)
        with (directory / "tasks.csv").open("a") as file:
            file.write(".,-1,a,1,1\n")
        assert work(directory, 1_000_000)
        numbers = [line.split()[1] for line in (directory / "trained").read_text().splitlines()]
        assert len(set(numbers)) == len(numbers)
        assert len(numbers) in (3, 4), calls
        assert left(directory) == []
        twice += len(numbers) == 4
        if finished:
            break
    assert calls > 40
    assert twice <= 6
