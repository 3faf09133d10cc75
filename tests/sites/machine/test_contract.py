"""The machine site keeps what every site promises."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from sites.contract import SiteContract, SiteWorld
from stoker.core.launch import attempt_key
from support.fakes import EngineOnFakeRunner


class MachineWorld(SiteWorld, EngineOnFakeRunner):
    """Plays the workers of a fake runner."""

    def __init__(self, directory: Path) -> None:
        self._begun: set[str] = set()
        self._obeyed = 0
        super().__init__(directory)

    def _key(self, job_id: int) -> str:
        return attempt_key(job_id, self.job(job_id).attempts)

    @property
    def handed_over(self) -> int:
        return len(self.runner.called("start"))

    def begin(self, job_id: int) -> bool:
        key = self._key(job_id)
        if key not in self.runner.orders or key in self._begun:
            return False
        self._begun.add(key)
        self.runner.started(key)
        return True

    def end(self, job_id: int, code: int = 0) -> None:
        self.runner.exited(self._key(job_id), code)

    def lose(self, job_id: int) -> None:
        self.runner.lost(self.runner.workers[self._key(job_id)])

    def stops(self, job_id: int) -> list[tuple[float, int]]:
        key = self._key(job_id)
        return [(grace, number) for _, attempt, grace, number in self.runner.called("stop") if attempt == key]

    def obey(self) -> None:
        calls, self._obeyed = self.runner.calls[self._obeyed :], len(self.runner.calls)
        for name, worker, *arguments in (call for call in calls if len(call) > 1):
            keys = [key for key, owner in self.runner.workers.items() if owner == worker]
            if name == "stop" and arguments[0] in self._begun:
                self.runner.exited(str(arguments[0]), 143, why="stopped")
            elif name in ("stop", "recall"):
                self._give_back(key for key in keys if key not in self._begun)
            elif name == "account":
                self._give_back(key for key in keys if key not in self.runner.orders)

    def _give_back(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._begun.add(key)
            self.runner.returned(key)


class TestMachine(SiteContract):
    """Workers are played by the test."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> MachineWorld:
        return MachineWorld(tmp_path)
