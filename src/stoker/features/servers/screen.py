"""`stoker status --servers`: one line for each server, and the jobs of all of them in one table."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from stoker.app.jobs.local_time import clock_text
from stoker.app.views.job import JobLine
from stoker.app.views.model import DeviceLine, Status
from stoker.cli.options import Screen, write_json, write_plain
from stoker.cli.screens.job_table import chosen_jobs, headers_in, job_table
from stoker.cli.screens.plain import JOB_COLUMNS, plain_lines
from stoker.cli.screens.text import EMPTY, Column, Line, Span, table_lines, write_lines
from stoker.core.errors import UsageError
from stoker.core.units import ago_text, count_text
from stoker.features.servers.settings import servers
from stoker.features.servers.state import ServerState, ServerStates, states_of
from stoker.store.paths import Paths

NO_ANSWER = 3
"""Exit code if no server answers."""


def show(paths: Paths, _ids: Sequence[int], screen: Screen, *, everything: bool) -> int:
    """Print the servers; the exit code."""
    chosen = list(servers().values())
    if not chosen:
        raise UsageError("there are no servers", "add one: stoker servers add NAME")
    states = states_of(chosen, paths)
    if screen.form == "json":
        write_json(states)
    elif screen.form == "plain":
        write_plain(plain_lines(jobs_of(states.servers), JOB_COLUMNS))
    else:
        write_lines(_lines(states, screen, everything=everything), screen.color)
    return 0 if any(state.reachable for state in states.servers) else NO_ANSWER


def jobs_of(states: Sequence[ServerState]) -> list[JobLine]:
    """The jobs of all servers, by the ids that name them here."""
    return [
        replace(job, label=f"{state.name}:{job.label}")
        for state in states
        for job in (state.status.jobs if state.status else ())
    ]


def _lines(states: ServerStates, screen: Screen, *, everything: bool) -> list[Line]:
    now, (width, height) = states.at.timestamp(), screen.size
    top = _server_table(states.servers, now, width)
    jobs = jobs_of(states.servers)
    room = 10**9 if everything else max(4, height - len(top) - 3)
    shown = chosen_jobs(jobs, room)
    hidden = len(jobs) - len(shown)
    more = [(Span(f" … {count_text(hidden, 'more line')}: stoker status --servers -a", "faint"),)] if hidden else []
    return [*top, EMPTY, *job_table(shown, now, width, headers_in(room)), *more] if jobs else top


def _server_table(states: Sequence[ServerState], now: float, width: int) -> list[Line]:
    columns = [
        Column("SERVER", [Span(state.name, "" if state.reachable else "bad") for state in states], 10, always=True),
        Column("GPUS", [Span(_gpus(state.status)) for state in states], 8),
        Column("RUNNING", [Span(_count(state.status, "active")) for state in states], 9, right=True),
        Column("WAITING", [Span(_count(state.status, "waiting")) for state in states], 9, right=True),
        Column("EMPTY", [Span(_empty(state.status, now)) for state in states], 4),
    ]
    notes = [(Span(_note(state, now), "bad" if state.trouble else "odd"),) for state in states]
    return table_lines(columns, "", notes, width, 20)


def _gpus(status: Status | None) -> str:
    """`3 of 4 free`, without those that cannot be used."""
    if status is None:
        return "?"
    return f"{sum(map(_is_free, status.devices))} of {len(status.devices)} free"


def _is_free(device: DeviceLine) -> bool:
    return not (device.jobs or device.leases or device.strangers or device.problem or device.drained)


def _count(status: Status | None, name: str) -> str:
    return "?" if status is None else str(getattr(status.counts, name))


def _empty(status: Status | None, now: float) -> str:
    if status is None or status.expected_empty is None:
        return ""
    return f"~{clock_text(status.expected_empty.timestamp(), now)}"


def _note(state: ServerState, now: float) -> str:
    if not state.reachable:
        seen = f"as of {ago_text(state.seen.timestamp(), now)}" if state.seen else "never seen"
        return f"{seen}; {state.trouble}"
    notes = state.status.notes if state.status else []
    return "; ".join(notes)
