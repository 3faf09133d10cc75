"""How much GPU memory a job gets that runs again, as it is typed."""

from __future__ import annotations

import pytest

from stoker.app.control.edit import LastAttempt, changed_resources
from stoker.core.errors import UsageError
from stoker.core.spec import Resources
from support.build import GIB

AUTO, SIZED, WHOLE = Resources(auto=True), Resources(memory=10 * GIB), Resources()


@pytest.mark.parametrize(
    ("resources", "text", "before", "after", "words"),
    [
        (SIZED, "+20%", LastAttempt(10 * GIB, 9 * GIB), Resources(memory=12 * GIB), "12.0G on each GPU"),
        (SIZED, "+2G", LastAttempt(), Resources(memory=12 * GIB), "12.0G on each GPU"),
        (
            SIZED,
            "+50%",
            LastAttempt(14 * GIB, 9 * GIB),
            Resources(memory=21 * GIB),
            "21.0G on each GPU, 50% more than the 14.0G reserved last time",
        ),
        (
            AUTO,
            "+50%",
            LastAttempt(8 * GIB, 7 * GIB),
            Resources(memory=12 * GIB),
            "12.0G on each GPU, 50% more than the 8.0G reserved last time",
        ),
        (
            AUTO,
            "+1G",
            LastAttempt(None, 7 * GIB),
            Resources(memory=8 * GIB),
            "8.0G on each GPU, 1G more than the 7.0G peak of the last attempt",
        ),
        (AUTO, "12G", LastAttempt(8 * GIB), Resources(memory=12 * GIB), "12.0G on each GPU"),
        (AUTO, "all", LastAttempt(8 * GIB), WHOLE, "whole GPUs"),
        (SIZED, "auto", LastAttempt(), AUTO, "learnt memory"),
        (WHOLE, "auto", LastAttempt(), AUTO, "learnt memory"),
        (WHOLE, "6G", LastAttempt(), Resources(memory=6 * GIB), "6.0G on each GPU"),
    ],
)
def test_another_amount(resources: Resources, text: str, before: LastAttempt, after: Resources, words: str) -> None:
    """Sizes and words are meant as at submit; `+` is more than was asked for, or than it had."""
    assert changed_resources(resources, text, before) == (after, words)


@pytest.mark.parametrize(
    ("resources", "text", "before", "words"),
    [
        (WHOLE, "+20%", LastAttempt(None, 20 * GIB), "already has whole GPUs"),
        (AUTO, "+20%", LastAttempt(), "its memory use is not known"),
        (SIZED, "+lots%", LastAttempt(), "is not understood"),
        (SIZED, "+inf%", LastAttempt(), "is not understood"),
        (SIZED, "+2", LastAttempt(), "no unit"),
        (SIZED, "half", LastAttempt(), "half"),
    ],
)
def test_nonsense(resources: Resources, text: str, before: LastAttempt, words: str) -> None:
    """What cannot be meant is refused, with what to type instead."""
    with pytest.raises(UsageError, match=words):
        changed_resources(resources, text, before)


def test_more_than_it_is_known_to_need() -> None:
    """What an end for want of memory showed is more than what was declared, and grows in its place."""
    resources, said = changed_resources(Resources(memory=2 * GIB), "+50%", LastAttempt(2 * GIB, GIB, needed=8 * GIB))
    assert resources.memory == 12 * GIB
    assert "the 8.0G minimum that it needs" in said
