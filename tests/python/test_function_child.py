"""The program that runs a function: what it reads and writes, without a queue."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stoker.python import function_child
from stoker.python.calls import Call, command_of, is_function, name_of, settle, written
from stoker.python.function_child import LENGTH, RAISED
from stoker.store.paths import Paths
from support.wait import PATIENCE_SECONDS


def handed_in(paths: Paths, function: Callable[..., Any], *calls: Call) -> Path:
    """The folder of job 7."""
    with written(paths, function, calls) as folder:
        return settle(folder, paths, 7)


def run(paths: Paths, *, task: int | None = None, attempt: int = 1) -> subprocess.CompletedProcess[str]:
    """Run the call of job 7, or of a task of array 7."""
    which = {"STOKER_JOB_ID": "7"} if task is None else {"STOKER_ARRAY_ID": "7", "STOKER_ARRAY_INDEX": str(task)}
    command = command_of(paths, print, Call(()))
    environment = {**os.environ, **which, "STOKER_ATTEMPT": str(attempt)}
    return subprocess.run(
        command.words, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


def told(folder: Path, task: int = 0) -> list[Any]:
    """The header of a result, and what follows it."""
    with (folder / f"{task}.result").open("rb") as file:
        header = pickle.load(file)
        return [header, *([pickle.load(file)] if header["outcome"] == "returned" else [])]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A state directory."""
    return Paths(tmp_path)


def test_result_is_private_and_complete(paths: Paths) -> None:
    """Nothing half-written stays beside it, and nobody else may look."""
    folder = handed_in(paths, pow, Call((2, 5)))
    assert run(paths, attempt=3).returncode == 0
    header, value = told(folder)
    assert (value, header["attempt"], header["type"]) == (32, 3, "int")
    assert sorted(os.listdir(folder)) == ["0.result", "calls"]
    modes = [path.stat().st_mode & 0o777 for path in (folder, folder / "calls", folder / "0.result")]
    assert modes == [0o700, 0o600, 0o600]


def test_tasks_find_their_arguments(paths: Paths) -> None:
    """All calls of an array are in one file, and each task reads its own."""
    folder = handed_in(paths, pow, Call((2, 5)), Call((3,), {"exp": 2}))
    assert run(paths, task=1).returncode == 0
    assert told(folder, 1)[1] == 9
    assert not (folder / "0.result").exists()


def test_another_python_is_refused(paths: Paths) -> None:
    """An interpreter that was changed meanwhile says so, in place of failing somewhere in the function."""
    folder = handed_in(paths, pow, Call((2, 5)))
    data = (folder / "calls").read_bytes()
    length = int.from_bytes(data[-LENGTH:], "little")
    table = pickle.loads(data[-LENGTH - length : -LENGTH])
    newer = pickle.dumps({**table, "python": (3, 99)})
    (folder / "calls").write_bytes(data[: -LENGTH - length] + newer + len(newer).to_bytes(LENGTH, "little"))
    assert run(paths).returncode == RAISED
    (header,) = told(folder)
    assert header["outcome"] == "unreadable"
    assert "submitted by Python 3.99" in header["message"]


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 100])
def test_damaged_call(paths: Paths, content: bytes) -> None:
    """A file that is no call is told of as such."""
    folder = handed_in(paths, pow, Call((2, 5)))
    (folder / "calls").write_bytes(content)
    assert run(paths).returncode == RAISED
    assert told(folder)[0]["outcome"] == "unreadable"


def test_needs_little() -> None:
    """Neither Stoker nor enum, re or pathlib is loaded before the function is."""
    loaded = "import sys; import runpy; before = set(sys.modules); sys.argv[1:] = []"
    script = (
        f"{loaded}; import importlib.util as u; s = u.spec_from_file_location('child', {function_child.__file__!r})"
    )
    script += "; m = u.module_from_spec(s); s.loader.exec_module(m); print(*sorted(set(sys.modules) - before))"
    said = subprocess.run(
        [sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    ).stdout
    assert not {"stoker", "enum", "re", "pathlib", "json", "pickle"} & set(said.split())


def test_a_leftover_folder_is_replaced(paths: Paths) -> None:
    """A submit that failed at the last moment may have left a folder under an id that is given again."""
    handed_in(paths, pow, Call((2, 5)))
    folder = handed_in(paths, pow, Call((2, 6)))
    assert run(paths).returncode == 0
    assert told(folder)[1] == 64
    assert os.listdir(paths.functions) == ["7"]


def called(*arguments: Any, **keywords: Any) -> Sequence[str]:
    """What the command tells of a call."""

    def train(rate: Any, *rest: Any, batch_size: Any = 1) -> None: ...

    return command_of(Paths(Path("/state")), train, Call(arguments, keywords)).words[5:]


def test_command_tells_what_can_be_told_in_a_word() -> None:
    """Numbers and short texts are shown under the names of the function; all else is left out."""
    assert called(0.1, batch_size=64) == ("rate=0.1", "batch_size=64")
    assert called("adam") == ("rate=adam",)
    assert called("x" * 100) == called([1, 2]) == called("two\nlines") == ()
    assert called(10**5000) == ()
    assert called(batch_size=3) == ("batch_size=3",)


def test_command_is_known_again() -> None:
    """A job that runs a function is told from others by its command."""
    command = command_of(Paths(Path("/state")), print, Call(()))
    assert is_function(command)
    assert command.words[4] == "builtins.print"
    assert name_of(print) == "print"
