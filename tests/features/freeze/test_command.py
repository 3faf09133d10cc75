"""What commands start, and which of their words are frozen."""

from __future__ import annotations

import pytest

from stoker.core.spec import Command
from stoker.features.freeze.command import StartedCode, started_by, with_files

FILES = [
    "python train.py --lr 1",
    "python3.11 -u -W ignore train.py",
    "/usr/bin/python train.py",
    "CUDA_VISIBLE_DEVICES=0 python train.py",
    "torchrun --nproc_per_node 2 train.py --x 1",
    "python -X importtime train.py -m x",
    "accelerate launch --num_processes 2 train.py",
    "uv run python train.py",
    "uv run train.py",
    "conda run -n env python train.py",
    "nice -n 5 timeout 60 python train.py",
    "mpirun -np 2 python train.py",
    "Rscript train.py",
    "cd here && python train.py",
    "jupyter nbconvert --execute train.py",
]


@pytest.mark.parametrize("line", FILES)
def test_files(line: str) -> None:
    """Both as a line of a shell and as words."""
    assert started_by(Command((line,), "/bin/sh")) == StartedCode("file", "train.py")
    if "&&" not in line and "=0" not in line:
        assert started_by(Command(tuple(line.split()))) == StartedCode("file", "train.py")


@pytest.mark.parametrize(
    ("line", "started"),
    [
        ("python -m pkg.train --x", StartedCode("module", "pkg.train")),
        ("python -I -m pkg", StartedCode("alone", "pkg")),
        ("python -E -u -m pkg", StartedCode("alone", "pkg")),
        ("python -um pkg", StartedCode("module", "pkg")),
        ("torchrun --nproc-per-node=2 -m pkg", StartedCode("module", "pkg")),
        ("accelerate launch -m pkg", StartedCode("module", "pkg")),
        ("bash -eu run.sh a", StartedCode("file", "run.sh")),
        ("bash job x", StartedCode("file", "job")),
        ("./train.py --x", StartedCode("file", "./train.py")),
        ("bin/tool", StartedCode("file", "bin/tool")),
        ("python -c 'import x'", StartedCode("text", "import")),
        ("bash -c 'echo x.py'", StartedCode("text", "echo")),
        ("python -m pytest tests/test_a.py", StartedCode("file", "tests/test_a.py")),
        ("python -m pytest -q", StartedCode("")),
        ("python -m unittest discover tests", StartedCode("")),
        ("python train.py; python b.py", StartedCode("file", "train.py")),
        ("(./run.sh)", StartedCode("file", "./run.sh")),
        ("echo train.py", StartedCode("")),
        ("nvidia-smi", StartedCode("")),
        ("sleep 5", StartedCode("")),
        ("", StartedCode("")),
        ("python", StartedCode("")),
        ("cd", StartedCode("")),
        ("A=1", StartedCode("")),
    ],
)
def test_other_commands(line: str, started: StartedCode) -> None:
    assert started_by(Command((line,), "/bin/sh")) == started


def frozen(word: str) -> str:
    return f"/snap/{word}" if word in ("train.py", "conf/a.yaml", "with space.py") else ""


def test_words_that_name_files() -> None:
    """Also after an option with an equals sign, and not as a part of another word."""
    words = ("python", "train.py", "--config=conf/a.yaml", "-c", "conf/a.yaml", "key=conf/a.yaml", "xtrain.py")
    assert with_files(Command(words), frozen).words == (
        *("python", "/snap/train.py", "--config=/snap/conf/a.yaml"),
        *("-c", "/snap/conf/a.yaml", "key=conf/a.yaml", "xtrain.py"),
    )


WRITTEN = [
    "python train.py --out result.json",
    "python train.py --output-file=result.json",
    "python train.py --save_to m.yaml",
    "python train.py -o m.yaml",
    "python train.py result.json",
    "python train.py table.csv",
    "python train.py --data table.csv",
]


@pytest.mark.parametrize("line", WRITTEN)
def test_files_that_a_command_may_write_stay(line: str) -> None:
    """Else a second run with the same name of its output writes into the snapshot."""

    def all_frozen(word: str) -> str:
        return f"/snap/{word}"

    script = line.replace("python train.py", "python /snap/train.py")
    assert with_files(Command((line,), "/bin/sh"), all_frozen).words == (script,)
    words = with_files(Command(("env", *line.split())), all_frozen).words
    assert words[1:] == tuple(script.split())


def test_redirections_and_configurations() -> None:
    line = "python train.py --logits a.json conf.json --static=b.toml -c d.yaml > e.yaml 2>f.py"
    replaced = with_files(Command((line,), "/bin/sh"), lambda word: f"/s/{word}" if "." in word else "").words
    assert replaced == (
        "python /s/train.py --logits /s/a.json /s/conf.json --static=b.toml -c /s/d.yaml > e.yaml 2>f.py",
    )


@pytest.mark.parametrize(
    ("line", "replaced"),
    [
        ("python train.py>out", "python /snap/train.py>out"),
        ("A=1 python train.py --c=conf/a.yaml; x", "A=1 python /snap/train.py --c=/snap/conf/a.yaml; x"),
        ("(python train.py)", "(python /snap/train.py)"),
        ("python 'train.py' $PWD/train.py \"train.py\"", None),
        ("cd sub && python train.py", None),
        ("echo train.pyc ./xtrain.py", None),
    ],
)
def test_words_in_lines(line: str, replaced: str | None) -> None:
    """Those with quotes or variables stay, and all after a change of the directory."""
    assert with_files(Command((line,), "/bin/sh"), frozen) == Command((replaced or line,), "/bin/sh")
