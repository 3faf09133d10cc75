"""Commands that can be forked from a template, and when two of them share one."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.core.spec import Command
from stoker.core.warm import PythonCommand, Template, read_python, template_of


@pytest.mark.parametrize(
    ("words", "options", "kind", "target", "arguments"),
    [
        ("python train.py --lr 0.1", (), "file", "train.py", ("--lr", "0.1")),
        ("/opt/env/bin/python3.11 -u -X dev -W error -O a/train.py", ("-u", "-X", "dev", "-W", "error", "-O"), "file",
         "a/train.py", ()),
        ("python -Xdev -Werror x.py -m", ("-Xdev", "-Werror"), "file", "x.py", ("-m",)),
        ("python3 -u -m package.train -c 1", ("-u",), "module", "package.train", ("-c", "1")),
        ("python -mtrain", (), "module", "train", ()),
        ("python -- -odd.py", ("--",), "file", "-odd.py", ()),
    ],
)  # fmt: skip
def test_python_commands(
    words: str, options: tuple[str, ...], kind: str, target: str, arguments: tuple[str, ...]
) -> None:
    """Options of the interpreter, and what it runs; a plain line for a shell is the same."""
    expected = (words.split(maxsplit=1)[0], options, kind, target, arguments)
    for command in (Command(tuple(words.split())), Command((words,), "/bin/sh")):
        assert read_python(command) == expected


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (Command(("bash", "run.sh")), "bash is not python"),
        (Command(("torchrun", "train.py")), "torchrun is not python"),
        (Command(("python", "-c", "1")), "it runs code from its command line (-c)"),
        (Command(("python", "-ic", "1")), "it is interactive (-i)"),
        (Command(("python", "-um", "train")), "templates do not know its option -um"),
        (Command(("python", "--version")), "templates do not know its option --version"),
        (Command(("python", "-V")), "it only prints a text"),
        (Command(("python", "-")), "it reads its program from the input"),
        (Command(("python",)), "it reads its program from the input"),
        (Command(("python", "-m")), "templates do not know its option -m"),
        (Command(("cd x && python train.py",), "/bin/sh"), "it is a line for a shell"),
        (Command(("python train.py $HOME",), "/bin/sh"), "it is a line for a shell"),
    ],
)
def test_other_commands(command: Command, why: str) -> None:
    """All else starts cold, with the reason."""
    assert read_python(command) == why


def test_shared_templates() -> None:
    """Jobs share a template if Python, its options, modules, directories and variables are equal."""
    python = read_python(Command(("python", "train.py", "--lr", "1")))
    assert isinstance(python, PythonCommand)
    template = template_of(python, ("torch",), "/work", {"PATH": "/bin", "A": "1"})
    assert template.search_path == "/work"
    other = python._replace(target="/work/eval.py", arguments=())
    assert template_of(other, ("torch",), "/work", {"A": "1", "PATH": "/bin"}).key == template.key
    different = [
        replace(template, start=("python3",)),
        replace(template, start=("python", "-O")),
        replace(template, modules=("torch", "numpy")),
        replace(template, directory="/"),
        replace(template, search_path="/elsewhere"),
        replace(template, environment=(("A", "1"), ("PATH", "/usr/bin"))),
    ]
    assert len({template.key, *(each.key for each in different)}) == len(different) + 1
    assert isinstance(template, Template)
