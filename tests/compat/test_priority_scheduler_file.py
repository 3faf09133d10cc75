"""The CSV file that priority_scheduler takes rows out of, whoever else writes to it and whenever we die."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from stoker.compat.priority_scheduler.task_file import TaskFile
from stoker.core.errors import UsageError

HEADER = "Directory,Executable,Filename,Epochs,Priority\n"


def row(name: str) -> str:
    return f".,-1,{name}.py,1,1"


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
    TaskFile(str(path), 1).remove('.,-1,"a.py, b",1,1')
    assert path.read_bytes() == before + after


def test_the_first_of_equal_rows_is_removed(path: Path) -> None:
    """Rows with the same text are as many tasks."""
    path.write_text(HEADER + f"{row('a')}\n" * 3)
    file = TaskFile(str(path), 0)
    file.remove(row("a"))
    assert len(file.read()) == 2


def test_a_row_that_is_gone(path: Path) -> None:
    """What somebody else has removed need not be removed."""
    before = path.read_text()
    TaskFile(str(path), 0).remove(row("z"))
    assert path.read_text() == before


def test_mode_and_links_stay(path: Path, tmp_path: Path) -> None:
    """The file keeps its mode, and a link to it stays a link."""
    path.chmod(0o640)
    link = tmp_path / "link.csv"
    link.symlink_to(path)
    TaskFile(str(link), 0).remove(row("a"))
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert row("a") not in path.read_text()


def test_what_a_killed_writer_left(path: Path, tmp_path: Path) -> None:
    """A half-written copy counts for nothing, and is gone after the next write."""
    (tmp_path / ".tasks.csv.new").write_text("half")
    TaskFile(str(path), 0).remove(row("a"))
    assert os.listdir(tmp_path) == ["tasks.csv"]


def test_rows_appended_to_the_old_copy(path: Path) -> None:
    """Somebody who opened the file before it was replaced, and appends to it after that, is heard all the same."""
    file = TaskFile(str(path), 0)
    with path.open("a") as late:
        file.remove(row("a"))
        late.write(f"{row('d')}\n")
    assert [task.text for task in file.read()] == [row("b"), row("c"), row("d")]
    with path.open("a") as late:
        file.remove(row("b"))
        late.write(f"{row('e')}\n")
    file.close()
    assert path.read_text().splitlines()[1:] == [row("c"), row("d"), row("e")]


def test_a_file_that_somebody_holds(path: Path) -> None:
    """It is not changed under a lock of others."""
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            TaskFile(str(path), 0).remove(row("a"))
    assert row("a") in path.read_text()


def test_a_file_that_vanished(path: Path) -> None:
    """Reading says so, and removing fails."""
    file = TaskFile(str(path), 0)
    path.unlink()
    with pytest.raises(UsageError, match="No such file"):
        file.read()
    with pytest.raises(FileNotFoundError):
        file.remove(row("a"))


def test_no_header_names_the_option(path: Path) -> None:
    """Where the header is not found, the hint names the option for that."""
    path.write_text(row("a"))
    with pytest.raises(UsageError) as refused:
        TaskFile(str(path), 0).read()
    assert "--header None" in refused.value.hint
    assert len(TaskFile(str(path), None).read()) == 1
