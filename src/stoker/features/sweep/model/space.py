"""Parameter spaces: parameters with their values or ranges, conditions between them, and unions of products."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from msgspec import Struct

from stoker.core.errors import UsageError
from stoker.core.grid import MOST_IN_MEMORY, Chain, Grid, Points, Tree

Scalar = bool | int | float | str | None
"""A value of a parameter, as JSON has it."""
Params = dict[str, Scalar]
"""One point of a space; a parameter whose condition does not hold is missing."""
DIGITS = 6
"""Significant digits of a value that is drawn from a range."""
STEP_DIGITS = 14
"""Significant digits of a value of a range with steps: 0.1 + 0.2 is 0.3."""
_PLAIN = re.compile(r"(?a)[A-Za-z_./][\w./:@%+=-]*")
_WORDS = ("true", "false", "null", "nan", "inf", "infinity", ".nan", ".inf")


class Choices(Struct, frozen=True, tag="choices", omit_defaults=True):
    """A list of values; a constant is a list of one."""

    values: tuple[Scalar, ...]
    texts: tuple[str, ...] = ()
    """The values as typed; empty if all are as `value_text` writes them."""


class Range(Struct, frozen=True, tag="range", omit_defaults=True):
    """Numbers from `low` to `high`, both included."""

    low: int | float
    high: int | float
    log: bool = False
    integer: bool = False
    step: int | float | None = None
    """Distance of the values; None is 1 for integers, and any number in between otherwise."""


Domain = Choices | Range


class Condition(Struct, frozen=True):
    """A parameter exists only if another one has one of these values."""

    name: str
    values: tuple[Scalar, ...]


class Parameter(Struct, frozen=True, omit_defaults=True):
    """A named dimension of a space."""

    name: str
    domain: Domain
    when: tuple[Condition, ...] = ()
    """All of them must hold; each names an earlier parameter of the same product."""


class Product(Struct, frozen=True):
    """Every combination of the values of its parameters."""

    parameters: tuple[Parameter, ...]

    def __getitem__(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)


class Space(Struct, frozen=True):
    """A union of products, most often of a single one."""

    products: tuple[Product, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All parameters, each once, in the order of their first appearance."""
        return tuple(dict.fromkeys(parameter.name for product in self.products for parameter in product.parameters))

    @property
    def parameters(self) -> Iterator[Parameter]:
        """The parameters of all products; one that several products have comes several times."""
        return (parameter for product in self.products for parameter in product.parameters)


class SteppedValues(Sequence[float]):
    """The values of a range with a step, computed when they are asked for."""

    def __init__(self, domain: Range) -> None:
        self._domain = domain
        step = 1 if domain.step is None else domain.step
        self._step = step
        self._size = math.floor((domain.high - domain.low) / step * (1 + 1e-12) + 1e-9) + 1

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, place: int) -> float: ...
    @overload
    def __getitem__(self, place: slice) -> list[float]: ...
    def __getitem__(self, place: int | slice) -> float | list[float]:
        if isinstance(place, slice):
            return [self[index] for index in range(self._size)[place]]
        number = rounded(self._domain.low + range(self._size)[place] * self._step, STEP_DIGITS)
        return min(max(number, self._domain.low), self._domain.high)


def values_of(domain: Domain) -> Sequence[Scalar] | None:
    """All values in order; None for a range that has infinitely many."""
    if isinstance(domain, Choices):
        return domain.values
    if domain.integer:
        return range(int(domain.low), int(domain.high) + 1, int(domain.step or 1))
    return None if domain.step is None else SteppedValues(domain)


def continuous(space: Space) -> list[str]:
    """Names of the parameters that have infinitely many values."""
    return list(dict.fromkeys(parameter.name for parameter in space.parameters if values_of(parameter.domain) is None))


def points_of(space: Space) -> Points[Params]:
    """All points by number. No value is computed before it is asked for."""
    if endless := continuous(space):
        name = endless[0]
        domain = next(parameter.domain for parameter in space.parameters if parameter.name == name)
        raise UsageError(
            f"a grid needs values, but {name} is a range with infinitely many",
            f"take some of them: {name}={domain_text(domain)}:x5, or search with --method random -N 20",
        )
    grids = [_points(product) for product in space.products]
    return grids[0] if len(grids) == 1 else Chain(grids)


def _points(product: Product) -> Points[Params]:
    values = {parameter.name: values_of(parameter.domain) or () for parameter in product.parameters}
    when = {
        parameter.name: {condition.name: condition.values for condition in parameter.when}
        for parameter in product.parameters
        if parameter.when
    }
    return Tree(values, when, same) if when else Grid(values)


def is_active(parameter: Parameter, point: Mapping[str, Scalar]) -> bool:
    """Whether the parameter exists, given the values of those before it."""
    return all(
        condition.name in point and any(same(point[condition.name], value) for value in condition.values)
        for condition in parameter.when
    )


