"""Which Python a command runs, which PyTorch it has, and whether that knows --cap."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.app.jobs import preflight
from stoker.app.jobs.preflight import find_python, is_python, knows_cap, programs_of, torch_version
from stoker.core.spec import Command
from support.torch import with_torch


@pytest.mark.parametrize("word", ["python", "python3", "python3.12", "python3.14t", "/opt/v/bin/python", "v/python3"])
def test_a_python(word: str) -> None:
    """Pythons are known by their names, wherever they are."""
    assert is_python(word)


@pytest.mark.parametrize("word", ["python-config", "mypython", "python3x", "train.py", "python/train", "ipython", ""])
def test_no_python(word: str) -> None:
    """A name that only looks similar is none."""
    assert not is_python(word)


@pytest.mark.parametrize(
    ("words", "programs"),
    [
        (["python3", "train.py"], ["python3"]),
        (["torchrun", "--nproc-per-node", "2", "train.py"], ["torchrun"]),
        (["env", "-u", "X", "LR=1", "python", "train.py"], ["python"]),
        (["nice", "-n", "5", "/opt/v/bin/python", "x"], ["/opt/v/bin/python"]),
        (["conda", "run", "-n", "x", "python", "train.py"], []),
        (["env", "PYTHONPATH=/elsewhere", "python", "x"], []),
        (["docker", "run", "python"], ["docker"]),
    ],
)
def test_words(words: list[str], programs: list[str]) -> None:
    """The first word counts, unless it only makes the way for another."""
    assert programs_of(Command(tuple(words))) == programs


@pytest.mark.parametrize(
    ("line", "programs"),
    [
        ("python train.py", ["python"]),
        ("LR=0.1 SEED=2 python3 train.py > log 2>&1", ["python3"]),
        ("cd work && exec python train.py", ["python"]),
        ("cd work && /opt/v/bin/python train.py", ["/opt/v/bin/python"]),
        ("cd work && .venv/bin/python train.py", ["cd"]),
        (".venv/bin/python train.py; echo $?", [".venv/bin/python"]),
        ("mkdir out\npython train.py", ["python"]),
        ("nohup \\\n python train.py", ["python"]),
        ("for i in 1 2; do python train.py $i; done", ["python"]),
        ("torchrun train.py | tee log", ["torchrun", "tee"]),
        ("source v/bin/activate && python train.py", []),
        (". v/bin/activate; python train.py", []),
        ("conda activate x; python train.py", []),
        ("export PATH=/opt/bin:$PATH; python train.py", []),
        ("PYTHONPATH=. python train.py", []),
        ("echo 'unfinished", []),
        ("", []),
    ],
)
def test_lines(line: str, programs: list[str]) -> None:
    """In a shell's line it is the first Python that is a command, if nothing may have chosen another one."""
    assert programs_of(Command((line,), "/bin/sh")) == programs


@given(st.text())
def test_any_line(line: str) -> None:
    """No text is too odd."""
    assert isinstance(programs_of(Command((line,), "/bin/sh")), list)


