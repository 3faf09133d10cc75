"""The CSV files of the older tool: what each row means, and what is said of one that means nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.app.jobs.job_files import ParsedJob, RejectedLine, read_list
from stoker.app.jobs.options import JobOptions
from stoker.app.jobs.task_list import BadRow, Task, options_of, read_tasks, split_records
from stoker.core.errors import UsageError

HEADER = "Directory,Executable,Filename,Epochs,Priority\n"
ROW = "models,python3,train.py,5,2\n"


def tasks_of(text: str | bytes, header: int | None = 0) -> list[Task]:
    """The tasks of a file in which all rows are well."""
    rows = read_tasks(text.encode() if isinstance(text, str) else text, "tasks.csv", header)
    assert not [row for row in rows if isinstance(row, BadRow)]
    return [row for row in rows if isinstance(row, Task)]


def sentence_of(row: str) -> str:
    """What is said of a row that stands between two good ones."""
    before, bad, after = read_tasks(f"{HEADER}{ROW}{row}\n{ROW}".encode(), "tasks.csv")
    assert isinstance(before, Task)
    assert isinstance(after, Task)
    assert isinstance(bad, BadRow)
    assert bad.line == 3
    return bad.sentence


def refusal_of(text: bytes, header: int | None = 0) -> UsageError:
    """Why a whole file is refused."""
    with pytest.raises(UsageError) as refused:
        read_tasks(text, "tasks.csv", header)
    return refused.value


# -- what a row means ------------------------------------------------------------------------------


def test_a_row() -> None:
    """The command is executable, file, epochs and id; the rest is kept as it was written."""
    (task,) = tasks_of(HEADER + ROW)
    assert task.words(task.epochs, 7) == ("python3", "train.py", "--epochs=5", "--id=7")
    assert (task.directory, task.priority, task.line, task.text) == ("models", 2, 2, ROW.strip())


def test_this_python() -> None:
    """The executable -1 is the Python that runs the scheduler."""
    (task,) = tasks_of(HEADER + ".,-1,a.py,1,1\n")
    assert task.words(1, 0)[0] == sys.executable


@pytest.mark.parametrize(
    "text",
    [
        "priority,EPOCHS, filename ,Executable,Directory\n2,5,train.py,python3,models\n",
        "\ufeff" + HEADER + ROW,
        HEADER.replace("\n", "\r\n") + ROW.replace("\n", "\r\n"),
        HEADER.replace("\n", "\r") + ROW.replace("\n", "\r"),
        HEADER + ROW.strip(),
        "\n" + HEADER + "\n,,,,\n" + ROW,
        HEADER + 'models,"python3" , "train.py",5.0,+2\n',
        "Notes,Directory,Executable,Filename,Epochs,Priority\nslow,models,python3,train.py,5,2,,\n",
    ],
)
def test_a_row_however_it_is_written(text: str) -> None:
    """Order and case of columns, marks, line ends, quotes, blank lines and further columns do not matter."""
    (task,) = tasks_of(text)
    assert task.words(task.epochs, 7) == ("python3", "train.py", "--epochs=5", "--id=7")
    assert (task.directory, task.priority) == ("models", 2)


def test_further_arguments() -> None:
    """A file name may hold arguments, taken apart as a shell does; so may an executable."""
    (task,) = tasks_of(HEADER + ".,python3 -u,\"train.py --name 'two words' --lr 0.1\",1,1\n")
    assert task.words(1, 0)[:-2] == ("python3", "-u", "train.py", "--name", "two words", "--lr", "0.1")


def test_a_path_with_blanks(tmp_path: Path) -> None:
    """A path that is a file in the row's directory is one word, whatever blanks and quotes it has."""
    (tmp_path / "it's mine.py").touch()
    (task,) = tasks_of(f"{HEADER}{tmp_path},python3,it's mine.py,1,1\n")
    assert task.script == ("it's mine.py",)


def test_columns_that_are_options() -> None:
    """Further columns count where they are named like options of ours; empty cells say nothing."""
    text = "Notes,VRAM,gpus,time,Gpu-Type,env," + HEADER + "slow,6G,2,1h,,A=1 B='2 3'," + ROW
    (task,) = tasks_of(text)
    assert task.options == JobOptions(vram="6G", gpus=2, time="1h", env={"A": "1", "B": "2 3"})


def test_header_in_another_row() -> None:
    """Rows above the header are no tasks; the header's number counts from 0."""
    assert len(tasks_of(f"exported,yesterday\n\n{HEADER}{ROW}", 1)) == 1


def test_no_header() -> None:
    """Without a header the columns are in the documented order, and the first row is a task."""
    assert [task.filename for task in tasks_of(ROW + ROW, None)] == ["train.py", "train.py"]


def test_header_only() -> None:
    """A file that was worked off holds its header and no task."""
    assert tasks_of(HEADER) == []


@given(st.text(st.sampled_from('ab ,"\n\r;\t\ufeffé'), max_size=40))
def test_records_are_the_whole_text(text: str) -> None:
    """Nothing of a file falls between its records, so what is written again without one is all the rest."""
    try:
        records = list(split_records(text, "tasks.csv"))
    except UsageError:
        return
    assert "".join(record.written for record in records) == text


