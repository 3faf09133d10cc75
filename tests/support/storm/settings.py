"""The settings of a storm: how many jobs and disruptions of each kind."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class StormSettings:
    """A storm's seed and its numbers."""

    seed: int = 1
    jobs: int = 150
    engine_kills: int = 12
    forkserver_kills: int = 4
    worker_kills: int = 4
    rivals: int = 0
    """How often a second engine is started beside the one of the queue."""
    farewells: int = 0
    """How often the engine is asked to leave, at once or when nothing runs."""
    typed: int = 0
    """How often two users submit by the command line right after the engine was killed."""
    pause: float = 0.5
    """Seconds between two disruptions at most."""
    lists: int = 1
    engines: int = 1
    """How many foreground runs there are at once; each takes one of the lists in turn."""
    sim: str = ""
    """Simulated devices for the queue in place of declared ones."""

    def disruptions(self, dice: random.Random) -> list[str]:
        """Everything that is to happen, in an order by chance."""
        kinds = {
            "engine": self.engine_kills,
            "forkserver": self.forkserver_kills,
            "worker": self.worker_kills,
            "rival": self.rivals,
            "farewell": self.farewells,
            "typed": self.typed,
        }
        disruptions = [kind for kind, times in kinds.items() for _ in range(times)]
        dice.shuffle(disruptions)
        return disruptions


SIMULATED = "4x24G"
CHECK = StormSettings(
    jobs=500, engine_kills=35, forkserver_kills=7, worker_kills=7, rivals=1, farewells=2, typed=2, pause=0.2
)
"""Part of every check, over devices that are only names."""
SHARED = StormSettings(
    jobs=150,
    engine_kills=16,
    forkserver_kills=4,
    worker_kills=5,
    rivals=1,
    farewells=1,
    typed=1,
    pause=0.2,
    sim=SIMULATED,
)
"""Part of every check, over devices with memory, which jobs share."""
LONG = StormSettings(
    jobs=5000, engine_kills=220, forkserver_kills=40, worker_kills=40, rivals=6, farewells=20, typed=12, pause=0.5
)
"""The settings of the fault `storm-long`."""
