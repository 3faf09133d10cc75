"""Parameter spaces as users type them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.features.sweep.model.grammar import domain_of, parse_domain, parse_space, scalar_of
from stoker.features.sweep.model.space import (
    Choices,
    Condition,
    Range,
    difference,
    parameter_text,
    points_of,
    space_text,
    values_of,
)


def listed(text: str) -> list[object]:
    """The values of a domain that has finitely many."""
    values = values_of(parse_domain(text))
    assert values is not None
    return list(values)


class TestLists:
    """Values between commas."""

    @pytest.mark.parametrize(
        ("text", "values"),
        [
            ("1e-3,1e-4", [0.001, 0.0001]),
            ("1,2.5,.5,-3", [1, 2.5, 0.5, -3]),
            ("sgd, adam", ["sgd", "adam"]),
            ("true,False,null", [True, False, None]),
            ("'a,b',\"c d\",e", ["a,b", "c d", "e"]),
            ("'1','nan'", ["1", "nan"]),
            ("[1,2],(3,4)", ["[1,2]", "(3,4)"]),
            ("../data,a..b", ["../data", "a..b"]),
            ("007,1_000,0x10", ["007", "1_000", "0x10"]),
            ("choice(1,2)", [1, 2]),
            ("1,true", [1, True]),
        ],
    )
    def test_types(self, text: str, values: list[object]) -> None:
        """Numbers, true, false and null have their type; anything else is text, and so is what is quoted."""
        found = listed(text)
        assert [(type(each), each) for each in found] == [(type(each), each) for each in values]

    def test_texts_are_kept(self) -> None:
        """A command gets a value as it was typed."""
        assert parse_domain("1e-3,True,.5") == Choices((0.001, True, 0.5), ("1e-3", "True", ".5"))
        assert parse_domain("a,2") == Choices(("a", 2))

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "a value is missing"),
            ("1,,2", "a value is missing"),
            ("1,2,1", "'1' occurs twice"),
            ("0.001,1e-3", "'1e-3' occurs twice"),
            ("1,1.0", "'1.0' occurs twice"),
            ("1,nan", "nan is not a finite number"),
            ("-inf", "-inf is not a finite number"),
            ("a\0b", "NUL"),
        ],
    )
    def test_refused(self, text: str, message: str) -> None:
        """Missing, repeated and infinite values."""
        with pytest.raises(UsageError, match=message) as caught:
            parse_domain(text)
        assert caught.value.hint


class TestRanges:
    """LOW..HIGH, and Hydra's forms."""

    @pytest.mark.parametrize(
        ("text", "domain"),
        [
            ("1e-5..1e-1:log", Range(1e-5, 0.1, log=True)),
            ("2..8", Range(2, 8, integer=True)),
            ("-4..4", Range(-4, 4, integer=True)),
            ("2..8:float", Range(2.0, 8.0)),
            ("0..1:0.25", Range(0.0, 1.0, step=0.25)),
            ("2..8:2", Range(2, 8, integer=True, step=2)),
            ("16..256:log", Range(16, 256, log=True, integer=True)),
            ("interval(1e-5, 1e-1)", Range(1e-5, 0.1)),
            ("tag(log, interval(1e-5,1e-1))", Range(1e-5, 0.1, log=True)),
            ("int(interval(1,8))", Range(1, 8, integer=True)),
            ("range(5)", Range(0, 4, integer=True)),
            ("range(0,10,3)", Range(0, 9, integer=True, step=3)),
        ],
    )
    def test_forms(self, text: str, domain: Range) -> None:
        """Both ends are included, except by range()."""
        assert parse_domain(text) == domain

    @pytest.mark.parametrize(
        ("text", "values"),
        [
            ("2..8:2", [2, 4, 6, 8]),
            ("2..7:2", [2, 4, 6]),
            ("0..1:0.25", [0.0, 0.25, 0.5, 0.75, 1.0]),
            ("0..0.3:0.1", [0.0, 0.1, 0.2, 0.3]),
            ("1e-5..1e-1:log:x5", [1e-5, 1e-4, 1e-3, 1e-2, 0.1]),
            ("1..2:x3", [1, 2]),
            ("1..2:float:x3", [1.0, 1.5, 2.0]),
            ("64..1024:log:x5", [64, 128, 256, 512, 1024]),
            ("3..3", [3]),
            ("range(0,1,0.5)", [0.0, 0.5]),
        ],
    )
    def test_values(self, text: str, values: list[float]) -> None:
        """A step or a number of values makes a range countable."""
        assert listed(text) == values

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("5..1", "is empty"),
            ("0..1:log", "logarithmic range cannot start at 0"),
            ("-1..1:log", "logarithmic range cannot start at -1"),
            ("1..x", "'x' is no number"),
            ("1..", "'' is no number"),
            ("1..inf", "is not finite"),
            ("nan..2", "is not finite"),
            ("1..1e999", "not finite"),
            ("1..5:lgo", "'lgo' is not known"),
            ("choice(1,2", "does not end with"),
            ("0..1:0", "the step 0 is not above 0"),
            ("0..1:-1", "the step -1 is not above 0"),
            ("1..9:log:2", "no step"),
            ("0.5..2:int", "not one of integers"),
            ("1..5:x0", "x0 is not a number of values"),
            ("range(5,0)", "is empty"),
            ("interval(1)", "two numbers"),
            ("chioce(1,2)", r"chioce\(\) is not known"),
        ],
    )
    def test_refused(self, text: str, message: str) -> None:
        """Each with what to write instead."""
        with pytest.raises(UsageError, match=message) as caught:
            parse_domain(text)
        assert caught.value.hint

    def test_suggestions(self) -> None:
        """A mistyped word is recognised."""
        with pytest.raises(UsageError) as caught:
            parse_domain("chioce(1,2)")
        assert "did you mean choice?" in caught.value.hint

    @given(st.floats(1e-12, 1e12), st.floats(1e-12, 1e12), st.integers(1, 50))
    def test_spaced_values_stay_within(self, one: float, other: float, count: int) -> None:
        """However the bounds are rounded."""
        low, high = sorted((one, other))
        values = listed(f"{low!r}..{high!r}:log:x{count}")
        assert all(isinstance(value, float) and low <= value <= high for value in values)
        assert 1 <= len(values) <= count