def program(path: Path, *lines: str) -> Path:
    """Something that can be executed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o755)
    return path


class TestFindPython:
    """Where the Python of a command is."""

    def test_on_the_path(self, tmp_path: Path) -> None:
        """A name is looked for where the job would look."""
        found = program(tmp_path / "bin/python3", "#!/bin/sh")
        assert find_python(Command(("python3", "x.py")), {"PATH": f"{tmp_path}/bin"}, "/") == str(found)
        assert find_python(Command(("python3", "x.py")), {"PATH": f"{tmp_path}/none"}, "/") is None

    def test_by_a_path(self, tmp_path: Path) -> None:
        """A relative one is meant from the job's directory, and variables are replaced; links are left as they are."""
        found = program(tmp_path / ".venv/bin/python", "#!/bin/sh")
        for word in (".venv/bin/python", "~/.venv/bin/python", "$HERE/.venv/bin/python", "${HERE}/.venv/bin/python"):
            environment = {"HOME": str(tmp_path), "HERE": str(tmp_path)}
            assert find_python(Command((f"{word} x.py",), "/bin/sh"), environment, str(tmp_path)) == str(found)
        assert find_python(Command(("$WHERE/python x.py",), "/bin/sh"), {}, str(tmp_path)) is None

    @pytest.mark.parametrize("first", ["#!{python}", "#!/usr/bin/env -S {name} -u"])
    def test_of_a_script(self, tmp_path: Path, first: str) -> None:
        """Such as torchrun: its first line tells."""
        python = program(tmp_path / "bin/python3", "#!/bin/sh")
        program(tmp_path / "bin/torchrun", first.format(python=python, name="python3"))
        assert find_python(Command(("torchrun", "x.py")), {"PATH": f"{tmp_path}/bin"}, "/") == str(python)

    def test_of_something_else(self, tmp_path: Path) -> None:
        """A program of another kind tells nothing."""
        program(tmp_path / "bin/train", "#!/bin/sh", "python x.py")
        (tmp_path / "bin/binary").write_bytes(b"\x7fELF\0\xff")
        (tmp_path / "bin/binary").chmod(0o755)
        for word in ("train", "binary", "missing"):
            assert find_python(Command((word,)), {"PATH": f"{tmp_path}/bin"}, "/") is None


class TestTorchVersion:
    """What a real Python answers."""

    def test_a_version(self, tmp_path: Path) -> None:
        """It is what is installed for the job's environment."""
        environment = with_torch(tmp_path, "2.10.0+cu128")
        assert torch_version(sys.executable, environment, "/") == "2.10.0+cu128"

    def test_none(self) -> None:
        """No PyTorch is an answer, too."""
        assert torch_version(sys.executable, os.environ, "/") == ""

    def test_nothing_of_the_directory_runs(self, tmp_path: Path) -> None:
        """A program that is called like a part of the standard library is not run at submit."""
        (tmp_path / "csv.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        assert torch_version(sys.executable, os.environ, str(tmp_path)) == ""
        assert not (tmp_path / "ran").exists()

    def test_a_talkative_one(self, tmp_path: Path) -> None:
        """Whatever start-up files print is not taken for the answer."""
        environment = with_torch(tmp_path, "2.11.0")
        Path(environment["PYTHONPATH"], "sitecustomize.py").write_text("print('hello')")
        assert torch_version(sys.executable, environment, "/") == "2.11.0"

    @pytest.mark.parametrize("line", ["exit 1", "echo something", "kill -9 $$"])
    def test_no_answer(self, tmp_path: Path, line: str) -> None:
        """One that is broken tells nothing, and that is no error."""
        assert torch_version(str(program(tmp_path / "python", "#!/bin/sh", line)), os.environ, "/") is None

    def test_not_to_be_executed(self, tmp_path: Path) -> None:
        """Neither is one that cannot even start."""
        assert torch_version(str(tmp_path / "python"), os.environ, "/missing") is None

    def test_one_that_hangs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is not waited for any longer than a person would."""
        monkeypatch.setattr(preflight, "INTERPRETER_TIMEOUT", 0.1)
        began = time.monotonic()
        assert torch_version(str(program(tmp_path / "python", "#!/bin/sh", "exec sleep 60")), os.environ, "/") is None
        assert time.monotonic() - began < 50


@pytest.mark.parametrize("version", ["2.10.0", "2.10.0+cu128", "2.10", "2.10.1", "2.11.0a0+git", "3.0", "2.10.0.post1"])
def test_knows(version: str) -> None:
    """Every PyTorch since 2.10.0 knows the cap."""
    assert knows_cap(version)


@pytest.mark.parametrize(
    "version", ["2.9.1", "2.9", "1.13", "2.10.0a0+nv25.11", "2.10.0.dev20251101", "2.10.0rc1", "x"]
)
def test_does_not_know(version: str) -> None:
    """None before does; what was built before the release may be of either kind."""
    assert not knows_cap(version)
