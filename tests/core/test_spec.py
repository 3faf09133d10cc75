"""Arrays and dependencies as users type them."""

from __future__ import annotations

from contextlib import suppress
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.core.ranges import ranges_of
from stoker.core.spec import (
    MOST_TASKS,
    ArraySpec,
    Blocked,
    Dependency,
    Kind,
    NeverSatisfied,
    Outcome,
    Satisfied,
    Verdict,
    dependency_text,
    judge,
    never_satisfied_text,
    parse_after,
    parse_array,
)

QUIET = settings(max_examples=200, derandomize=True)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("0-9", ArraySpec(ranges_of(range(10)))),
        ("0-15:4", ArraySpec(ranges_of([0, 4, 8, 12]))),
        ("0-99%8", ArraySpec(ranges_of(range(100)), 8)),
        ("1,3,7-9", ArraySpec(ranges_of([1, 3, 7, 8, 9]))),
        ("5", ArraySpec(ranges_of([5]))),
        ("7,1-2", ArraySpec(ranges_of([7, 1, 2]))),
        (" 0-1, 4 %2 ", ArraySpec(ranges_of([0, 1, 4]), 2)),
        ("3-3:9", ArraySpec(ranges_of([3]))),
    ],
)
def test_arrays(text: str, spec: ArraySpec) -> None:
    """Ranges, steps, lists and the limit; tasks keep their order."""
    assert parse_array(text) == spec


@pytest.mark.parametrize(
    "text",
    [
        *("", "-1", "0-", "-5-3", "9-0", "0-9:0", "0-9:", "1,,2", "1,", "a-b", "0-9%", "0-9%0", "0-9%-1", "0-9%x"),
        *("%4", "0-9%4%4", "1,1", "0-9,5", "0..9", "1:2", "٣", "9" * 5000, "0-1000000", "0-999999,1000001"),
    ],
)
def test_malformed_arrays_are_refused_with_a_hint(text: str) -> None:
    """Malformed arrays are refused, and the hint shows the syntax."""
    with pytest.raises(UsageError) as refused:
        parse_array(text)
    assert refused.value.hint
    assert len(refused.value.message) < 120


def test_a_duplicate_task_is_named() -> None:
    """The error names the duplicate task."""
    with pytest.raises(UsageError, match="task 5 twice"):
        parse_array("0-9,5")


def test_the_largest_array() -> None:
    """A million tasks are allowed; a larger range is refused before it is expanded."""
    assert len(parse_array("0-999999").indices) == MOST_TASKS
    with pytest.raises(UsageError, match="999999999 tasks"):
        parse_array("1-999999999")


@QUIET
@given(st.text(alphabet="0129-,:% ") | st.text())
def test_any_text_is_an_array_or_a_usage_error(text: str) -> None:
    """Any text gives an array with tasks or a UsageError."""
    with suppress(UsageError):
        spec = parse_array(text)
        assert 0 < len(spec.indices) == len(set(spec.indices))
        assert spec.at_once is None or spec.at_once > 0


KINDS: tuple[Kind, ...] = get_args(Kind)
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
DOOMED = {("ok", "notok"), ("notok", "ok")}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12", [("ok", "12")]),
        ("12,13", [("ok", "12"), ("ok", "13")]),
        ("ok:12,13", [("ok", "12"), ("ok", "13")]),
        ("any:12", [("any", "12")]),
        ("notok:12:13", [("notok", "12"), ("notok", "13")]),
        ("12,notok:13,ok:14", [("ok", "12"), ("notok", "13"), ("ok", "14")]),
        ("last", [("ok", "last")]),
        ("any:12.3", [("any", "12.3")]),
        ("4-6", [("ok", "4-6")]),
        ("train vit", [("ok", "train vit")]),
        ("afterok:1:2", [("ok", "1"), ("ok", "2")]),
        ("afterok:1:2,afterany:3,afternotok:4", [("ok", "1"), ("ok", "2"), ("any", "3"), ("notok", "4")]),
        ("AfterAny:3", [("any", "3")]),
        (" 12 , 13 ", [("ok", "12"), ("ok", "13")]),
        ("12,12", [("ok", "12")]),
    ],
)
def test_after(text: str, found: list[tuple[Kind, str]]) -> None:
    """The default kind is ok; ids stay text, because only the queue can resolve them."""
    assert parse_after(text) == tuple(found)


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "12,", "ok:", "any", "afterok", "ok::12", "after:12", "aftercorr:3", "oks:12", "4-", "ok:9-4"),
        *("afterok:1?afterok:2", "afterok:12+5", "-3"),
    ],
)
def test_malformed_ones_are_refused_with_a_hint(text: str) -> None:
    """A kind without an id, an unknown kind, a malformed id, and what only Slurm can do."""
    with pytest.raises(UsageError) as refused:
        parse_after(text)
    assert refused.value.hint


