"""What the kernel refuses, compared with what we refuse."""

from __future__ import annotations

import os

import pytest

from stoker.core.errors import UsageError
from stoker.core.spec import Command
from stoker.queue.preflight import ONE_STRING, Room
from support.wait import wait_until

TRUE = "/bin/true"


def starts(words: list[str], environment: dict[str, str]) -> bool:
    """Whether the kernel starts the program."""
    try:
        process = os.posix_spawn(words[0], words, environment)
    except OSError:
        return False
    wait_until(lambda: os.waitpid(process, os.WNOHANG)[0])
    return True


def has_room(*words: str) -> bool:
    """Whether we let a command pass."""
    try:
        Room({}).check(Command(words), {})
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("letter", ["x", "ü", "\udcff"])
def test_a_word_of_just_the_largest_size(letter: str) -> None:
    """Bytes count, not characters; the largest word that the kernel takes is not refused, the next one is."""
    size = len(letter.encode(errors="surrogateescape"))
    fits = letter * ((ONE_STRING - 1) // size)
    assert starts([TRUE, fits], {})
    Room({}).check(Command((TRUE, fits)), {})
    assert not starts([TRUE, fits + letter], {})
    with pytest.raises(UsageError):
        Room({}).check(Command((TRUE, fits + letter)), {})


def test_a_variable_of_just_the_largest_size() -> None:
    """With its name, the equals sign and the zero at the end."""
    fits = "x" * (ONE_STRING - 3)
    assert starts([TRUE], {"A": fits})
    Room({"A": fits})
    assert not starts([TRUE], {"A": fits + "x"})
    with pytest.raises(UsageError, match="variable A"):
        Room({"A": fits + "x"})
    with pytest.raises(UsageError, match="variable A"):
        Room({}).check(Command((TRUE,)), {"A": fits + "x"})


def test_all_together() -> None:
    """Many strings that are each small enough; what we let pass, the kernel takes."""
    word = "x" * 100_000
    count = next(count for count in range(100) if not has_room(TRUE, *[word] * (count + 1)))
    assert starts([TRUE, *[word] * count], {})
    assert not starts([TRUE, *[word] * (count + 2)], {})


def test_an_environment_that_leaves_no_room() -> None:
    """It is refused before any job is looked at."""
    with pytest.raises(UsageError, match="together"):
        Room({f"V{number}": "x" * 100_000 for number in range(100)})
