"""What earlier runs tell of the next one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.memory import KEPT, Learnt, expected_seconds, observe, signature_of
from stoker.core.terms import Command

LR = Command(("python", "train.py", "--lr", "1e-3"))


def test_nothing_is_expected_of_the_unknown() -> None:
    """Where nothing ran before, nobody guesses."""
    assert expected_seconds(Learnt()) is None


def test_one_odd_run_does_not_change_what_is_expected() -> None:
    """The middle run counts, not the mean."""
    learnt = Learnt()
    for seconds in (60.0, 62.0, 4000.0):
        learnt = observe(learnt, seconds)
    assert expected_seconds(learnt) == 62.0


@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50))
def test_only_the_newest_runs_count(runs: list[float]) -> None:
    """What was long ago is forgotten, and what is expected has been seen."""
    learnt = Learnt()
    for seconds in runs:
        learnt = observe(learnt, seconds)
    assert learnt.seconds == tuple(runs[-KEPT:])
    expected = expected_seconds(learnt)
    assert expected is not None
    assert min(learnt.seconds) <= expected <= max(learnt.seconds)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LR, Command(("python", "train.py", "--lr", "3e-4"))),
        (
            Command(("python train.py --seed 1 > out1.txt",), "/bin/sh"),
            Command(("python train.py --seed 22 > out2.txt",), "/bin/bash"),
        ),
        (LR, Command(("python train.py --lr '2e-3'",), "/bin/sh")),
        (Command(("echo 'a 1",), "/bin/sh"), Command(("echo 'a 2",), "/bin/sh")),
    ],
)
def test_numbers_do_not_make_another_kind_of_work(one: Command, other: Command) -> None:
    """A sweep over rates and seeds is one kind of work, however it was typed."""
    assert signature_of(one, "/home/ada") == signature_of(other, "/home/ada")


@pytest.mark.parametrize(
    "other",
    [
        (Command(("python", "eval.py", "--lr", "1e-3")), "/home/ada"),
        (Command(("python3", "train.py", "--lr", "1e-3")), "/home/ada"),
        (Command(("python", "train.py", "--model", "vit")), "/home/ada"),
        (LR, "/home/bob"),
        (Command(("",)), "/home/ada"),
    ],
)
def test_another_program_script_option_or_place_is_other_work(other: tuple[Command, str]) -> None:
    """What decides how long it takes tells kinds apart."""
    assert signature_of(LR, "/home/ada") != signature_of(*other)
