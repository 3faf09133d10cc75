"""The jobs that a storm gives to the queue: a mixture of all that a job can be asked to be, by chance."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from support.storm.job_script import DOUBLE
from support.storm.memory import SHORT, Memory, any_memory, modest_memory

FIRST_EDITION = "first"
GRACE = 0.3
WITH_MEMORY = 0.5
"""How many of the jobs hold memory, if devices have any."""
TASKS = (8, 40)
"""How many tasks an array has whose tasks are alike, and how many lines a list."""


class After(NamedTuple):
    """The job that another comes after."""

    target: int
    kind: str
    array: bool = False


@dataclass(frozen=True)
class Work:
    """One job: what its script does and what was asked for it."""

    number: int
    codes: tuple[str, ...] = ("0",)
    seconds: float = 0.02
    kind: str = "plain"
    gpus: int = 1
    retries: int = 0
    retry_on: tuple[str, ...] = ()
    limit: float | None = None
    requeue: bool = True
    delay: float = 0.0
    """Seconds after its submission before which it must not start."""
    after: tuple[After, ...] = ()
    at_once: int | None = None
    """How many tasks of its array may run at the same time."""
    memory: Memory | None = None
    """The memory that it holds on its GPUs; None if it uses none."""
    preemptible: Literal["", "save", "restart"] = ""
    """How it gives way; one that saves is of the kind `saves`."""
    warm: bool = False
    """Whether it is forked from a template."""
    out: str = "/dev/null"
    """Its log, as a path or below the directory of the jobs."""

    @property
    def endless(self) -> bool:
        """Whether it runs until somebody stops it."""
        return self.seconds > 10 and self.limit is None


@dataclass(frozen=True)
class Bunch:
    """The jobs that one call submits."""

    works: tuple[Work, ...]
    array: bool = False
    held: bool = False
    chained: bool = False
    """Whether others are to come after it."""
    alike: bool = False
    """Whether those that wait share a row of the store: tasks have the same command, others differ in its number."""


def a_bunch(dice: random.Random, first: int, *, memory: bool) -> Bunch:
    """Works with the numbers from the first on; some of them hold memory, if devices have any."""
    bunch = _a_bunch(dice, first)
    if not memory:
        return bunch
    if bunch.alike:
        memory_of = _furnished(dice, bunch.works[0], modest_memory)
        return replace(bunch, works=tuple(replace(memory_of, number=work.number) for work in bunch.works))
    return replace(bunch, works=tuple(_furnished(dice, work) for work in bunch.works))


def _a_bunch(dice: random.Random, first: int) -> Bunch:
    kind = dice.choices(["list", "array", "alike", "lines", "chain", "held"], [5, 2, 1, 1, 3, 1])[0]
    if kind == "array":
        at_once = dice.choice([1, 2, 3])
        works = [replace(_short(dice, first + at), at_once=at_once, gpus=1) for at in range(dice.randint(4, 14))]
        return Bunch(tuple(works), array=True, chained=dice.random() < 0.4)
    if kind == "alike":
        return an_array(dice, first, dice.randint(*TASKS))
    if kind == "lines":
        return some_lines(dice, first, dice.randint(*TASKS))
    if kind == "chain":
        return Bunch((_short(dice, first),), chained=True)
    count = dice.randint(6, 16) if kind == "list" else dice.randint(1, 3)
    return Bunch(tuple(_any(dice, first + at) for at in range(count)), held=kind == "held")


def an_array(dice: random.Random, number: int, count: int) -> Bunch:
    """Tasks with the same command; some arrays wait for a time, and some have a limit."""
    work = replace(dice.choice([_short, _short, _failing])(dice, number), at_once=dice.choice([1, 2, 3, None]), gpus=1)
    return Bunch((work,) * count, array=True, chained=dice.random() < 0.5, alike=True)


def some_lines(dice: random.Random, first: int, count: int) -> Bunch:
    """Lines of a list that differ only in their numbers."""
    work = dice.choice([_short, _short, _failing])(dice, first)
    return Bunch(tuple(replace(work, number=first + at) for at in range(count)), alike=True)


def followers(dice: random.Random, first: int, target: After) -> tuple[Work, ...]:
    """One or two jobs that come after others, some with a delay besides."""
    works = [replace(_short(dice, first + at), after=(target,)) for at in range(dice.randint(1, 2))]
    return tuple(replace(work, delay=dice.choice([0.0, 0.0, 0.2])) for work in works)


def _furnished(dice: random.Random, work: Work, memory: Callable[[random.Random], Memory] = any_memory) -> Work:
    """The same job with memory, unless it needs no GPU; then it takes a little longer, so that it can be seen."""
    if not work.gpus or dice.random() >= WITH_MEMORY:
        return work
    if work.seconds > 10:
        return replace(work, memory=modest_memory(dice))
    return replace(work, memory=memory(dice), seconds=dice.uniform(0.05, 0.5), kind="plain")


def _any(dice: random.Random, number: int) -> Work:
    return dice.choices([_short, _failing, _timed, _stopped], [12, 5, 1, 1])[0](dice, number)


def _short(dice: random.Random, number: int) -> Work:
    """Mostly very short, and mostly successful; some leave a child behind, some use two devices or none."""
    return Work(
        number,
        codes=("0",) if dice.random() < 0.7 else (_code(dice),),
        seconds=dice.uniform(0.2, 0.7) if dice.random() < 0.04 else dice.uniform(0.002, 0.04),
        kind="child" if dice.random() < 0.1 else "plain",
        gpus=dice.choices([1, 2, 0], [16, 1, 3])[0],
        requeue=dice.random() < 0.85,
        delay=dice.uniform(0.1, 0.9) if dice.random() < 0.08 else 0.0,
    )


def _failing(dice: random.Random, number: int) -> Work:
    """Fails, or is killed by a signal of its own, once or always; some are tried again."""
    code = dice.choice([_code(dice), "s9", "s15", "s6", "1"])
    retries = dice.choice([0, 1, 2])
    codes = dice.choice([(code,), (code, "0"), (code, "3", "0")])
    retry_on = dice.choice([(), (), ("1",), ("failed",), ("timeout", "3"), ("oom", "1")])
    return replace(_short(dice, number), codes=codes, retries=retries, retry_on=retry_on)


def _code(dice: random.Random) -> str:
    return str(dice.choice([code for code in range(1, 256) if code not in (SHORT, DOUBLE)]))


def _timed(dice: random.Random, number: int) -> Work:
    """Runs into its time limit; some do not mind the first signal."""
    kind = dice.choice(["plain", "stubborn"])
    limit = dice.uniform(0.1, 0.6)
    retries = dice.choice([0, 0, 1])
    return replace(_short(dice, number), seconds=60.0, kind=kind, limit=limit, retries=retries)


def _stopped(dice: random.Random, number: int) -> Work:
    """Runs until somebody cancels it."""
    return replace(_short(dice, number), seconds=600.0, kind=dice.choice(["plain", "stubborn"]), delay=0.0)