@pytest.mark.parametrize("kind", ["any", "notok"])
def test_an_id_without_a_kind_after_one_with_it(kind: str) -> None:
    """It is refused, since a wrong guess would start a job too early, or never."""
    with pytest.raises(UsageError) as refused:
        parse_after(f"{kind}:12,13")
    assert refused.value.hint == f"write {kind}:13 or ok:13"


@QUIET
@given(st.text(alphabet="okany:notfer123,.-? ") | st.text())
def test_any_text_is_dependencies_or_a_usage_error(text: str) -> None:
    """Any text gives dependencies or a UsageError."""
    with suppress(UsageError):
        assert all(kind in KINDS and word for kind, word in parse_after(text) or [("", "")])


@pytest.mark.parametrize(
    ("kind", "outcome", "verdict"),
    [
        ("ok", "ok", Satisfied()),
        ("ok", "notok", NeverSatisfied(Dependency(12))),
        ("any", "ok", Satisfied()),
        ("any", "notok", Satisfied()),
        ("notok", "notok", Satisfied()),
        ("notok", "ok", NeverSatisfied(Dependency(12, "notok"))),
    ],
)
def test_an_ended_target(kind: Kind, outcome: Outcome, verdict: Verdict) -> None:
    """An ended target makes a job ready or never satisfied, with a reason."""
    assert judge([Dependency(12, kind)], lambda _: outcome) == verdict


def test_open_targets_are_named() -> None:
    """Blocked names only the open targets."""
    open_one, ended = Dependency(12), Dependency(13, "any")
    came_to: dict[Dependency, Outcome] = {open_one: "open", ended: "notok"}
    assert judge([open_one, ended], came_to.__getitem__) == Blocked((open_one,))


def test_no_dependencies() -> None:
    """A job without dependencies is ready."""
    assert judge([], lambda _: "open") == Satisfied()


def test_text_of_never_satisfied() -> None:
    """The text names the outcome and the id as users type it."""
    assert never_satisfied_text(NeverSatisfied(Dependency(12))) == "job 12 did not succeed"
    assert never_satisfied_text(NeverSatisfied(Dependency(12)), lambda _: "11.1") == "job 11.1 did not succeed"
    said = "job 12 succeeded; this job starts only if it fails"
    assert never_satisfied_text(NeverSatisfied(Dependency(12, "notok"))) == said


def test_arrays_are_called_so() -> None:
    """The text of an array says array."""
    assert (
        never_satisfied_text(NeverSatisfied(Dependency(12, array=True)), "11.{}".format) == "array 12 did not succeed"
    )
    assert dependency_text(Dependency(12, "any", array=True)) == "array 12 (any)"
    assert dependency_text(Dependency(46)) == "46 (ok)"


@QUIET
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(OUTCOMES))))
def test_one_unsatisfied_dependency_is_enough(pairs: list[tuple[Kind, Outcome]]) -> None:
    """NeverSatisfied comes before blocked, blocked before ready, in whatever order the targets are named."""
    after = [Dependency(number, kind) for number, (kind, _) in enumerate(pairs)]
    verdict = judge(after, lambda dependency: pairs[dependency.target][1])
    if DOOMED & set(pairs):
        assert isinstance(verdict, NeverSatisfied)
    else:
        waits = tuple(one for one in after if pairs[one.target][1] == "open")
        assert verdict == (Blocked(waits) if waits else Satisfied())