def same(value: Scalar, other: Scalar) -> bool:
    """Whether two values are equal; true is not 1, but 1.0 is."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def rounded(number: float, digits: int = DIGITS) -> float:
    """A number with as many digits as a user would type."""
    return float(f"{number:.{digits}g}")


# -- text ----------------------------------------------------------------------------------------


def value_text(value: Scalar) -> str:
    """A value in a command line."""
    if value is True or value is False:
        return "true" if value else "false"
    return "null" if value is None else str(value)


class _Table(dict[Any, str]):
    """The texts of the values of one parameter; other values are as `value_text` writes them."""

    def __missing__(self, value: Scalar) -> str:
        return value_text(value)


class _TypedTable(_Table):
    """The same for a parameter that may be true or false, which Python takes for 1 and 0."""

    def __getitem__(self, value: Scalar) -> str:
        return self.get((type(value), value)) or value_text(value)


class _Tables(dict[str, _Table]):
    """The tables of all parameters."""

    def __missing__(self, name: str) -> _Table:
        return _TypedTable()


class Texts:
    """The texts of values: those of a list as they were typed."""

    def __init__(self, space: Space) -> None:
        self._tables = _Tables()
        lists = [
            (parameter.name, parameter.domain)
            for parameter in space.parameters
            if isinstance(parameter.domain, Choices)
        ]
        typed = {name for name, domain in lists if any(isinstance(value, bool) for value in domain.values)}
        for name, domain in lists:
            table = self._tables.setdefault(name, _TypedTable() if name in typed else _Table())
            for value, text in zip(domain.values, _texts_of(domain), strict=True):
                table.setdefault((type(value), value) if name in typed else value, text)

    def of(self, point: Mapping[str, Scalar]) -> dict[str, str]:
        tables = self._tables
        return {name: tables[name][value] for name, value in point.items()}


def with_texts(space: Space) -> Space | None:
    """The same points with the texts of their values; None for a space with conditions or very many values."""
    values = {parameter: values_of(parameter.domain) for parameter in space.parameters}
    if any(parameter.when or listed is None for parameter, listed in values.items()):
        return None
    if sum(len(listed) for listed in values.values() if listed is not None) > MOST_IN_MEMORY:
        return None
    return Space(
        tuple(
            Product(
                tuple(
                    Parameter(parameter.name, Choices(_texts_of(parameter.domain))) for parameter in product.parameters
                )
            )
            for product in space.products
        )
    )


def _texts_of(domain: Domain) -> tuple[str, ...]:
    texts = domain.texts if isinstance(domain, Choices) else ()
    return texts or tuple(map(value_text, values_of(domain) or ()))


def texts_of(space: Space, point: Mapping[str, Scalar]) -> dict[str, str]:
    """The values of one point as text."""
    return Texts(space).of(point)


def domain_text(domain: Domain) -> str:
    """A domain as it can be typed."""
    if isinstance(domain, Choices):
        return ",".join(map(_item_text, domain.values, _texts_of(domain)))
    signs = [":log"] * domain.log + [f":{domain.step}"] * (domain.step is not None)
    signs += [":float"] * (not domain.integer and isinstance(domain.low, int) and isinstance(domain.high, int))
    return f"{domain.low}..{domain.high}{''.join(signs)}"


def _item_text(value: Scalar, text: str) -> str:
    """A value in a list; quoted if it would be read as something else."""
    if not isinstance(value, str) or (_PLAIN.fullmatch(text) and text.lower() not in _WORDS):
        return text
    quote = '"' if "'" in text else "'"
    return f"{quote}{text}{quote}"


def parameter_text(parameter: Parameter) -> str:
    """A parameter as it can be typed: `momentum=0.8,0.9 if optimizer=sgd`."""
    conditions = " and ".join(
        f"{condition.name}={','.join(_item_text(value, value_text(value)) for value in condition.values)}"
        for condition in parameter.when
    )
    return f"{parameter.name}={domain_text(parameter.domain)}{f' if {conditions}' if conditions else ''}"


def space_text(space: Space) -> str:
    """A space as it can be typed."""
    return " + ".join(" ".join(map(parameter_text, product.parameters)) for product in space.products)


def difference(before: Space, now: Space) -> list[str]:
    """The parameters that are in one space and not in the other: `- lr=1,2`, `+ lr=1,2,3`; empty for equal spaces."""
    old, new = (
        [f"{place}{parameter_text(parameter)}" for place, parameter in _placed(space)] for space in (before, now)
    )
    return [f"- {line}" for line in old if line not in new] + [f"+ {line}" for line in new if line not in old]


def _placed(space: Space) -> Iterator[tuple[str, Parameter]]:
    for number, product in enumerate(space.products, 1):
        place = f"product {number}: " if len(space.products) > 1 else ""
        yield from ((place, parameter) for parameter in product.parameters)
