"""Parse parameter spaces as users type them: `lr=1e-5..1e-1:log`, `depth=2..8`, `opt=sgd,adam`, Hydra's forms."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stoker.core.errors import UsageError, did_you_mean
from stoker.features.sweep.model.space import (
    Choices,
    Condition,
    Domain,
    Parameter,
    Product,
    Range,
    Scalar,
    Space,
    SteppedValues,
    rounded,
    same,
    value_text,
    values_of,
)

UNION, IF, AND = "+", "if", "and"
NAME = r"[A-Za-z_][\w.@/-]*"
"""A name of a parameter; Hydra's have dots, slashes and at signs."""
LARGEST = 2**53
"""Integers up to here are exact in JSON."""
MOST_LISTED = 1_000_000
_INTEGER = r"(?a)[-+]?(?:0|[1-9]\d*)"
_NUMBER = r"(?a)[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NOT_FINITE = r"(?i)[-+]?(?:nan|inf(?:inity)?)|[-+]?\.(?:nan|inf)"
_CALL = r"(?s)(\w+)\((.*)\)"
_OPENED = r"(\w+)\("
_COUNT = r"(?a)x(\d{1,7})"
_WORDS: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}
_FORMS = "write a list (lr=0.1,0.01), a range (lr=1e-5..1e-1:log, depth=2..8), choice(), interval() or range()"


def parse_space(words: Sequence[str]) -> Space:
    """The space of `P=SPEC` words; a `+` between words starts another product of the union."""
    products: list[list[str]] = [[]]
    for word in words:
        if word == UNION:
            products.append([])
        else:
            products[-1] += _split_word(word)
    if len(products) > 1 and not all(products):
        raise UsageError("there are no parameters on one side of a +", "write parameters before and after it")
    return check_space(Space(tuple(Product(tuple(_parameters(product))) for product in products)))


def check_space(space: Space) -> Space:
    """Refuse parameters that occur twice, and conditions that can never hold."""
    for product in space.products:
        earlier: dict[str, Parameter] = {}
        for parameter in product.parameters:
            if parameter.name in earlier:
                raise UsageError(
                    f"the parameter {parameter.name} is given twice",
                    "write all its values in one list, or put a + between two products",
                )
            for condition in parameter.when:
                _check_condition(parameter.name, condition, earlier)
            earlier[parameter.name] = parameter
    return space


def _split_word(word: str) -> list[str]:
    """A quoted word with a condition as its parts: `momentum=0.8 if optimizer=sgd`."""
    return word.split() if re.search(r"\s(?:if|and)\s", word) and not re.search("['\"]", word) else [word]


def _parameters(words: Sequence[str]) -> Iterator[Parameter]:
    rest = list(words)
    while rest:
        name, domain = parse_parameter(rest.pop(0))
        conditions: list[Condition] = []
        while rest and rest[0] == (AND if conditions else IF):
            conditions.append(_parse_condition(rest[1:2], name))
            del rest[:2]
        yield Parameter(name, domain, tuple(conditions))


def parse_parameter(word: str) -> tuple[str, Domain]:
    """Name and domain of `lr=0.1,0.01`."""
    name, text = _assignment(word)
    try:
        return name, parse_domain(text)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", error.hint) from None


def _assignment(word: str) -> tuple[str, str]:
    if _is_not_text(word):
        raise UsageError(f"{word!r} is not UTF-8 text", "write names and values of parameters in UTF-8")
    name, equals, text = word.partition("=")
    if word in (IF, AND):
        raise UsageError(f"{word} stands without a parameter before it", "write momentum=0.8,0.9 if optimizer=sgd")
    if not equals:
        raise UsageError(f"{word!r} is not a parameter", f"{_FORMS}; put -- before the command")
    if not re.fullmatch(NAME, name):
        raise UsageError(f"{name!r} cannot be the name of a parameter", "use letters, digits and . _ - / @")
    return name, text


def _parse_condition(words: Sequence[str], name: str) -> Condition:
    if not words:
        raise UsageError(f"the condition of {name} is missing", f"write {name}=... if optimizer=sgd")
    other, domain = parse_parameter(words[0])
    values = values_of(domain)
    if values is None or len(values) > MOST_LISTED:
        raise UsageError(f"the condition of {name} needs values of {other}, not a range", f"write {other}=a,b")
    return Condition(other, tuple(values))


