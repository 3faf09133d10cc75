"""The memory that jobs of a storm take on simulated GPUs, and what they declare beforehand."""

from __future__ import annotations

import random
from dataclasses import dataclass

MIB = 2**20
GIB = 2**30
SHORT = 99
"""The code with which a run ends that found too little memory; no job of a storm ends so by itself."""


@dataclass(frozen=True)
class Memory:
    """Bytes that a job holds on each of its GPUs while it runs, and what was asked for it."""

    holds: int
    declared: int | None = None
    """Bytes; None is the whole card, unless they are learnt."""
    learnt: bool = False
    capped: bool = False
    """Whether it takes no more than is set aside for it, and dies of that at once."""
    shown: bool = True
    """Whether its command tells how much it holds: else it is the same kind of work as those that hold more or less."""

    @property
    def whole(self) -> bool:
        """Whether all of each GPU was asked for."""
        return self.declared is None and not self.learnt

    @property
    def words(self) -> str:
        """How the job's own script is told: sizes tell kinds of work apart, seeds do not."""
        return f"{'size' if self.shown else 'seed'}={self.holds // MIB}"


def any_memory(dice: random.Random) -> Memory:
    """Mostly what keeps to its word, and in fixed shares what does not and what fits on no GPU at all."""
    makers = [_declared, _learnt, _whole, _capped, _greedy, _varied, _hopeless]
    return dice.choices(makers, [8, 5, 2, 1, 1, 1, 1])[0](dice)


def modest_memory(dice: random.Random) -> Memory:
    """The memory of a job that takes no more than declared, however long it runs."""
    return dice.choice([_declared, _learnt, _whole])(dice)


def _declared(dice: random.Random) -> Memory:
    declared = dice.choice([1, 2, 4, 6, 9, 13]) * GIB
    return Memory(dice.choice([declared, declared // 2]), declared)


def _learnt(dice: random.Random) -> Memory:
    return Memory(dice.choice([3, 5, 8]) * GIB, learnt=True)


def _whole(_: random.Random) -> Memory:
    return Memory(20 * GIB)


def _capped(dice: random.Random) -> Memory:
    return Memory(dice.choice([3, 5, 12]) * GIB, 2 * GIB, capped=True)


def _greedy(dice: random.Random) -> Memory:
    return Memory(dice.choice([7, 14]) * GIB, 3 * GIB)


def _varied(dice: random.Random) -> Memory:
    return Memory(dice.choice([3, 3, 3, 10]) * GIB, learnt=True, shown=False)


def _hopeless(dice: random.Random) -> Memory:
    learnt = dice.random() < 0.5
    return Memory(30 * GIB, None if learnt else 3 * GIB, learnt=learnt)
