"""The examples of docs/python.md are programs that do what is written there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.python_program import Programs, programs_in

PAGE = Path(__file__).parents[2] / "docs/python.md"


class Example(NamedTuple):
    """A program, and what it prints, where that is shown."""

    program: str
    output: str | None


def examples() -> list[Example]:
    """All code of the page; what is shown as text belongs to the program before it."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert {kind for kind, _ in blocks} == {"python", "text"}, "what is neither is run by nobody"
    followers = [*blocks[1:], ("", "")]
    return [
        Example(text, after if what == "text" else None)
        for (kind, text), (what, after) in zip(blocks, followers, strict=True)
        if kind == "python"
    ]


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """One queue for all of them."""
    with programs_in(tmp_path_factory.mktemp("docs")) as made:
        yield made


@pytest.mark.parametrize("example", examples(), ids=lambda example: f"line-{line_of(example)}")
def test_example(queue: Programs, example: Example) -> None:
    """It runs to its end, and prints what is shown."""
    said = queue.run_script(example.program)
    if example.output is not None:
        assert said == example.output


def line_of(example: Example) -> int:
    """Where it begins on the page."""
    return PAGE.read_text().partition(example.program)[0].count("\n") + 1