def _check_condition(name: str, condition: Condition, earlier: Mapping[str, Parameter]) -> None:
    if condition.name not in earlier:
        hint = did_you_mean(condition.name, earlier, f"give {condition.name} its values before {name}")
        raise UsageError(f"{name} depends on {condition.name}, but no parameter {condition.name} comes before it", hint)
    values = values_of(earlier[condition.name].domain)
    if values is None:
        raise UsageError(f"{name} depends on {condition.name}, which is a continuous range", "give it a list of values")
    for value in condition.values:
        if isinstance(values, range):
            is_value = isinstance(value, int) and value in values
        else:
            is_value = any(same(value, candidate) for candidate in values)
        if not is_value:
            shown = ", ".join(map(value_text, values[:8]))
            raise UsageError(
                f"{name} depends on {condition.name}={value_text(value)}, which is not a value of {condition.name}",
                f"its values are {shown}{', ...' * (len(values) > 8)}",
            )


# -- domains -------------------------------------------------------------------------------------


def parse_domain(text: str) -> Domain:
    """The values that a text after `NAME=` means."""
    text = text.strip()
    if match := re.fullmatch(_CALL, text):
        return _called(match[1], match[2], text)
    if (match := re.match(_OPENED, text)) and match[1] in _CALLS:
        raise UsageError(f"{text} does not end with )", f"quote it for the shell: '{match[1]}(...)'")
    low, dots, rest = text.partition("..")
    if dots and (re.fullmatch(_NUMBER, low.strip()) or re.fullmatch(_NOT_FINITE, low.strip())):
        return _parse_range(low.strip(), rest, text)
    return choices_of([_item(item) for item in split_list(text)])


def choices_of(items: Sequence[tuple[Scalar, str]]) -> Choices:
    """A list of values with their texts, each once."""
    seen: set[tuple[bool, Scalar]] = set()
    for value, text in items:
        if (isinstance(value, bool), value) in seen:
            raise UsageError(f"the value {text!r} occurs twice", "write each value once; --repeat N runs each N times")
        seen.add((isinstance(value, bool), value))
    texts = tuple(text for _, text in items)
    values = tuple(value for value, _ in items)
    return Choices(values, () if texts == tuple(map(value_text, values)) else texts)


def split_list(text: str) -> list[str]:
    """The items between commas; commas in quotes and brackets do not count."""
    items, start, depth, quote = [], 0, 0, ""
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"" and not text[start:place].strip():
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == "," and depth <= 0:
            items.append(text[start:place])
            start = place + 1
    return [*items, text[start:]]


def _item(item: str) -> tuple[Scalar, str]:
    """A value and its text; quotes make it text in any case."""
    item = item.strip()
    if len(item) >= 2 and item[0] == item[-1] and item[0] in "'\"":
        return item[1:-1], item[1:-1]
    if not item:
        raise UsageError("a value is missing", "write lr=0.1,0.01, and an empty text as lr='\"\"'")
    if re.fullmatch(_NOT_FINITE, item):
        raise UsageError(f"{item} is not a finite number", f"""leave it out, or quote it as text: '"{item}"'""")
    if "\0" in item:
        raise UsageError("a value contains a NUL byte", "leave that out")
    return typed(item), item


