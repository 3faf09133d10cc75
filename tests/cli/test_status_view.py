"""`stoker status` on a terminal, from data written by hand."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import pytest

from stoker.app.jobs.local_time import to_datetime
from stoker.app.views.columns import left_cell
from stoker.app.views.model import (
    Counts,
    EngineLine,
    FailedJob,
    ForeignProcess,
    InterruptedRun,
    LeaseLine,
    Mark,
    Status,
)
from stoker.cli.screens.status import render_status
from stoker.cli.screens.text import line_cells
from stoker.core.units import DAY
from support.views import GIB, NOW, a_device, a_line, a_running_line, a_status, texts

ALICE = ForeignProcess(pid=9911, owner="alice", command="python x.py", memory_bytes=26 * GIB)
BOB = LeaseLine("bob", 77, "stoker", None, to_datetime(NOW - 60), job="4")
BUSY = a_device("0", used_bytes=34 * GIB, ours_bytes=34 * GIB, reserved_bytes=37 * GIB, jobs=["41", "43"])
FULL = a_status(
    [
        a_running_line(41, name="vit-b lr=3e-4", reserved_bytes=14 * GIB, held_bytes=12 * GIB, limit_seconds=9000.0),
        a_running_line(42, name="名前" * 40, expected_end=to_datetime(NOW + 3720)),
        a_line(
            46,
            reserved_bytes=24 * GIB,
            why="needs 24.0G; most free is 21.0G (GPU 1)",
            expected_start=to_datetime(NOW + 60),
        ),
        a_line(47, state="blocked", why="after 46 (ok)"),
        a_line(48, state="held", why="held by you"),
        a_line(50, label="50.[3-99]", tasks=97, why="needs 1 GPU; none free"),
    ],
    [
        BUSY,
        a_device("1", used_bytes=26 * GIB, others_bytes=26 * GIB, strangers=[ALICE]),
        a_device("2", others_bytes=40 * GIB, leases=[BOB]),
        a_device("3", drained=Mark("drained by you", to_datetime(NOW - 7300))),
        a_device("4", memory_bytes=None, used_bytes=None, problem="fell off the bus"),
    ],
    today={"done": 212, "failed": 3},
    expected_empty=to_datetime(NOW + 600),
)


def shown(status: Status, width: int = 80, height: int | None = 40) -> str:
    return "\n".join(texts(render_status(status, width, height)))


def test_nothing_is_wider_or_taller_than_the_terminal() -> None:
    """Whatever is on the screen, no line wraps and the first one stays in sight."""
    too_large = []
    for width, height in product(range(20, 201, 3), [4, 10, 24, None]):
        lines = render_status(FULL, width, height)
        rows, columns = len(lines), max(line_cells(line) for line in lines)
        if columns > width or (height is not None and rows >= height):
            too_large.append(f"on {width} x {height} it takes {columns} x {rows}")
    assert too_large == []


@pytest.mark.parametrize("width", [30, 40, 60])
def test_a_narrow_terminal_shows_states(width: int) -> None:
    """Whatever has to go, id and state of a job stay."""
    lines = shown(FULL, width).splitlines()
    assert any("50.[3-99]" in line and "queued" in line for line in lines)
    assert any("blocked" in line for line in lines)


def test_the_first_screen(utc: None) -> None:
    """It shows the machine, every GPU and every job; `~` is an estimate, `≤` a limit, `?` unknown."""
    lines = [text.rstrip() for text in texts(render_status(FULL, 80, 40))]
    assert lines == [
        "stoker on lab7 · engine up 3d 2h · 5 × A100-SXM4-40GB",
        "",
        " GPU  █used ▒reserved ▓others ░free      UTIL  TEMP  JOBS",
        " 0    █████████████████▒░░ 34.0/40G  ████ 97%  71°C  41 43",
        " 1    ▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░ 26.0/40G  ████ 97%  71°C  alice: 26G foreign (pid 99…",
        " 2    ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓  0.0/40G  ████ 97%  71°C  bob: 1 job whole GPU (pid …",
        " 3    ░░░░░░░░░░░░░░░░░░░░  0.0/40G  ████ 97%  71°C  drained by you, 2h ago",
        " 4                                -  ████ 97%  71°C  fell off the bus",
        "",
        " ID         STATE    GPU       MEM     TIME   LEFT  JOB",
        " 41         running  0    12.0/14G  1:12:03  ≤1h17  vit-b lr=3e-4  python train…",
        " 42         running  0           -  1:12:03  ~1h02  名前名前…前名前名前名前名前…",
        "",
        " ID         STATE    MEM  START     JOB              WHY",
        " 46         queued   24G  at 08:01  python train.py  needs 24.0G; most free is …",
        " 47         blocked    -  -         python train.py  after 46 (ok)",
        " 48         held       -  -         python train.py  held by you",
        " 50.[3-99]  queued     -  ?         python train.py  97 tasks: needs 1 GPU; non…",
        " queue empty ~08:10 · today 212 done, 3 failed (stoker history)",
    ]


def test_a_tiny_screen() -> None:
    """The first jobs stay, and the number of the hidden ones."""
    assert [text.rstrip() for text in texts(render_status(FULL, 20, 5))] == [
        "stoker on lab7",
        " 41  running  v…3e-4",
        " 42  running  …名前…",
        " … 100 more (stoker…",
    ]


def test_old_failures_do_not_hide_jobs() -> None:
    """Without room for all jobs, failures share a line; what ended today is told in words that fit."""
    failures = [
        FailedJob(n, str(n), "python x.py", "failed", "exit 1", to_datetime(NOW - 900 * n), "boom") for n in (1, 2, 3)
    ]
    today = {"done": 348, "cancelled": 327619, "failed": 335, "skipped": 10, "stopped": 3}
    few, many = [a_running_line(1)], [a_running_line(n) for n in range(1, 31)]
    assert shown(a_status(few, failures=failures)).count("boom") == 3
    screen = shown(a_status(many, failures=failures), height=24)
    assert "boom" not in screen
    assert " ✗ failures of the last hour: stoker history --since 1h --state failed" in screen
    assert shown(a_status(few, today=today)).splitlines()[-1].strip() == (
        "today 348 done, 327619 cancelled, 335 failed, 10 skipped, 3 stopped"
    )


BUSY_DAY = a_status(
    [
        a_running_line(8, command="python train.py --seed 8", progress=0.53, expected_end=to_datetime(NOW + 8)),
        a_running_line(9, name="vit", title="vit(lr=0.1)", command="vit(lr=0.1)"),
        a_line(
            22, priority=5, command="python sweep.py --a-long-option 1 --seed 22", expected_start=to_datetime(NOW + DAY)
        ),
        a_line(23, why="needs 1 GPU; none free", expected_start=to_datetime(NOW - 1)),
        a_line(30, interrupted=True, why="interrupted"),
    ],
    interrupted=[
        InterruptedRun("stoker run jobs.txt", 4, to_datetime(NOW - 60), "stoker resume 30-33", "stoker cancel 30-33")
    ],
    failures=[
        FailedJob(7, "7", "python train.py --seed 7", "failed", "exit 1", to_datetime(NOW - 9), "RuntimeError: nan")
    ],
    counts=Counts(2, 6, 0),
)


def test_progress_priorities_interrupted_runs_and_failures(utc: None) -> None:
    """Progress has a bar, priorities a column, an interrupted run its commands, and a failure its reason."""
    assert [text.rstrip() for text in texts(render_status(BUSY_DAY, 80, 24))][2:] == [
        " ID  STATE    GPU  MEM     TIME  LEFT  DONE       JOB",
        " 8   running  0      -  1:12:03   ~8s  ██░░░ 53%  python train.py --seed 8",
        " 9   running  0      -  1:12:03     ?  -          vit(lr=0.1)",
        "",
        " ID  STATE    PRIO  START           JOB                       WHY",
        " 22  queued      5  tomorrow 08:00  python …tion 1 --seed 22",
        " 23  queued      0  now             python train.py           needs 1 GPU; none…",
        " 4 jobs of 'stoker run jobs.txt' (07:59) did not start",
        "   run them in the queue: stoker resume 30-33",
        "   discard them: stoker cancel 30-33",
        " ✗ 7  exit 1  9s ago  pytho…in.py --seed 7  RuntimeError: nan",
    ]


def test_a_wide_screen_has_names_and_commands(utc: None) -> None:
    """Both are shown, and a longer bar."""
    lines = [text.rstrip() for text in texts(render_status(FULL, 120, 40))]
    assert lines[10] == " 41         running  0    12.0/14G  1:12:03  ≤1h17  vit-b lr=3e-4  python train.py"
    assert "█████░░░░░ 53%" in shown(BUSY_DAY, 100)


def test_jobs_that_share_a_gpu() -> None:
    """Each tells what it holds of what is set aside for it; a wide screen tells how fast they are together."""
    packed = [
        a_running_line(1, vram_mode="auto", reserved_bytes=int(6.94 * GIB), held_bytes=6 * GIB, used_bytes=12 * GIB),
        a_running_line(2, vram_mode="size", reserved_bytes=14 * GIB, held_bytes=GIB),
        a_running_line(3, devices=["1"], vram_mode="auto", held_bytes=3 * GIB),
        a_line(4, vram_mode="auto", reserved_bytes=7 * GIB, why="needs 7.0G; most free is 4.0G (GPU 0)"),
        a_line(5, vram_mode="auto", why="needs 1 GPU; none free"),
    ]
    amounts = {"used_bytes": 8 * GIB, "ours_bytes": 7 * GIB, "reserved_bytes": 21 * GIB, "others_bytes": GIB}
    status = a_status(packed, [a_device("0", jobs=["1", "2"], combined_speed=1.68, **amounts)])
    narrow, wide = shown(status), shown(status, 120)
    assert "████▒▒▒▒▒▒▓░░░░░░░░░  8.0/40G" in narrow
    assert "together" not in narrow
    assert "1 2 (together 1.7x)" in wide
    for memory in ("6.0/6.9G", "1.0/14G", "3.0G", " 7G ", "auto"):
        assert memory in narrow


def test_the_last_line_tells_what_is_hidden() -> None:
    """And the command that shows it, in words that fit."""
    many = a_status([a_running_line(n) for n in range(1, 31)] + [a_line(n) for n in range(31, 61)], [BUSY])
    assert shown(many, height=20).splitlines()[-1].strip() == "… 23 more running, 27 more waiting (stoker status -a)"
    assert shown(many, width=40, height=10).splitlines()[-1].strip() == "… 56 more (stoker status -a)"


def test_all_is_shown_where_it_is_wanted() -> None:
    """Without a height nothing is hidden."""
    many = a_status([a_line(n) for n in range(1, 501)])
    assert "more" not in shown(many, height=None)
    assert len(shown(many, height=None).splitlines()) > 500


MANY_RUN = a_status([*(a_running_line(n) for n in range(1, 90)), a_line(99, why="needs 4 GPUs")])
MANY_GPUS = a_status([a_line(why="needs 1 GPU")], [a_device(str(n)) for n in range(16)])
GONE = EngineLine(running=False, seen=to_datetime(NOW) - timedelta(hours=2))
PAUSED = EngineLine(running=True, paused=Mark("paused by you", to_datetime(NOW - 300)))


@pytest.mark.parametrize(
    ("status", "height", "words"),
    [
        (MANY_RUN, 16, "needs 4 GPUs"),  # something that waits is always seen
        (MANY_GPUS, 12, "more GPUs, 0 with jobs (stoker gpus)"),
        (MANY_GPUS, 12, "needs 1 GPU"),
        (a_status([a_line(9, label="9.[0-99]", tasks=100)], counts=Counts(0, 150, 0)), 40, "… 50 more waiting"),
        (a_status([], [BUSY]), 40, "No jobs. Submit one: stoker submit"),
        (
            a_status([a_line()], engine=GONE),
            40,
            "Engine not running (starts automatically on submit; or run: stoker engine start)",
        ),
        (a_status([a_line()], [BUSY], engine=GONE), 40, "GPU readings are from 2h ago"),
        (a_status([], engine=PAUSED), 40, "stoker on lab7 · the queue is paused by you, 5m ago"),
        (a_status([], notes=["the disk is full"]), 40, "the disk is full"),
    ],
)
def test_what_is_told(status: Status, height: int, words: str) -> None:
    """Whatever keeps jobs from running, and what is hidden, is in words on the screen."""
    assert words in shown(status, height=height)


def test_simulated_devices_are_told() -> None:
    """Nobody takes them for real ones, and other commands are typed for the same queue."""
    status = a_status([a_line(n) for n in range(99)], simulated=True)
    lines = texts(render_status(status, 80, 10, " --sim"))
    assert lines[0].startswith(" SIM ")
    assert "(stoker status --sim -a)" in lines[-1]


def test_what_could_move_the_cursor_is_escaped() -> None:
    """Names, commands, reasons, hosts and strangers are somebody's own words."""
    evil = "a\x1b[31mb\nc\x07\u202ed"
    job = a_running_line(1, name=evil, command=evil, why=evil)
    stranger = ForeignProcess(1, evil, evil, None)
    status = a_status(
        [job, a_line(2, why=evil)], [a_device(strangers=[stranger], problem=evil)], host=evil, notes=[evil]
    )
    for width in (60, 120):
        assert shown(status, width).replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"expected_end": to_datetime(NOW + 600)}, "~10m"),
        ({"expected_end": to_datetime(NOW + 600), "limit_seconds": 4923.0}, "≤10m"),
        ({"expected_end": to_datetime(NOW + 60), "limit_seconds": 4923.0}, "~1m"),
        ({"limit_seconds": 4923.0}, "≤10m"),
        ({}, "?"),
    ],
)
def test_the_time_left(fields: dict[str, object], text: str) -> None:
    """An end that the engine expects because of the limit is marked like the limit."""
    assert left_cell(a_running_line(1, **fields), NOW) == text
