"""`-S any`: ask all servers when the jobs would start, and take the one where that is first."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from stoker.cli.console import say
from stoker.core.errors import Impossible, StokerError, UsageError
from stoker.features.servers.connection import Unreachable
from stoker.features.servers.protocol import StartOffer, decoded
from stoker.features.servers.settings import SshServer, server_named, servers
from stoker.features.servers.state import on_all
from stoker.features.servers.travel import Outgoing, send
from stoker.store.paths import Paths, make_durable, replace_file

OFFER_SECONDS = 5.0
"""How long a question is repeated if the connection breaks; after that the server is left out."""
_NEVER = float("inf")


class _Answered(NamedTuple):
    server: SshServer
    offer: StartOffer

    @property
    def rank(self) -> tuple[float, float]:
        """The delay until the last of the jobs starts, in whole seconds, and then the load."""
        starts = [job.start for job in self.offer.plan.jobs]
        if None in starts or not starts:
            return _NEVER, self.offer.load
        delay = max(start.timestamp() for start in starts if start) - self.offer.now
        return max(0.0, round(delay)), self.offer.load


def chosen(outgoing: Outgoing, paths: Paths) -> SshServer:
    """The server for jobs that may run on any; for a key that was used before, the same as then."""
    note = _note(outgoing.question.key, paths)
    if note.exists():
        return server_named(note.read_text())
    candidates = list(servers().values())
    if not candidates:
        raise UsageError("there are no servers", "add one: stoker servers add NAME")
    trial = outgoing._replace(question=replace(outgoing.question, dry_run=True))
    answers = on_all(candidates, lambda server: _offer(server, trial))
    offers = [answer for answer in answers if isinstance(answer, _Answered)]
    errors = [answer for answer in answers if isinstance(answer, StokerError)]
    for error in errors:
        if isinstance(error, Unreachable):
            say(error.message)
    if not offers:
        raise _no_server(errors)
    had = [answered for answered in offers if answered.offer.has_key]
    first = min(had or offers, key=lambda answered: answered.rank)
    _remember(note, first.server.name)
    return first.server


def _offer(server: SshServer, trial: Outgoing) -> _Answered | StokerError:
    try:
        return _Answered(server, decoded(server, send(server, trial.to(server.name), OFFER_SECONDS), StartOffer))
    except StokerError as error:
        return error


def _no_server(errors: list[StokerError]) -> StokerError:
    """Why no server takes the jobs: the reason of each."""
    reasons = "; ".join(error.message for error in errors)
    if all(isinstance(error, Unreachable) for error in errors):
        return Unreachable(f"no server can be reached: {reasons}", "see: stoker servers check")
    return Impossible(f"no server can run this: {reasons}", errors[0].hint)


def _note(key: str, paths: Paths) -> Path:
    return paths.servers / "chosen" / hashlib.sha256(key.encode()).hexdigest()[:32]


def _remember(note: Path, name: str) -> None:
    """Write the choice down before anything is sent: a repeated submit must not go elsewhere."""
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_durable(note.parent.parent)
    replace_file(note, name.encode())
