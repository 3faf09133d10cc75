"""The columns of tables of jobs. Screens, --plain, CSV, notebooks and the page choose columns by their names.

A new column is a row in COLUMNS and its name in the tables that show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from stoker.app.jobs.local_time import clock_text, start_text
from stoker.app.views.job import JobFacts, JobLine, PastLine
from stoker.core.amounts import VramMode
from stoker.core.outcomes import ACTIVE, FAILURES, SLURM_CODES, JobStateName
from stoker.core.units import amount_text, left_text, short_size, size_text, span_text, watch_text

StateLook = Literal["", "good", "bad", "odd"]
CellLook = Literal[StateLook, "id", "bar"]
"""How a terminal shows a cell; `bar` is a bar of blocks with text behind it."""
STATE_LOOKS: dict[JobStateName, StateLook] = {
    "running": "good",
    "done": "good",
    "starting": "good",
    "stopping": "odd",
    "held": "odd",
    "blocked": "odd",
    "scheduled": "odd",
    **dict.fromkeys(FAILURES, "bad"),
}
GIB = 2**30
WIDE_COLUMNS = 100
"""Width of a terminal from which on progress has a longer bar."""
ROUNDING_SECONDS = 2.0
"""An end that follows from the limit may differ from it by this."""


class Terminal(NamedTuple):
    """The context of a table, on which cells depend besides the job."""

    now: float
    width: int


class JobColumn(NamedTuple):
    """A column of tables of jobs; only id, state and name exist in every table."""

    plain: str = ""
    """Title in --plain and CSV."""
    field: str = ""
    """Field of the record, which is also the title in notebooks."""
    value: Callable[[Any], object] | None = None
    """Value in --plain and CSV, if it is not that of the field."""
    title: str = ""
    """Title on a terminal."""
    text: Callable[[Any, Terminal], str] | None = None
    """Cell on a terminal."""
    weight: int = 0
    """The column with the least weight is dropped first on a narrow terminal."""
    right: bool = False
    most: int = 40
    """Cells of its widest line on a terminal."""
    look: Callable[[Any], CellLook] = lambda job: ""
    always: bool = False
    """Whether no terminal is too narrow for it."""
    sort: Callable[[Any], Any] | None = None
    """Key that orders jobs by this column."""
    page: str = ""
    """Title on the page, if it is not the one on a terminal in small letters."""

    def has_value(self, job: JobFacts) -> bool:
        return bool(getattr(job, self.field) if self.value is None else self.value(job))


# -- cells ---------------------------------------------------------------------------------------


def _or_dash(text: Callable[[Any], str], value: object) -> str:
    return "-" if value is None else text(value)


def _vram(job: JobFacts) -> object:
    return job.vram_bytes if job.vram_mode == "size" else None if job.vram_mode == "none" else job.vram_mode


def vram_text(mode: VramMode, size: int | None) -> str:
    """The requested GPU memory: `6.0G`, `auto`, `all`, or `-` for a job without GPU."""
    return size_text(size) if mode == "size" else "-" if mode == "none" else mode


def held_bytes(job: JobLine) -> int | None:
    """Bytes in use on the GPU of which the job holds most; if that is unknown, on all of them."""
    return job.used_bytes if job.held_bytes is None else job.held_bytes


def memory_text(job: JobLine) -> str:
    """The used part of the memory reserved on each GPU; what will be reserved for one that waits."""
    reserved, used = job.reserved_bytes, held_bytes(job) if job.state in ACTIVE else None
    if used is not None:
        return f"{used / GIB:.1f}G" if reserved is None else amount_text(used, reserved)
    if reserved is not None:
        return short_size(reserved)
    return "auto" if job.vram_mode == "auto" else "-"


def _memory_look(job: JobLine) -> CellLook:
    used = held_bytes(job) if job.state in ACTIVE else None
    return "odd" if used is not None and job.reserved_bytes is not None and used > job.reserved_bytes else ""


def left_cell(job: JobLine, now: float) -> str:
    """How long a job will run: `~` is an estimate, `≤` a limit, `?` unknown."""
    if job.last_seen is not None:
        return "?"
    by_limit = None if job.limit_seconds is None else job.limit_seconds - (job.seconds or 0.0)
    if job.expected_end is None:
        return "?" if by_limit is None else f"≤{left_text(by_limit)}"
    left = job.expected_end.timestamp() - now
    # The engine expects a job without earlier runs to take all of its time.
    return f"{'~' if by_limit is None or left < by_limit - ROUNDING_SECONDS else '≤'}{left_text(left)}"


def start_cell(job: JobLine, now: float) -> str:
    if job.expected_start is not None:
        return start_text(job.expected_start.timestamp(), now)
    return "?" if job.state == "queued" else "-"


def _left_or_start(job: JobLine, terminal: Terminal) -> str:
    if job.state in ACTIVE:
        return left_cell(job, terminal.now)
    start = start_cell(job, terminal.now)
    return f"~{start.removeprefix('at ')}" if job.expected_start is not None else start


def progress_text(progress: float, columns: int) -> str:
    """A bar and a percentage."""
    full = int(progress * columns)
    return f"{'█' * full}{'░' * (columns - full)} {int(progress * 100):2}%"


def _progress(job: JobLine, terminal: Terminal) -> str:
    return "-" if job.progress is None else progress_text(job.progress, 10 if terminal.width >= WIDE_COLUMNS else 5)


def _exit(job: Any) -> str:
    return f"signal {job.signal}" if job.signal else _or_dash(str, job.exit_code)


def peak_text(peak: int | None, reserved: int | None) -> str:
    """The most that an attempt held on a GPU, of what was reserved there."""
    if peak is None:
        return "-"
    return size_text(peak) if reserved is None else amount_text(peak, reserved)


def _ran(job: JobLine | PastLine) -> float | None:
    return job.run_seconds if isinstance(job, PastLine) else job.seconds


# -- columns -------------------------------------------------------------------------------------

COLUMNS: dict[str, JobColumn] = {
    "id": JobColumn(
        "ID",
        "label",
        title="ID",
        text=lambda job, _: job.label,
        most=18,
        look=lambda _: "id",
        sort=lambda job: job.id,
        page="ID",
    ),
    "code": JobColumn("ST", "state", lambda job: SLURM_CODES[job.state]),
    "state": JobColumn(
        "STATE",
        "state",
        title="STATE",
        text=lambda job, _: job.state,
        look=lambda job: STATE_LOOKS.get(job.state, ""),
        always=True,
        sort=lambda job: job.state,
    ),
    "tasks": JobColumn("TASKS", "tasks"),
    "exit": JobColumn("EXIT", "exit_code", title="EXIT", text=lambda job, _: _exit(job), weight=9),
    "signal": JobColumn("SIGNAL", "signal"),
    "gpus": JobColumn("GPUS", "gpus"),
    "devices": JobColumn(
        "DEVICES",
        "devices",
        lambda job: ",".join(job.devices),
        title="GPU",
        text=lambda job, _: ",".join(job.devices) or "-",
        weight=6,
        most=7,
        page="GPU",
    ),
    "vram": JobColumn(
        "VRAM", "vram_bytes", _vram, "VRAM", lambda job, _: vram_text(job.vram_mode, job.vram_bytes), 1, right=True
    ),
    "memory": JobColumn(
        field="reserved_bytes",
        value=lambda job: memory_text(job).removeprefix("-"),
        title="MEM",
        text=lambda job, _: memory_text(job),
        weight=3,
        right=True,
        look=_memory_look,
        sort=lambda job: -(held_bytes(job) or job.reserved_bytes or 0),
        page="Memory",
    ),
    "reserved": JobColumn("RESERVED", "reserved_bytes"),
    "used": JobColumn("USED", "used_bytes"),
    "peak": JobColumn(
        "PEAK_VRAM",
        "peak_vram_bytes",
        title="PEAK",
        text=lambda job, _: peak_text(job.peak_vram_bytes, job.reserved_bytes),
        weight=7,
        right=True,
    ),
    "utilisation": JobColumn(
        "UTIL",
        "utilisation_percent",
        title="UTIL",
        text=lambda job, _: _or_dash("{}%".format, job.utilisation_percent),
        weight=2,
        right=True,
    ),
    "speed": JobColumn("SPEED", "speed", lambda job: "" if job.speed is None else f"{job.speed:.2f}"),
    "time": JobColumn(
        "SECONDS",
        "seconds",
        title="TIME",
        text=lambda job, _: _or_dash(watch_text, job.seconds),
        weight=5,
        right=True,
        sort=lambda job: -(job.seconds or 0.0),
    ),
    "left": JobColumn(title="LEFT", text=_left_or_start, weight=10, right=True, page="When"),
    "progress": JobColumn(
        "PROGRESS",
        "progress",
        lambda job: "" if job.progress is None else f"{job.progress:.3f}",
        "DONE",
        _progress,
        8,
        look=lambda _: "bar",
        page="Progress",
    ),
    "limit": JobColumn("LIMIT", "limit_seconds"),
    "submitted": JobColumn("SUBMITTED", "submitted"),
    "start": JobColumn(
        "START",
        "started",
        lambda job: job.started or getattr(job, "expected_start", None),
        "START",
        lambda job, terminal: start_cell(job, terminal.now),
        6,
    ),
    "end": JobColumn("END", "ended", lambda job: job.ended or getattr(job, "expected_end", None)),
    "waited": JobColumn(
        "WAITED",
        "wait_seconds",
        title="WAITED",
        text=lambda job, _: _or_dash(span_text, job.wait_seconds),
        weight=4,
        right=True,
    ),
    "ran": JobColumn("RAN", "run_seconds", _ran, "RAN", lambda job, _: _or_dash(watch_text, _ran(job)), 12, right=True),
    "gpu_hours": JobColumn(
        "GPU_HOURS",
        "gpu_hours",
        lambda job: f"{job.gpu_hours:.4f}",
        "GPU-H",
        lambda job, _: f"{job.gpu_hours:.2f}" if job.gpus else "-",
        11,
        right=True,
        page="GPU-h",
    ),
    "ended": JobColumn(
        field="ended",
        title="ENDED",
        text=lambda job, terminal: "-" if job.ended is None else clock_text(job.ended.timestamp(), terminal.now),
        weight=10,
        right=True,
    ),
    "attempts": JobColumn("ATTEMPTS", "attempts"),
    "peak_ram": JobColumn("PEAK_RAM", "peak_memory_bytes"),
    "place": JobColumn("PLACE", "place"),
    "priority": JobColumn(
        "PRIORITY", "priority", title="PRIO", text=lambda job, _: str(job.priority), weight=9, right=True
    ),
    "group": JobColumn("GROUP", "group"),
    "run": JobColumn("RUN", "run"),
    "tags": JobColumn("TAGS", "tags", lambda job: " ".join(f"{name}={value}" for name, value in job.tags.items())),
    "directory": JobColumn("DIRECTORY", "directory"),
    "commit": JobColumn("COMMIT", "commit"),
    "log": JobColumn("LOG", "log"),
    "name": JobColumn("NAME", "name", sort=lambda job: job.title.casefold(), page="Job"),
    "why": JobColumn("WHY", "why"),
    "note": JobColumn("NOTE", "note"),
    "command": JobColumn("COMMAND", "command"),
}


def chosen_columns(names: Sequence[str], jobs: Sequence[JobFacts]) -> list[JobColumn]:
    """The columns of a table; one whose name ends with `?` only if a job has a value in it."""
    return [
        COLUMNS[name.rstrip("?")]
        for name in names
        if not name.endswith("?") or any(COLUMNS[name.rstrip("?")].has_value(job) for job in jobs)
    ]


# -- tables: a column with a ? is shown if one of the jobs has a value in it ---------------------


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ACTIVE_TABLE = _names("id state devices memory time left progress?")
WAITING_TABLE = _names("id state priority? memory? start")
ENDED_TABLE = _names("id state exit devices peak ran ended")
HISTORY_TABLE = _names("id state exit devices vram peak utilisation waited ran gpu_hours ended")
TOP_JOBS_TABLE = _names("id state devices memory time left progress? priority?")
TOP_HISTORY_TABLE = _names("id state ended ran devices peak gpu_hours")
PAGE_JOBS_TABLE = _names("id state name devices memory progress time left")
PAGE_HISTORY_TABLE = _names("id state name devices peak gpu_hours ran ended")
STATUS_PLAIN = _names(
    "id code state tasks gpus devices vram reserved used peak utilisation speed time limit start end progress place"
    " priority group run name why command"
)
HISTORY_PLAIN = _names(
    "id code state exit signal gpus devices vram reserved peak utilisation submitted start end waited ran gpu_hours"
    " attempts peak_ram group tags directory commit log name note command"
)
STATUS_NOTEBOOK = _names("id state devices time name command why")
HISTORY_NOTEBOOK = _names("id state exit ran peak name command note")
