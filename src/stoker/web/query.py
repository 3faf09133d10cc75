"""Read the query of a request: numbers, texts and filters, each within bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stoker.app.jobs.select import parse_filter
from stoker.core.errors import UsageError
from stoker.core.outcomes import RESULTS
from stoker.store.filters import Filter, Scope

LONGEST_TEXT = 1000
MOST_PAGES = 10**9
Given = Mapping[str, str]


def jobs_filter(given: Given) -> tuple[Filter, Scope]:
    """Which jobs are wanted, and whether those are open, ended, or both."""
    if given.get("state", "") == "all":
        return filter_of(given, ()), "any"
    chosen = filter_of(given)
    ended = [word in RESULTS for word in chosen.states]
    return chosen, "open" if not any(ended) else "ended" if all(ended) else "any"


def filter_of(given: Given, known_states: tuple[str, ...] | None = None) -> Filter:
    """The filter of a request; `known_states` are those that it may name, empty for none."""
    states = [] if known_states == () or not given.get("state") else [given["state"]]
    group = text_of(given, "group")
    chosen = parse_filter(groups=[_literal(group)] if group else [], states=states)
    if known_states and (other := [word for word in chosen.states if word not in known_states]):
        raise UsageError(f"no ended job is {other[0]}", f"known states: {', '.join(known_states)}")
    text = text_of(given, "search").strip()
    return chosen._replace(text=text, array=number_of(given, "array", 0, least=0))


def text_of(given: Given, name: str) -> str:
    """A text to look for; SQLite reads it up to a NUL, and takes no endless pattern."""
    text = given.get(name, "")
    if len(text) > LONGEST_TEXT or "\0" in text:
        raise UsageError(f"{name} is too long, or contains a NUL", f"give at most {LONGEST_TEXT} characters")
    return text


def _literal(text: str) -> str:
    """A text as a pattern that matches only itself."""
    return re.sub(r"([*?\[])", r"[\1]", text)


def page_of(given: Given) -> int:
    return number_of(given, "page", 1, least=1, most=MOST_PAGES)


def number_of(given: Given, name: str, default: int, least: int = -(2**62), most: int = 2**62) -> int:
    text = given.get(name) or str(default)
    if not re.fullmatch(r"(?a)-?\d{1,18}", text) or not least <= int(text) <= most:
        raise UsageError(f"{name}={text[:40]} is not a number that fits", f"give {name}={default}, for example")
    return int(text)
