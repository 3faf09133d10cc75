"""The forms a job list may have: lines that go on, JSON lines, TOML."""

from __future__ import annotations

import json

import pytest

from support.cli import Stoker


def test_a_line_goes_on_after_a_backslash(stoker: Stoker) -> None:
    """Lines joined by backslashes are one job; two backslashes at the end are not a joint."""
    stoker.write("jobs.txt", "printf '%s\\n' one \\", "  two \\", "  three", "echo a\\\\", "echo b")
    assert stoker("run", "--devices", "0", "jobs.txt").code == 0
    assert [log.split() for log in stoker.logs()] == [["one", "two", "three"], ["a\\"], ["b"]]


def test_lines_of_another_system(stoker: Stoker) -> None:
    """Carriage returns at the ends of lines are no part of the command."""
    (stoker.cwd / "jobs.txt").write_bytes(b"echo one \\\r\ntwo\r\necho three\r\n")
    assert stoker("run", "--devices", "0", "jobs.txt").code == 0
    assert stoker.logs() == ["one two\n", "three\n"]


def test_json_lines_hold_whole_scripts(stoker: Stoker) -> None:
    """A text is a script for the shell, a list of words is executed, and each job has options of its own."""
    stoker.write(
        "jobs.jsonl",
        json.dumps({"command": "for word in a b\ndo echo $word $SEED\ndone", "env": {"SEED": 3}}),
        "",
        json.dumps({"command": ["printf", "%s", "$SEED  x"], "name": "words"}),
        json.dumps({"command": "echo $CUDA_VISIBLE_DEVICES", "gpus": 2, "time": 90}),
        json.dumps({"command": "pwd", "chdir": "/", "vram": "2G", "priority": -1}),
    )
    result = stoker("run", "--sim", "2x8G", "jobs.jsonl")
    assert result.code == 0, result.err
    assert stoker.logs() == ["a 3\nb 3\n", "$SEED  x", "0,1\n", "/\n"]


def test_toml_holds_whole_scripts(stoker: Stoker) -> None:
    """A [[job]] table is a job; what it asks for goes before what the command line asks for."""
    stoker.write(
        "jobs.toml",
        '[[job]]\ncommand = """\nset -e\necho one\nfalse\necho two\n"""\nretries = 0\n',
        '[[job]]\ncommand = ["sh", "-c", "echo $A $B"]\nenv = { A = 1 }\n',
    )
    result = stoker("run", "--devices", "0", "--env", "A=0", "--env", "B=2", "--retries", "1", "jobs.toml")
    assert result.code == 1
    assert stoker.logs() == ["one\n", "1 2\n"]
    assert "✗ #1 set -e; echo one; false; echo two: exit 1  one" in result.err


@pytest.mark.parametrize(
    ("name", "text", "code", "sentence"),
    [
        ("jobs.jsonl", '{"command": "true"}\n{"command": ', 2, "jobs.jsonl line 2 is not JSON"),
        ("jobs.jsonl", "[1]", 2, "jobs.jsonl line 1 has no command"),
        ("jobs.jsonl", '{"command": ""}', 2, "jobs.jsonl line 1: the command is empty"),
        ("jobs.jsonl", '{"command": "a\\u0000b"}', 2, "contains a NUL byte"),
        ("jobs.jsonl", '{"command": "true", "gpu": 1}', 2, "unknown key 'gpu'"),
        ("jobs.jsonl", '{"command": "true", "gpus": "one"}', 2, "jobs.jsonl line 1: gpus is text, not a whole number"),
        ("jobs.jsonl", '{"command": "true", "gpus": 3}', 5, "jobs.jsonl line 1: needs 3 GPUs; this machine has 2"),
        ("jobs.jsonl", '{"command": "true", "time": "soon"}', 2, "jobs.jsonl line 1: 'soon' is not a duration"),
        ("jobs.jsonl", '{"command": "true", "env": {"A=B": "1"}}', 2, "'A=B' cannot be the name of a variable"),
        ("jobs.jsonl", '{"command": "\udcff"}', 2, "jobs.jsonl line 1 is not JSON"),
        ("jobs.toml", "[[job]]\ncommand = ", 2, "jobs.toml is not TOML"),
        ("jobs.toml", "[[job]]\ncomand = 'true'", 2, "jobs.toml job 1 has no command"),
        ("jobs.toml", "command = 'true'", 2, "jobs.toml has no [[job]] tables"),
        ("jobs.toml", "[[job]]\ncommand = '\udcff'", 2, "jobs.toml is not TOML"),
        ("jobs.csv", "a,b\n1,2\n", 2, "has no column command"),
    ],
)
def test_a_list_that_cannot_be_understood(stoker: Stoker, name: str, text: str, code: int, sentence: str) -> None:
    """A mistake in a list is told with its place, before any of its jobs has started."""
    first = '{"command": "touch ran"}\n' if name.endswith("jsonl") and "line 2" not in sentence else ""
    sentence = sentence.replace("line 1", "line 2") if first else sentence
    (stoker.cwd / name).write_bytes((first + text).encode(errors="surrogateescape"))
    result = stoker("run", "--devices", "0,1", name)
    assert (result.code, result.out) == (code, "")
    assert sentence in result.err
    assert "Traceback" not in result.err
    assert not (stoker.cwd / "ran").exists()
