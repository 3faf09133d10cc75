"""The options that choose jobs by name, tag, group and state."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from stoker.app.jobs.select import parse_filter


def filter_options(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options, passed to the command as one `Filter` named `chosen`."""

    @wraps(function)
    def wrapped(*arguments: Any, **values: Any) -> int:
        parts = [values.pop(part) for part in ("names", "tags", "groups", "states")]
        return function(*arguments, chosen=parse_filter(*parts), **values)

    decorated: Callable[..., int] = wrapped
    for option in (
        click.option("--state", "states", multiple=True, metavar="STATES", help="Only these states: queued,failed,R"),
        click.option("--group", "groups", multiple=True, metavar="GLOB", help="Only jobs of this group."),
        click.option(
            "--tag",
            "tags",
            multiple=True,
            metavar="K[=GLOB]",
            help="Only jobs with this tag (repeatable; all must match).",
        ),
        click.option("--name", "names", multiple=True, metavar="GLOB", help="Only jobs whose name matches: 'vit-*'"),
    ):
        decorated = option(decorated)
    return decorated
