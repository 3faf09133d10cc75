"""The queues of all servers, asked at once; of one that cannot be reached, its last known state."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TypeVar

import msgspec
from msgspec import Struct

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.model import Status
from stoker.core.errors import StokerError
from stoker.features.servers.connection import call
from stoker.features.servers.protocol import decoded
from stoker.features.servers.settings import SshServer
from stoker.store.paths import Paths, replace_file

SCHEMA = "stoker.servers/1"
STATUS_SECONDS = 20.0
MOST_AT_ONCE = 32
_STATUS = ("status", "--json")
Result = TypeVar("Result")


class ServerState(Struct, frozen=True):
    """The queue of a server."""

    name: str
    reachable: bool
    trouble: str
    """Why it cannot be reached, and what to type; empty if it can."""
    seen: datetime | None
    """When this machine got the status; null if it never did."""
    status: Status | None
    """The last known one."""


class ServerStates(Struct, frozen=True):
    """All servers: `stoker status --servers --json`."""

    schema: str
    at: datetime
    servers: list[ServerState]


class _Known(Struct, frozen=True):
    at: float
    status: msgspec.Raw


def on_all(servers: Iterable[SshServer], ask: Callable[[SshServer], Result]) -> list[Result]:
    """The results for all servers, which are asked at the same time."""
    chosen = list(servers)
    if not chosen:
        return []
    with ThreadPoolExecutor(min(MOST_AT_ONCE, len(chosen))) as pool:
        return list(pool.map(ask, chosen))


def states_of(servers: Sequence[SshServer], paths: Paths) -> ServerStates:
    states = on_all(servers, lambda server: _state(server, paths))
    return ServerStates(SCHEMA, to_datetime(time.time()), states)


def _state(server: SshServer, paths: Paths) -> ServerState:
    try:
        answer = call(server, _STATUS, seconds=STATUS_SECONDS)
        status = decoded(server, answer, Status)
    except StokerError as error:
        seen, last = _last_known(server, paths)
        return ServerState(server.name, False, str(error), seen, last)
    now = time.time()
    _remember(server, paths, now, answer.out)
    return ServerState(server.name, True, "", to_datetime(now), status)


def _remember(server: SshServer, paths: Paths, now: float, status: bytes) -> None:
    with contextlib.suppress(OSError):  # only the view of a server that is away suffers
        paths.servers.mkdir(mode=0o700, exist_ok=True)
        replace_file(paths.servers / f"{server.name}.status", msgspec.json.encode(_Known(now, msgspec.Raw(status))))


def _last_known(server: SshServer, paths: Paths) -> tuple[datetime | None, Status | None]:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        stored = msgspec.json.decode((paths.servers / f"{server.name}.status").read_bytes(), type=_Known)
        return to_datetime(stored.at), msgspec.json.decode(stored.status, type=Status)
    return None, None


def forget(name: str, paths: Paths) -> None:
    """Forget the last known state of a server."""
    (paths.servers / f"{name}.status").unlink(missing_ok=True)
