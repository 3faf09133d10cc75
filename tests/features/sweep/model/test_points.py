"""The points that each method visits."""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import UsageError
from stoker.features.sweep.model.grammar import parse_space, range_of
from stoker.features.sweep.model.points import FIXED, MOST_DIMENSIONS, count_of, size_of, sobol_points, visited
from stoker.features.sweep.model.space import Parameter, Params, Product, Space, is_active, points_of

MIXED = parse_space(["lr=1e-5..1e-1:log", "depth=2..8", "width=16..256:log", "opt=sgd,adam", "m=0.8,0.9 if opt=sgd"])
SMALL = parse_space(["a=1,2", "b=x,y,z", "c=1,2,3", "if", "a=2", "d=0,1"])

conditional = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.booleans())


def made(a: int, b: int, c: int, wanted: int, nested: bool) -> Space:
    """A space whose later parameters depend on earlier ones."""
    lists = {name: ",".join(map(str, range(count))) for name, count in (("a", a), ("b", b), ("c", c))}
    second = f"c={lists['c']} if a={min(wanted, a - 1)}"
    last = "d=0,1 if c=0 and b=0" if nested else "d=0,1"
    return parse_space(f"a={lists['a']} b={lists['b']} {second} {last}".split())


def by_hand(space: Space) -> list[Params]:
    """All points, by going through the parameters in order."""
    points: list[Params] = [{}]
    for parameter in space.products[0].parameters:
        extended: list[Params] = []
        for point in points:
            if is_active(parameter, point):
                values = parameter.domain.values  # type: ignore[union-attr]
                extended += [{**point, parameter.name: value} for value in values]
            else:
                extended.append(point)
        points = extended
    return points


@given(conditional)
def test_conditional_grids_by_number(shape: tuple[int, int, int, int, bool]) -> None:
    """Each number gives its point, as the nested loops would; the last parameter varies fastest."""
    space = made(*shape)
    points = points_of(space)
    assert [points.at(number) for number in range(points.size)] == by_hand(space)


def test_a_huge_conditional_grid_is_lazy() -> None:
    """Points are computed only when they are read."""
    words = [f"p{number}=0..9" for number in range(30)] + ["last=1,2 if p0=9"]
    points = points_of(parse_space(words))
    assert points.size == 9 * 10**29 + 2 * 10**29
    assert points.at(points.size - 1)["last"] == 2
    assert "last" not in points.at(0)


@pytest.mark.parametrize("method", FIXED)
@pytest.mark.parametrize("space", [SMALL, MIXED])
def test_more_points_never_change_earlier_ones(method: str, space: Space) -> None:
    """So a sweep can be extended, and a seed means the same points."""
    if method in ("grid", "shuffled") and space is MIXED:
        with pytest.raises(UsageError, match="lr is a range with infinitely many") as caught:
            list(visited(space, method, 0, 0, 3))
        assert "lr=1e-05..0.1:log:x5" in caught.value.hint
        return
    first, more = list(visited(space, method, 7, 0, 9)), list(visited(space, method, 7, 0, 14))
    assert more[:9] == first
    assert list(visited(space, method, 7, 9, 14)) == more[9:]
    assert len(more) == 14
    assert method == "grid" or list(visited(space, method, 8, 0, 14)) != more


@pytest.mark.parametrize("method", ["shuffled", "random"])
def test_finite_spaces_are_drawn_without_repeats(method: str) -> None:
    """Until all points have come."""
    size = points_of(SMALL).size
    found = [tuple(point.items()) for point in visited(SMALL, method, 1, 0, size + 5)]
    assert len(found) == len(set(found)) == size == 24


@settings(max_examples=30)
@given(st.sampled_from(["random", "sobol"]), st.integers(0, 2**32))
def test_points_are_inside(method: str, seed: int) -> None:
    """Every value is one of its domain, and conditions hold."""
    for point in visited(MIXED, method, seed, 0, 40):
        assert 1e-5 <= float(point["lr"] or 0) <= 0.1
        assert point["depth"] in range(2, 9)
        assert point["width"] in range(16, 257)
        assert ("m" in point) == (point["opt"] == "sgd")


@pytest.mark.parametrize("method", ["random", "sobol"])
@pytest.mark.parametrize(("low", "high", "step"), [(16, 256, 8), (1, 100, 10), (0.5, 8.0, 0.25)])
def test_steps_on_a_logarithmic_scale(method: str, low: float, high: float, step: float) -> None:
    """Values are steps of the range, and small ones come more often than on a linear scale."""
    domain = range_of(low, high, log=True, integer=isinstance(low, int), step=step)
    space = Space((Product((Parameter("size", domain), Parameter("rate", range_of(0.0, 1.0)))),))
    values = [float(point["size"] or 0) for point in visited(space, method, 0, 0, 400)]
    assert all(low <= value <= high and (value - low) % step == 0 for value in values)
    assert sum(value < (low + high) / 2 for value in values) > 250


@pytest.mark.parametrize("method", ["random", "sobol"])
def test_shares_are_fair(method: str) -> None:
    """Every integer of a range, its ends too, and both halves of a logarithmic scale are equally likely."""
    space = parse_space(["depth=2..5", "lr=1e-4..1.0:log", "n=1..4:log"])
    points = list(visited(space, method, 0, 0, 4000))
    depths = Counter(point["depth"] for point in points)
    assert all(900 < depths[depth] < 1100 for depth in (2, 3, 4, 5))
    assert 1900 < sum(float(point["lr"] or 0) < 0.01 for point in points) < 2100
    ones = Counter(point["n"] for point in points)
    assert ones[1] > ones[2] > ones[3] > ones[4] > 200


def test_sobol_points_fill_every_cell() -> None:
    """Of 256 points in any two neighbouring dimensions, each of 16 equal parts of one axis has exactly 16."""
    points = list(islice(sobol_points(MOST_DIMENSIONS, Random(3)), 256))
    for dimension in range(MOST_DIMENSIONS):
        assert set(Counter(int(point[dimension] * 16) for point in points).values()) == {16}
    worst = 0
    for one, other in pairwise(range(12)):
        cells = Counter((int(point[one] * 4), int(point[other] * 4)) for point in points)
        worst = max(worst, *cells.values())
        assert len(cells) == 16
    assert worst <= 48


@pytest.mark.parametrize(
    ("words", "method", "count", "expected"),
    [
        ("a=1,2 b=1,2,3", "grid", None, 6),
        ("a=1,2 b=1,2,3", "grid", 4, 4),
        ("a=1,2 b=1,2,3", "random", 99, 6),
        ("a=1,2 b=1,2,3", "sobol", 99, 99),
        ("a=0.0..1.0", "random", 5, 5),
        ("a=1,2", "tpe", 5, 5),
    ],
)
def test_counts(words: str, method: str, count: int | None, expected: int) -> None:
    """-N is the most; a finite space is visited once."""
    assert count_of(parse_space(words.split()), method, count) == expected


@pytest.mark.parametrize(("words", "method"), [("a=0.0..1.0", "random"), ("a=1,2", "sobol"), ("a=1,2", "tpe")])
def test_an_endless_search_needs_a_number(words: str, method: str) -> None:
    """Else it would not end."""
    with pytest.raises(UsageError, match="does not end") as caught:
        count_of(parse_space([words]), method, None)
    assert "-N 20" in caught.value.hint


def test_sizes() -> None:
    """Of finite and infinite spaces."""
    assert size_of(SMALL) == 24
    assert size_of(MIXED) is None
