"""Users of one machine, each with a queue of their own, who share simulated GPUs and a ledger."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import msgspec

from stoker.features.lab.usage import LabUsage
from stoker.features.lab.view import Lab
from stoker.ledger import prepare_ledger
from support.background import Background
from support.cli import PROGRAM
from support.users import User, made_users, reachable_directory, typed_by


class Person(Background):
    """A real user who types `stoker ...`."""

    def __init__(self, user: User, home: Path, ledger: Path) -> None:
        home.mkdir()
        super().__init__(home, "4x24G")
        self.user = user
        self.environment |= {"STOKER_LEDGER": str(ledger), "HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
        (home / "config/stoker").mkdir(parents=True)
        for place in (home, *home.rglob("*")):
            os.chown(place, user.uid, user.gid)

    def start(
        self,
        *arguments: str | bytes,
        cwd: Path | None = None,
        stdin: int | IO[bytes] = subprocess.PIPE,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            typed_by(self.user, PROGRAM, *map(os.fsdecode, arguments)),
            cwd=cwd or self.cwd,
            env={**self.environment, **(environment or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._started.append(process)
        return process

    def do(self, *words: str) -> str:
        """What a command that succeeds prints."""
        outcome = self(*words)
        assert outcome.code == 0, outcome.err
        return outcome.out

    def configure(self, text: str) -> None:
        (self.home / "config/stoker/config.toml").write_text(text)

    def lab(self) -> Lab:
        return msgspec.json.decode(self.do("status", "--all-users", "--json"), type=Lab)

    def usage(self, *words: str) -> LabUsage:
        return msgspec.json.decode(self.do("usage", "--json", *words), type=LabUsage)


@contextlib.contextmanager
def people(count: int) -> Iterator[list[Person]]:
    """So many users; what they started ends with the test."""
    with made_users(count) as users, reachable_directory() as place, contextlib.ExitStack() as closing:
        ledger = prepare_ledger(place / "ledger")
        yield [closing.enter_context(contextlib.closing(Person(user, place / user.name, ledger))) for user in users]
