"""The program that runs a function, without a queue."""

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
from stoker.python.calls import Call, command_of, name_of, settle, written
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


def result_of(folder: Path, task: int = 0) -> list[Any]:
    """The header of a result, and what follows it."""
    with (folder / f"{task}.result").open("rb") as file:
        header = pickle.load(file)
        return [header, *([pickle.load(file)] if header["outcome"] == "returned" else [])]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A state directory."""
    return Paths(tmp_path)


def test_result_is_private_and_complete(paths: Paths) -> None:
    """The result is private, and no unfinished file stays beside it."""
    folder = handed_in(paths, pow, Call((2, 5)))
    assert run(paths, attempt=3).returncode == 0
    header, value = result_of(folder)
    assert (value, header["attempt"], header["type"]) == (32, 3, "int")
    assert sorted(os.listdir(folder)) == ["0.result", "calls"]
    modes = [path.stat().st_mode & 0o777 for path in (folder, folder / "calls", folder / "0.result")]
    assert modes == [0o700, 0o600, 0o600]


def test_tasks_find_their_arguments(paths: Paths) -> None:
    """All calls of an array are in one file, and each task reads its own."""
    folder = handed_in(paths, pow, Call((2, 5)), Call((3,), {"exp": 2}))
    assert run(paths, task=1).returncode == 0
    assert result_of(folder, 1)[1] == 9
    assert not (folder / "0.result").exists()


def test_another_python_is_refused(paths: Paths) -> None:
    """Another Python version is reported before the function runs."""
    folder = handed_in(paths, pow, Call((2, 5)))
    data = (folder / "calls").read_bytes()
    length = int.from_bytes(data[-LENGTH:], "little")
    table = pickle.loads(data[-LENGTH - length : -LENGTH])
    newer = pickle.dumps({**table, "python": (3, 99)})
    (folder / "calls").write_bytes(data[: -LENGTH - length] + newer + len(newer).to_bytes(LENGTH, "little"))
    assert run(paths).returncode == RAISED
    (header,) = result_of(folder)
    assert header["outcome"] == "unreadable"
    assert "submitted by Python 3.99" in header["message"]


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 100])
def test_damaged_calls(paths: Paths, content: bytes) -> None:
    """A damaged file of calls is reported as such."""
    folder = handed_in(paths, pow, Call((2, 5)))
    (folder / "calls").write_bytes(content)
    assert run(paths).returncode == RAISED
    assert result_of(folder)[0]["outcome"] == "unreadable"


def test_needs_little() -> None:
    """Neither Stoker nor enum, re or pathlib is imported before the function."""
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
    """A folder that a failed submit left under the same id is replaced."""
    handed_in(paths, pow, Call((2, 5)))
    folder = handed_in(paths, pow, Call((2, 6)))
    assert run(paths).returncode == 0
    assert result_of(folder)[1] == 64
    assert os.listdir(paths.functions) == ["7"]


def called(*arguments: Any, **keywords: Any) -> Sequence[str]:
    """The call in the command of a job."""

    def train(rate: Any, *rest: Any, batch_size: Any = 1) -> None: ...

    return command_of(Paths(Path("/state")), train, Call(arguments, keywords)).words[5:]


def test_command_shows_short_values() -> None:
    """Numbers and short texts are shown with their parameter names; other values are left out."""
    assert called(0.1, batch_size=64) == ("rate=0.1", "batch_size=64")
    assert called("adam") == ("rate=adam",)
    assert called("x" * 100) == called([1, 2]) == called("two\nlines") == ()
    assert called(10**5000) == ()
    assert called(batch_size=3) == ("batch_size=3",)


def test_command_hides_secrets() -> None:
    """Other users see the words of a process; its screens and logs are passed on."""
    command = command_of(Paths(Path("/state")), print, Call((), {"api_token": "hf_1", "lr": 0.1}))
    assert command.text == "print(api_token=********, lr=0.1)"


def test_command_is_recognised() -> None:
    """A job that runs a function is recognised by its command."""
    command = command_of(Paths(Path("/state")), print, Call(()))
    assert command.call is not None
    assert command.words[4] == "builtins.print"
    assert name_of(print) == "print"