def typed(text: str) -> Scalar:
    """The value that a text means; text itself if it is no number, true, false or null."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(_INTEGER, text) and abs(int(text)) <= LARGEST:
        return int(text)
    if re.fullmatch(_NUMBER, text) and not re.fullmatch(r"(?a)[-+]?\d+", text):
        number = float(text)
        return number if math.isfinite(number) else text
    return text


def _parse_range(low: str, rest: str, text: str) -> Range | Choices:
    high, *signs = [part.strip() for part in rest.split(":")]
    start, end = _bound(low, text), _bound(high, text)
    steps = [float(sign) for sign in signs if re.fullmatch(_NUMBER, sign)]
    counts = [int(match[1]) for sign in signs if (match := re.fullmatch(_COUNT, sign))]
    flags = [sign for sign in signs if sign in ("log", "int", "float")]
    if len(steps) + len(counts) + len(flags) < len(signs) or len(steps) + len(counts) > 1:
        odd = next((sign for sign in signs if sign not in flags), "")
        hint = did_you_mean(
            odd, ("log", "int", "float"), "write :log, :int, :float, a step (:0.5), or :x5 for five values"
        )
        raise UsageError(f"{text!r} cannot be read: {odd!r} is not known", hint)
    whole = isinstance(start, int) and isinstance(end, int) and "float" not in flags
    integer = "int" in flags or (whole and all(step.is_integer() for step in steps))
    if "log" in flags and steps:
        raise UsageError("a logarithmic range has no step", "write :x5 for five values")
    made = range_of(start, end, log="log" in flags, integer=integer, step=steps[0] if steps else None)
    return spaced(made, counts[0]) if counts else made


def _bound(text: str, whole: str) -> int | float:
    if re.fullmatch(_NOT_FINITE, text):
        raise UsageError(f"the range {whole} is not finite", "write both ends as numbers: 1e-5..1e-1")
    if not re.fullmatch(_NUMBER, text):
        raise UsageError(f"{whole!r} is not a range: {text!r} is no number", "write LOW..HIGH: 1e-5..1e-1:log, 2..8")
    value = typed(text)
    return value if isinstance(value, int) else float(text)


def range_of(low: float, high: float, *, log: bool = False, integer: bool = False, step: float | None = None) -> Range:
    """A range, checked: not empty, finite, and above 0 if it is logarithmic."""
    shown = f"{low}..{high}"
    if not (math.isfinite(low) and math.isfinite(high)) or abs(low) > 1e300 or abs(high) > 1e300:
        raise UsageError(f"the range {shown} is not finite", "write both ends as numbers: 1e-5..1e-1")
    if low > high:
        raise UsageError(f"the range {shown} is empty", f"write the smaller number first: {high}..{low}")
    if log and low <= 0:
        raise UsageError(f"a logarithmic range cannot start at {low}", "start above 0, as in 1e-5..1e-1:log")
    if step is not None and not 0 < step < math.inf:
        raise UsageError(f"the step {step:g} is not above 0", "for example 0..1:0.25")
    if not integer:
        return Range(float(low), float(high), log, step=step) if low < high else Range(low, high, step=step or 1)
    if not (float(low).is_integer() and float(high).is_integer()) or max(abs(low), abs(high)) > LARGEST:
        raise UsageError(f"the range {shown} is not one of integers", "write integers, or leave out :int")
    if step is not None and not float(step).is_integer():
        raise UsageError(f"a step of {step} does not lead to integers", "write an integer, or :float")
    return Range(int(low), int(high), log, integer=True, step=None if step is None else int(step))


def spaced(domain: Range, count: int) -> Choices:
    """That many values of a range at equal distances, on its own scale."""
    if not 1 <= count <= MOST_LISTED:
        raise UsageError(f"x{count} is not a number of values", f"write x1 to x{MOST_LISTED}")
    places = [place / max(count - 1, 1) for place in range(count)]
    values = dict.fromkeys(at_fraction(domain, place) for place in places)
    return choices_of([(value, value_text(value)) for value in values])


def at_fraction(domain: Range, fraction: float) -> int | float:
    """The number at a fraction of a range, from 0 to 1, on its own scale and in its own steps."""
    low, high = float(domain.low), float(domain.high)
    if domain.log:
        number = math.exp(math.log(low) + fraction * (math.log(high) - math.log(low)))
    else:
        number = low + fraction * (high - low)
    return nearest(domain, number)


def nearest(domain: Range, number: float) -> int | float:
    """The value of a range that is nearest to a number inside of it."""
    if domain.integer:
        step = int(domain.step or 1)
        whole = int(domain.low) + round((number - domain.low) / step) * step
        return whole if whole <= domain.high else whole - step
    if domain.step is not None:
        values = SteppedValues(domain)
        return values[min(round((number - domain.low) / domain.step), len(values) - 1)]
    return min(max(rounded(number), float(domain.low)), float(domain.high))


# -- Hydra's forms -------------------------------------------------------------------------------


def _called(function: str, inside: str, text: str) -> Domain:
    if function not in _CALLS:
        hint = did_you_mean(function, _CALLS, f"known: {', '.join(_CALLS)}; quote text with brackets: '\"{text}\"'")
        raise UsageError(f"{function}() is not known", hint)
    return _CALLS[function]([item.strip() for item in split_list(inside)], text)


def _choice(items: Sequence[str], _: str) -> Domain:
    return choices_of([_item(item) for item in items])


def _interval(items: Sequence[str], text: str) -> Domain:
    if len(items) != 2:
        raise UsageError(f"{text} needs two numbers", "write interval(1e-5,1e-1)")
    return range_of(_bound(items[0], text), _bound(items[1], text))


def _python_range(items: Sequence[str], text: str) -> Domain:
    """As Python's range(): the end is excluded."""
    if not 1 <= len(items) <= 3:
        raise UsageError(f"{text} needs one to three numbers", "write range(5), range(0,5) or range(0,10,2)")
    numbers = [_bound(item, text) for item in items]
    start, stop, *step = [0, *numbers] if len(numbers) == 1 else numbers
    distance = step[0] if step else 1
    if distance <= 0 or start >= stop:
        raise UsageError(
            f"{text} is empty", "the end must be above the start, and the step above 0; the end is excluded"
        )
    count = math.ceil((stop - start) / distance * (1 - 1e-12))
    last = start + (count - 1) * distance
    integer = all(isinstance(number, int) for number in (start, stop, distance))
    return range_of(start, last, integer=integer, step=None if integer and distance == 1 else distance)