# -- what means nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("models,python3,train.py,5,high", "its Priority is 'high', not a whole number"),
        ("models,python3,train.py,5,1.5", "its Priority is '1.5', not a whole number"),
        ("models,python3,train.py,many,1", "its Epochs is 'many', not a whole number"),
        ("models,python3,train.py,-1,1", "its Epochs -1 is out of range"),
        ("models,python3,train.py,5," + "9" * 400, "is out of range"),
        ("models,python3,train.py,5", "it has no Priority"),
        ("models,python3,train.py,5,1,more", "it has 6 fields, but the header has 5 columns"),
        ("models,,train.py,5,1", "it has no Executable (-1 is the Python of the scheduler)"),
        ("models,python3,,5,1", "it has no Filename"),
        ("models,python3,don't.py,5,1", "its file name cannot be split into words: no closing quotation"),
        ("models,python3,a\0b,5,1", "it contains a NUL byte"),
        ("models,python3,train.py,5,1\0", "it contains a NUL byte"),
    ],
)
def test_a_row_that_means_nothing(row: str, sentence: str) -> None:
    """It is told with a word, and the rows around it count."""
    assert sentence in sentence_of(row)


@pytest.mark.parametrize(
    ("text", "header", "message", "hint"),
    [
        (b"", 0, "tasks.csv is empty", "name its columns"),
        (b"\n\n", 0, "tasks.csv is empty", "name its columns"),
        (ROW.encode(), 0, "tasks.csv has no header", "Directory,Executable,Filename,Epochs,Priority"),
        (HEADER.encode() + ROW.encode(), 1, "tasks.csv has no header", "Directory,Executable"),
        (HEADER.encode() + ROW.encode(), 7, "tasks.csv has no row 7", "counted from 0"),
        (HEADER.replace("Epochs", "Steps").encode(), 0, "tasks.csv has no column Epochs", "Directory,Executable"),
        (b"priority," + HEADER.encode(), 0, "has the column Priority twice", "once"),
        (HEADER.replace(",", ";").encode(), 0, "separated by semicolons", "commas"),
        (HEADER.replace(",", "\t").encode(), 0, "separated by tabs", "commas"),
        (HEADER.encode("utf-16"), 0, "is UTF-16", "UTF-8"),
        ((HEADER + 'models,"python3,train.py,5,1\n' + ROW).encode(), 0, "an unclosed quote in line 2", "close it"),
        ((HEADER + ROW + 'models,"python3,train.py,5,1\n').encode(), 0, "an unclosed quote in line 3", "close it"),
        (HEADER.encode() + b"x" * 200_000, 0, "from line 2 on: field larger", "quotes"),
    ],
)
def test_a_file_that_means_nothing(text: bytes, header: int | None, message: str, hint: str) -> None:
    """It is refused with what is wrong and what to write."""
    refused = refusal_of(text, header)
    assert message in refused.message
    assert hint in refused.hint


# -- as lists of stoker run and stoker submit ------------------------------------------------------


def test_tasks_as_a_list(tmp_path: Path) -> None:
    """Lower priorities go first, the id is the place in the list, and a bad row is told of by its line."""
    path = tmp_path / "tasks.csv"
    path.write_text(f"{HEADER}{ROW}.,python3,b.py,x,1\n.,python3,c.py,3,-4\n")
    first, bad, last = read_list(path, "/bin/sh")
    assert isinstance(first, ParsedJob)
    assert isinstance(last, ParsedJob)
    assert (first.command.words, first.command.shell) == (("python3", "train.py", "--epochs=5", "--id=0"), "")
    assert first.options == JobOptions(chdir="models", priority=-2)
    assert (last.command.words[-1], last.options.priority) == ("--id=2", 4)
    assert bad == RejectedLine("tasks.csv line 3", "its Epochs is 'x', not a whole number")


def test_a_column_of_commands(tmp_path: Path) -> None:
    """A column `command` holds lines for the shell, and the others are the options of each; their case is free."""
    path = tmp_path / "jobs.csv"
    path.write_text('Command,vram,priority,tag\n"echo a, b",6G,3,k=v\n,,,\necho c,,,\necho d,,high,\n')
    first, plain, bad = read_list(path, "/bin/sh")
    assert isinstance(first, ParsedJob)
    assert (first.command.words, first.command.shell) == (("echo a, b",), "/bin/sh")
    assert first.options == JobOptions(vram="6G", priority=3, tag={"k": "v"})
    assert isinstance(plain, ParsedJob)
    assert plain.options == JobOptions()
    assert isinstance(bad, RejectedLine)
    assert bad.where == "jobs.csv line 5"


def test_a_doubled_column_beside_commands(tmp_path: Path) -> None:
    """Nobody knows which of the two counts."""
    path = tmp_path / "jobs.csv"
    path.write_text("command,vram,VRAM\necho,6G,8G\n")
    with pytest.raises(UsageError, match="the column vram twice"):
        read_list(path, "/bin/sh")


def test_an_unknown_column_beside_commands(tmp_path: Path) -> None:
    """A column that could be a mistyped option is refused, as in other lists of ours."""
    path = tmp_path / "jobs.csv"
    path.write_text("command,vrm\necho,6G\n")
    with pytest.raises(UsageError, match="unknown key 'vrm'") as refused:
        read_list(path, "/bin/sh")
    assert "vram" in refused.value.hint


def test_an_option_of_the_wrong_kind() -> None:
    """The option is named in words."""
    with pytest.raises(UsageError, match="gpus is text, not a whole number"):
        options_of({"gpus": "two"})
