"""A storm over the queue: jobs of all kinds come in and are meddled with while its engine is killed again and again."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from support.storm.command_line import submit_at_once
from support.storm.engine import RUNNING, AnyEngine
from support.storm.jobs import Work
from support.storm.settings import StormSettings
from support.storm.trial import LEAVING_SECONDS, Trial
from support.wait import wait_until

EARLY_SECONDS = 0.3
"""How old an engine is at most that is killed before it works."""


class QueueStorm(Trial):
    """Gives jobs to the queue, and kills who works on them, by process number."""

    def __init__(self, home: Path, settings: StormSettings, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(home, settings.seed, sim=settings.sim, environment=environment)
        self.settings = settings

    def run(self) -> None:
        """Submit and kill as often as was said, and then let all of it end."""
        disruptions = self.settings.disruptions(self.dice)
        for count, disruption in enumerate(disruptions, 1):
            self.feed(self.settings.jobs * count // len(disruptions))
            self.client.change_jobs()
            self.strike(disruption)
            self.client.note_answers()
            self.note_overfull()
        self.feed(self.settings.jobs)
        self.finish()

    # -- disruptions -----------------------------------------------------------------------------

    def strike(self, disruption: str) -> None:
        """Do one of the things that a storm does, as soon as there is something to hit."""
        wait_until(partial(self._try, disruption))

    def _try(self, disruption: str) -> bool:
        """Strike at a random moment; False if there was nothing to hit."""
        strikes = {"engine": self._strike_engine, "worker": self._strike_worker, "typed": self._submit_after_kill}
        hit = strikes.get(disruption, self._strike_beside)(disruption)
        self.disruptions[disruption] += hit
        if not hit:
            self._make_targets(disruption)
        return hit

    def _make_targets(self, disruption: str) -> None:
        """Let there be a worker by more work, or a forkserver by another engine: one comes back only for work."""
        if disruption == "forkserver":
            self.disruptions["engine besides"] += self.at_work().kill()
        self.feed(self.next_number + 1)
        self.at_work().wait_ready()

    def _strike_engine(self, _: str) -> bool:
        """Very early, while it finds what others left; or later; or right after a submit."""
        engine = self.at_work()
        moment = self.dice.choice(["early", "later", "later", "submit"])
        if moment == "early":
            time.sleep(self.dice.uniform(0.0, EARLY_SECONDS))
            return engine.kill()
        engine.wait_ready()
        time.sleep(self.dice.uniform(0.0, self.settings.pause))
        if moment == "submit":
            self.feed(self.next_number + 1)
            time.sleep(self.dice.choice([0.0, 0.002, 0.01, 0.03]))
        return engine.kill()

    def _strike_worker(self, _: str) -> bool:
        """Whether an engine lives or not."""
        if self.dice.random() < 0.6:
            self.at_work().wait_ready()
            time.sleep(self.dice.uniform(0.0, self.settings.pause / 2))
        return self.killer.kill_worker([self.engine.pid] if self.engine is not None else [])

    def _strike_beside(self, disruption: str) -> bool:
        """The forkserver of the engine, its sole right to the queue, or its will to stay."""
        engine = self.at_work()
        engine.wait_ready()
        time.sleep(self.dice.uniform(0.0, self.settings.pause / 2))
        match disruption:
            case "forkserver":
                return self.killer.kill_forkserver(engine.pid)
            case "rival":
                return self._rival(engine)
            case _:
                return self._farewell(engine)

    def _submit_after_kill(self, _: str) -> bool:
        """Two people submit while there is no engine: one comes up, and both jobs are in the queue."""
        self.end_engine()
        works = [Work(self.next_number), Work(self.next_number + 1)]
        self.next_number += len(works)
        environment = {**self.environment, "STORM": str(self.home)}
        self.broken += submit_at_once(works, self.work, environment, self.request_log, self.sim)
        self.find_engine()  # all may be over, and the engine gone again
        return True

    def _rival(self, engine: AnyEngine) -> bool:
        with contextlib.closing(self.start_engine()) as rival:
            code = rival.wait_end(LEAVING_SECONDS)
        if engine.lives and code != RUNNING:
            self.broken.append(f"a second engine ended with {code} instead of {RUNNING}")
        return True

    def _farewell(self, engine: AnyEngine) -> bool:
        """Some wait until it has left, some kill it on its way, and some submit meanwhile."""
        asked = engine.ask(self.dice.choice([signal.SIGTERM, signal.SIGHUP]))
        if self.dice.random() < 0.5:
            self.feed(self.next_number + 1)
        if asked == signal.SIGTERM and self.dice.random() < 0.5:
            # Its code is not 0 where the signal came before its handler, or where another engine was faster.
            if engine.wait_end(LEAVING_SECONDS) is None:
                self.broken.append(f"an engine that was told to leave did not in {LEAVING_SECONDS:g} s")
            return True
        time.sleep(self.dice.uniform(0.0, self.settings.pause))
        engine.kill()
        return True