def _int(items: Sequence[str], text: str) -> Domain:
    domain = parse_domain(",".join(items))
    if isinstance(domain, Choices):
        raise UsageError(f"{text} needs a range", "write int(interval(1,8)), or 1..8")
    return range_of(domain.low, domain.high, log=domain.log, integer=True, step=domain.step)


def _tag(items: Sequence[str], text: str) -> Domain:
    """Hydra's Optuna sweeper writes `tag(log, interval(1e-5, 1e-1))`."""
    domain = parse_domain(items[-1])
    if "log" not in items[:-1]:
        return domain
    if isinstance(domain, Choices):
        raise UsageError(f"{text} needs a range", "write tag(log, interval(1e-5,1e-1)), or 1e-5..1e-1:log")
    return range_of(domain.low, domain.high, log=True, integer=domain.integer)


_CALLS: Mapping[str, Callable[[Sequence[str], str], Domain]] = {
    "choice": _choice,
    "interval": _interval,
    "range": _python_range,
    "int": _int,
    "tag": _tag,
}


# -- values of programs and files ----------------------------------------------------------------


def domain_of(value: Any) -> Domain:
    """The domain that a value of a file or a program means: a list, a text as typed, or a constant."""
    if isinstance(value, Choices | Range):
        return value
    if isinstance(value, str):
        return parse_domain(value)
    if isinstance(value, range):
        return _python_range([str(value.start), str(value.stop), str(value.step)], str(value))
    items = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    if not items:
        raise UsageError("the list of values is empty", "write at least one value")
    return choices_of([(scalar, value_text(scalar)) for scalar in map(scalar_of, items)])


def scalar_of(value: Any) -> Scalar:
    """A value for JSON; numbers of numpy become Python's."""
    if hasattr(value, "item") and not isinstance(value, str | int | float):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{value} is not a finite number", "leave it out")
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST:
        raise UsageError(f"{value} is too large a number", "write it as text")
    if isinstance(value, str) and ("\0" in value or _is_not_text(value)):
        raise UsageError(f"{value!r} contains a NUL byte or is not UTF-8", "write values as UTF-8 text")
    if not isinstance(value, bool | int | float | str | None):
        raise UsageError(f"{value!r} cannot be a value", "values are numbers, texts, true, false and null")
    return value


def _is_not_text(text: str) -> bool:
    return any("\ud800" <= sign <= "\udfff" for sign in text)
