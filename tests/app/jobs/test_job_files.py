"""Job lists cut into jobs, however their bytes arrive."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.app.jobs.job_files import (
    JobLines,
    ParsedJob,
    PlainLines,
    RejectedLine,
    StreamSource,
    read_list,
    spread,
    usable,
)
from stoker.app.jobs.options import JobOptions
from stoker.core.errors import UsageError
from stoker.core.spec import Command, JobSpec, NewJob

SHELL = "/bin/sh"


def jobs_of(*chunks: bytes) -> list[ParsedJob | RejectedLine]:
    """All jobs of a stream that arrives in these chunks."""
    lines = JobLines("list", SHELL)
    return [job for chunk in chunks for job in lines.feed(chunk)] + list(lines.end())


def texts(*chunks: bytes) -> list[str]:
    """The commands of a stream."""
    return [job.command.words[0] for job in jobs_of(*chunks) if isinstance(job, ParsedJob)]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\n\n  \n# c\n  # d\nb\n", ["a", "b"]),
        (b"  a  \t\nb\r\n", ["  a", "b"]),
        (b"a \\\nb\nc\n", ["a \\\nb", "c"]),
        (b"a \\\r\nb\r\n", ["a \\\nb"]),
        (b"a \\\n# not a comment\n", ["a \\\n# not a comment"]),
        (b"a \\\n\nb\n", ["a \\\n", "b"]),
        (b"a\\\\\nb\n", ["a\\\\", "b"]),
        (b"a \\ \nb\n", ["a \\", "b"]),
        (b"a \\", ["a \\"]),
        (b"a #b\n", ["a #b"]),
        (b"\xff\n", ["\udcff"]),
    ],
)
def test_lines(stream: bytes, expected: list[str]) -> None:
    """One job a line; comments and blank lines are none; a backslash at the very end goes on."""
    assert texts(stream) == expected


@given(st.lists(st.sampled_from([b"a", b"\\", b"\n", b"\r", b" ", b"#", b"\0", b"\xe9"])), st.data())
def test_chunks_do_not_matter(spans: list[bytes], data: st.DataObject) -> None:
    """The same jobs come out wherever the stream is cut."""
    stream = b"".join(spans)
    cut = data.draw(st.integers(0, len(stream)))
    assert jobs_of(stream[:cut], stream[cut:]) == jobs_of(stream)


def test_a_job_is_given_when_its_line_is_complete() -> None:
    """Nothing is kept back until the next line arrives."""
    lines = JobLines("list", SHELL)
    assert list(lines.feed(b"ec")) == []
    assert [job.where for job in lines.feed(b"ho\n")] == ["list line 1"]
    assert list(lines.end()) == []


def test_a_nul_byte_makes_a_line_unusable() -> None:
    """A line with a NUL byte keeps its number, and so do those after it."""
    before, bad, after = jobs_of(b"a\n\0\nb\n")
    assert isinstance(bad, RejectedLine)
    assert [before.where, bad.where, after.where] == ["list line 1", "list line 2", "list line 3"]


@pytest.mark.parametrize("name", ["list.jsonl", "list.ndjson", "list.JSONL"])
def test_json_lines(tmp_path: Path, name: str) -> None:
    """Words are executed, a text goes through the shell, numbers stand for texts where those are numbers."""
    path = tmp_path / name
    path.write_text('{"command": ["a", "b"], "on": 0, "env": {"SEED": 1}}\n\n{"command": "a b"}\n')
    first, second = (job for job in read_list(path, SHELL) if isinstance(job, ParsedJob))
    assert (first.command.words, first.command.shell) == (("a", "b"), "")
    assert (first.options.on, first.options.env) == ("0", {"SEED": "1"})
    assert (second.command.words, second.command.shell) == (("a b",), SHELL)
    assert second.where.endswith("line 3")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("list.jsonl", b'{"command": []}', "the command is empty"),
        ("list.jsonl", b'{"command": 3}', "Expected"),
        ("list.jsonl", b'{"command": "a", "env": ["A=1"]}', "env is a list, not a table"),
        ("list.jsonl", b"\xff", "is not JSON"),
        ("list.jsonl", b'{"command":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "too deep"),
        ("list.jsonl", b'{"command": "a", "env": {"A":' + b"[" * 200_000 + b"]" * 200_000 + b"}}", "too deep"),
        ("list.jsonl", b'{"command": "a", "env": {"A": [1, 2]}}', "env is a list, not text"),
        ("list.jsonl", b'{"command": "a", "after": [[1], 2]}', "after is a list, not text"),
        ("list.toml", b'[[job]]\ncommand = "a"\nenv.A = ' + b"[" * 5000 + b"]" * 5000, "too deep"),
        ("list.toml", b'[[job]]\ncommand = "a"\n' + b"a." * 20_000 + b"a = 1", "more than 100 parts"),
        ("list.toml", b"[[job]]\n" + b"'a' . " * 20_000 + b"a = 1", "more than 100 parts"),
        ("list.toml", b"", "has no [[job]] tables"),
        ("list.toml", b"[[job]]\ncommand='a'\n[other]\n", "or contains something else"),
        ("list.csv", b"a,b\n", "has no column command"),
    ],
)
def test_mistakes_name_their_place(tmp_path: Path, name: str, text: bytes, sentence: str) -> None:
    """What cannot be understood is refused with the name of the list."""
    (tmp_path / name).write_bytes(text)
    with pytest.raises(UsageError) as refused:
        read_list(tmp_path / name, SHELL)
    assert name in refused.value.message
    assert sentence in refused.value.message
    assert refused.value.hint


def test_a_list_that_cannot_be_read(tmp_path: Path) -> None:
    """A directory or a file that is not there is refused with the reason."""
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "no", "No such file or directory")):
        with pytest.raises(UsageError, match=reason):
            read_list(path, SHELL)


def test_keys_of_the_queue(tmp_path: Path) -> None:
    """Lists, numbers and tables may stand where the command line takes text."""
    path = tmp_path / "jobs.toml"
    path.write_text('[[job]]\ncommand = "x"\nafter = [1, "any:2"]\narray = 3\nretry_on = [75]\ntag = { lr = 0.1 }\n')
    (job,) = read_list(path, "/bin/sh")
    assert isinstance(job, ParsedJob)
    assert job.options == JobOptions(after="1,any:2", array="3", retry_on="75", tag={"lr": "0.1"})


def test_arrays_are_spread() -> None:
    """A job for each index, its own array before that of the batch; others stay as they are."""
    plain, own = ParsedJob(Command(("a",)), "line 1"), ParsedJob(Command(("b",)), "line 2", JobOptions(array="7"))
    unusable = RejectedLine("line 3", "no")
    assert spread([plain, unusable], JobOptions()) == [plain, unusable]
    tasks = [
        (item.task, item.array) for item in spread([plain, own], JobOptions(array="0-1")) if isinstance(item, ParsedJob)
    ]
    assert tasks == [(0, 1), (1, 1), (7, 2)]
    assert spread([own, unusable, plain], JobOptions())[1:] == [unusable, plain]


def test_lines_as_arrays() -> None:
    """Every line of a stream becomes an array of its own."""
    lines = JobLines("stdin", "/bin/sh")
    lines.tasks = (0, 1)
    found = [item for item in lines.feed(b"a\nb\n") if isinstance(item, ParsedJob)]
    assert [(item.command.text, item.task, item.array) for item in found] == [
        ("a", 0, 1),
        ("a", 1, 1),
        ("b", 0, 2),
        ("b", 1, 2),
    ]


def _refuse(item: RejectedLine) -> None:
    pytest.fail(item.sentence)


def test_a_stream_gives_no_more_than_asked_for() -> None:
    """The rest of a read is given next, without waiting for the descriptor."""
    reading, writing = os.pipe()
    try:
        source = StreamSource(reading, JobLines("list", SHELL), lambda item: NewJob(item.command, JobSpec()), _refuse)
        os.write(writing, b"a\nb\nc\nd")
        assert [job.command.text for job in source.take(2)] == ["a", "b"]
        assert source.fileno() == -1
        assert [job.command.text for job in source.take(2)] == ["c"]
        assert source.fileno() == reading
    finally:
        os.close(writing)
    assert [job.command.text for job in source.take(2)] == ["d"]
    assert source.exhausted
    os.close(reading)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.txt", "# a comment\na --x 1\n\nb \\\n  --y 2\n\xe4 3"),
        ("list.jsonl", '{"command": "a --x 1"}\n{"command": ["b", "2"], "gpus": 2}\n'),
        ("list.csv", "command,gpus\na --x 1,2\nb,\n"),
    ],
)
def test_what_is_kept_of_a_list_makes_the_same_jobs(tmp_path: Path, name: str, text: str) -> None:
    """Whether only texts of plain lines are kept, or all."""
    path = tmp_path / name
    path.write_text(text)
    jobs = read_list(path, SHELL, usable)
    assert list(jobs) == read_list(path, SHELL)
    assert isinstance(jobs, PlainLines) == (path.suffix == ".txt")
    assert [jobs[at] for at in range(len(jobs))] == [*jobs[:1], *jobs[1:]] == list(jobs)


def test_options_among_plain_lines_are_kept() -> None:
    """From the first job on that has some."""
    first, other = ParsedJob(Command(("a",), SHELL), "x", line=1), ParsedJob(Command(("b", "c")), "x", line=2)
    last = ParsedJob(Command(("d",), SHELL), "x", line=3)
    assert list(usable([first, other, last])) == [first, other, last]
