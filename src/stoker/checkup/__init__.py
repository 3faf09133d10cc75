"""What is wrong with this machine, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from stoker.checkup.clock import look_at_clock
from stoker.checkup.gpus import look_at_gpus
from stoker.checkup.limits import look_at_limits
from stoker.checkup.place import look_at_place, look_at_space
from stoker.checkup.session import look_at_session, look_at_unit
from stoker.checkup.settings import look_at_config, look_at_variables
from stoker.checkup.shared import look_at_ledger
from stoker.checkup.verdict import Subject, Verdict, problem
from stoker.checkup.work import look_at_engine, look_at_leftovers, look_at_queue

__all__ = ["Subject", "Verdict", "examine"]

Look = Callable[[Subject], Iterable[Verdict]]


def examine(subject: Subject, *, answers: bool) -> Iterator[Verdict]:
    """One matter after the other; `answers` is whether the engine, where one lives, reacted when it was asked."""
    looks: list[tuple[str, Look]] = [
        ("state", look_at_place),
        ("disk", look_at_space),
        ("queue", look_at_queue),
        ("engine", partial(look_at_engine, answers=answers)),
        ("leftovers", look_at_leftovers),
        ("ledger", look_at_ledger),
        ("gpus", look_at_gpus),
        ("config", look_at_config),
        ("variables", look_at_variables),
        ("unit", look_at_unit),
        ("logout", look_at_session),
        ("clock", look_at_clock),
        ("limits", look_at_limits),
    ]
    for topic, look in looks:
        try:
            yield from list(look(subject))
        except OSError as error:  # one matter that cannot be seen hides no other
            yield problem(topic, f"this cannot be looked at: {error}", "see whether you may read it")