class TestSpaces:
    """Several parameters."""

    def test_conditions(self) -> None:
        """As words of their own, or in one quoted word."""
        words = "opt=sgd,adam lr=0.1,0.2 momentum=0.8,0.9 if opt=sgd nesterov=true,false if opt=sgd and momentum=0.9"
        space = parse_space(words.split())
        assert [parameter_text(one) for one in space.parameters][2:] == [
            "momentum=0.8,0.9 if opt=sgd",
            "nesterov=true,false if opt=sgd and momentum=0.9",
        ]
        assert space.products[0]["momentum"].when == (Condition("opt", ("sgd",)),)
        assert parse_space(["opt=sgd,adam", "lr=0.1,0.2", "momentum=0.8,0.9 if opt=sgd"]) == parse_space(
            words.split()[:5]
        )

    def test_unions(self) -> None:
        """A plus sign separates products."""
        space = parse_space(["method=GAN,ALI", "packing=1", "+", "method=WGAN", "packing=3", "zmode=1,2"])
        assert [points_of(space).at(number) for number in range(points_of(space).size)] == [
            {"method": "GAN", "packing": 1},
            {"method": "ALI", "packing": 1},
            {"method": "WGAN", "packing": 3, "zmode": 1},
            {"method": "WGAN", "packing": 3, "zmode": 2},
        ]
        assert space.names == ("method", "packing", "zmode")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ("lr=1 lr=2", "lr is given twice"),
            ("lr", "'lr' is not a parameter"),
            ("1lr=2", "cannot be the name"),
            ("=2", "cannot be the name"),
            ("lr=1 +", "one side of a \\+"),
            ("if a=1", "if stands without"),
            ("a=1 if", "condition of a is missing"),
            ("a=1 if b=2", "no parameter b comes before it"),
            ("b=1,2 a=1 if b=3", "b=3, which is not a value of b"),
            ("b=0.0..1.0 a=1 if b=0.5", "continuous range"),
            ("b=1..3 a=1 if b=4", "not a value of b"),
            ("lr=\udcff", "not UTF-8"),
        ],
    )
    def test_refused(self, words: str, message: str) -> None:
        """What cannot be a space."""
        with pytest.raises(UsageError, match=message) as caught:
            parse_space(words.split(" "))
        assert caught.value.hint

    def test_text_leads_back(self) -> None:
        """The text of a space means the same space."""
        words = "a=1e-3,x b=2..8:2 c=0.5..2.0:log d=1,2 if a=x + a=0..1:0.5 e='x,y',\"it's\""
        space = parse_space(words.split(" "))
        assert parse_space(space_text(space).split(" ")) == space

    def test_difference(self) -> None:
        """Parameters of which only one space has the values."""
        before, now = parse_space(["a=1,2", "b=3"]), parse_space(["a=1,2,3", "b=3"])
        assert difference(before, now) == ["- a=1,2", "+ a=1,2,3"]
        assert difference(now, now) == []


def test_values_of_programs() -> None:
    """Lists and ranges of Python, texts as typed, and constants."""
    assert domain_of([1, "a", 0.5, None]) == Choices((1, "a", 0.5, None))
    assert domain_of(range(2, 8, 2)) == Range(2, 6, integer=True, step=2)
    assert domain_of("1..3") == Range(1, 3, integer=True)
    assert domain_of(True) == Choices((True,))
    for odd in ([], [math.nan], [2**60], [object()], ["a\0b"], ["\udcff"]):
        with pytest.raises(UsageError):
            domain_of(odd)
    with pytest.raises(UsageError):
        scalar_of([1])
