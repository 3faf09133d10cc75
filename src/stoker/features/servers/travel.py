"""Jobs on their way to a server: sent once, whatever happens to the connection, with their code."""

from __future__ import annotations

import time
import zlib
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from stoker.app.jobs.travel import Parcel, Traveller
from stoker.core.errors import StokerError
from stoker.features.servers.connection import CALL_SECONDS, Answer, ConnectionLost, Unreachable, call
from stoker.features.servers.protocol import COMMAND, Lacking, SubmitQuestion, decoded, encoded
from stoker.features.servers.settings import SshServer
from stoker.store.paths import Paths, user_home
from stoker.store.waiting import Backoff

RETRY_SECONDS = 60.0
"""How long a submit whose connection broke is repeated."""
SLOWEST = 100_000
"""Bytes per second at which code travels at least."""


class Code(NamedTuple):
    """The code of the jobs, and what takes it along."""

    parcel: Parcel
    traveller: Traveller
    paths: Paths


class Outgoing(NamedTuple):
    """Jobs on their way to a server."""

    question: SubmitQuestion
    code: Code | None

    def to(self, name: str) -> Outgoing:
        """The same with ids such as `gpu2:12` as they are called on that server."""
        options = self.question.options
        after = options.after and options.after.replace(f"{name}:", "")
        return self._replace(question=replace(self.question, options=replace(options, after=after)))


def place(path: str) -> str:
    """A path as it is called on all machines: one below the home begins with `~/`."""
    home = f"{user_home()}/"
    path = f"{path}/" if f"{path}/" == home else path
    return f"~/{path.removeprefix(home)}" if path.startswith(home) else path


def send(server: SshServer, outgoing: Outgoing, seconds: float = RETRY_SECONDS) -> Answer:
    """The answer of the server to the submit; repeated, under the same key, if the connection breaks."""
    deadline, pauses, lost = time.monotonic() + seconds, Backoff(0.1, 5.0), False
    while True:
        try:
            return _send(server, outgoing)
        except Unreachable as error:
            lost = lost or isinstance(error, ConnectionLost)
            if not lost:
                raise
            if time.monotonic() > deadline:
                raise _unknown(server, outgoing.question.key, error) from None
        pauses.wait(deadline)


def _send(server: SshServer, outgoing: Outgoing) -> Answer:
    """Ask once; then again with the parts of the code that the server lacks."""
    question, code = outgoing
    answer = call(server, COMMAND, encoded(question))
    lacking = _lacking(answer)
    if code is None or not lacking:
        return _whole(server, answer)
    parts = {part: zlib.compress(code.traveller.read(part, code.paths), 1) for part in lacking}
    sent = replace(question, sent=[(part, len(data)) for part, data in parts.items()])
    data = b"".join((encoded(sent), *parts.values()))
    return _whole(server, call(server, COMMAND, data, CALL_SECONDS + len(data) / SLOWEST))


def _lacking(answer: Answer) -> list[str]:
    try:
        return msgspec.json.decode(answer.out, type=Lacking).lacking
    except msgspec.MsgspecError:
        return []


def _whole(server: SshServer, answer: Answer) -> Answer:
    """The answer, if it is one; raises the error that it is otherwise."""
    decoded(server, answer, msgspec.Raw)
    return answer


def _unknown(server: SshServer, key: str, error: StokerError) -> Unreachable:
    return Unreachable(
        f"{error.message}; whether {server.name} has the jobs is not known",
        f"repeat the command with --key {key}: then they are submitted once, whatever happened",
    )
