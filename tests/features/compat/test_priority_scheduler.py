"""The command line of priority_scheduler: what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.features.compat.priority_scheduler.command import main

HEADER = "Directory,Executable,Filename,Epochs,Priority\n"


@pytest.fixture
def csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_STATE", str(tmp_path / "state"))
    path = tmp_path / "tasks.csv"
    path.write_text(f"{HEADER}.,sh,task.sh a,5,1\n")
    return path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--num", "0"], "'0' is not a number of tasks"),
        (["-n", "-3"], "-n/--num"),
        (["-n", "many"], "'many' is not a number of tasks"),
        (["--mps", "perhaps"], "'perhaps' is neither yes nor no"),
        (["--thread_percentage", "0"], "'0' is not a percentage from 1 to 100"),
        (["--threads_percentage", "150"], "'150' is not a percentage from 1 to 100"),
        (["--header", "first"], "'first' is neither the number of a row"),
        (["--header", "4"], "tasks.csv has no row 4"),
        (["--header", "1"], "tasks.csv has no header"),
        (["--csv", "missing.csv"], "cannot read missing.csv: No such file or directory"),
        (["--csv", "."], "cannot read .: Is a directory"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_bad_input(csv: Path, words: list[str], sentence: str, capfd: pytest.CaptureFixture[str]) -> None:
    """What cannot be understood is refused in one line before anything runs, and the file is as it was."""
    before = csv.read_text()
    code = main(["--csv", "tasks.csv", *words])
    printed, said = capfd.readouterr()
    assert (code, printed, len(said.splitlines())) == (2, "", 1), said
    assert sentence in said
    assert (csv.read_text(), list(csv.parent.iterdir())) == (before, [csv])


def test_nothing_to_do(csv: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file with nothing but a header ends at once and leaves nothing behind."""
    csv.write_text(HEADER)
    assert main(["--csv", "tasks.csv"]) == 0
    assert capfd.readouterr() == ("", "priority_scheduler: tasks.csv contains no tasks\n")
    assert list(csv.parent.iterdir()) == [csv]
