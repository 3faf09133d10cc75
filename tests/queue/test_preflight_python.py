"""Which program a command runs, by its words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.spec import Command
from stoker.queue.preflight import is_python, programs_of


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
