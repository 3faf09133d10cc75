"""The live display of a run, from data written by hand."""

from __future__ import annotations

from itertools import product

from stoker.app.jobs.local_time import exactly
from stoker.app.views.job import JobLine
from stoker.app.views.model import DeviceLine, ForeignProcess, Notice, RunCounts, RunStatus
from stoker.cli.screens.counts import counts_line, rough_text
from stoker.cli.screens.run import (
    SPARE_ROWS,
    device_rows,
    jobs_line,
    notice_lines,
    render_run,
    successes_line,
)
from stoker.cli.screens.text import Line, line_cells
from support.views import GIB, NOW, a_device, a_run, a_run_job, texts

TOTAL = 24 * GIB
JOB = a_run_job(3, "lr=1e-3", 41.0)
BUSY = a_device("0", memory_bytes=TOTAL, used_bytes=18 * GIB, ours_bytes=18 * GIB, jobs=["3"])
IDLE = a_device("1", memory_bytes=TOTAL)
FAILURE = Notice("failed", 5, "lr=1.0", "exit 1 after 00:09", "RuntimeError: loss is nan")


def a_crowd(gpus: int, jobs: int) -> tuple[list[DeviceLine], list[JobLine]]:
    """Many GPUs with many jobs each."""
    crowd = {
        str(gpu): [
            a_run_job(100 * gpu + job, f"name-{job}-of-many", 5.0, devices=[str(gpu)], expected_end=exactly(NOW + 4))
            for job in range(jobs)
        ]
        for gpu in range(gpus)
    }
    sizes = {"memory_bytes": 80 * GIB, "used_bytes": 7 * GIB}
    devices = [a_device(label, jobs=[job.label for job in on], **sizes) for label, on in crowd.items()]
    return devices, [job for on in crowd.values() for job in on]


def text_of(line: Line) -> str:
    return texts([line])[0]


def rows_of(status: RunStatus, width: int = 80, room: int = 5) -> list[str]:
    return [text.rstrip() for text in texts(device_rows(status, width, room))]


def test_the_whole_display() -> None:
    """Title, GPUs, failures, successes and the bar stand below each other as they are drawn in the documents."""
    status = a_run(
        [BUSY, IDLE],
        [JOB],
        logs="/logs/now",
        next="next (#15) needs 2 GPUs; 1 free",
        notices=(FAILURE,),
        successes=(1, 2, 6),
        left=220.0,
    )
    assert [text.rstrip() for text in texts(render_run(status, 100, 24))] == [
        "stoker run jobs.txt · 24 jobs · 2 GPUs · log dir /logs/now",
        "",
        " GPU0 ██████████████░░░░ 18.0/24G  #3 lr=1e-3 00:41",
        " GPU1 ░░░░░░░░░░░░░░░░░░  0.0/24G  idle: next (#15) needs 2 GPUs; 1 free",
        "",
        " ✗ #5 lr=1.0  exit 1 after 00:09  RuntimeError: loss is nan                            stoker logs 5",
        " ✓ #1 #2 #6",
        " ━━━━━━━━━────────────────────────────── 6/24  5 ok 1 failed 6 running 12 waiting  [01:24<04:00]",
    ]


def test_a_frame_never_exceeds_the_terminal() -> None:
    """However much there is to tell, no line is too wide and rows are left for what is said above."""
    too_large = []
    for gpus, width, height in product([0, 1, 4, 16], [20, 33, 40, 60, 72, 80, 100, 200], [6, 10, 15, 24, 50]):
        status = a_run(
            *a_crowd(gpus, jobs=9),
            notices=(FAILURE,) * 20,
            successes=tuple(range(40)),
            next="next (#7) waits",
            left=9.0,
        )
        lines = render_run(status, width, height)
        rows, columns = len(lines), max(line_cells(line) for line in lines)
        if rows > height - SPARE_ROWS or columns > width:
            too_large.append(f"{gpus} GPUs on {width} x {height} take {columns} x {rows}")
    assert too_large == []


def test_devices_that_do_not_fit_are_counted() -> None:
    """Sixteen GPUs on a low terminal end in a line that tells how many are hidden and what they do."""
    devices, jobs = a_crowd(15, jobs=1)
    lines = rows_of(a_run([*devices, a_device("15")], jobs), room=6)
    assert len(lines) == 6
    assert lines[-1] == " … 11 more GPUs: 10 busy, 1 idle"


def test_a_low_terminal_still_shows_failures() -> None:
    """GPUs leave room for the newest failures even when there are too many of them."""
    lines = texts(render_run(a_run(*a_crowd(16, jobs=1), notices=(FAILURE,) * 5), 80, 10))
    assert sum("✗ #5" in line for line in lines) >= 1


def test_memory_by_holder() -> None:
    """Held by our jobs, reserved for them, of others, and free; unknown is never shown as nothing."""
    amounts = {"memory_bytes": TOTAL, "reserved_bytes": 16 * GIB}
    shared = a_device("0", used_bytes=14 * GIB, ours_bytes=10 * GIB, others_bytes=4 * GIB, jobs=["3"], **amounts)
    unseen = a_device("1", **{**amounts, "used_bytes": None})
    cpu = a_run_job(9, "cpu", 7.0, devices=[])
    assert [line[:40].rstrip() for line in rows_of(a_run([shared, unseen], [JOB, cpu]), 100)] == [
        " GPU0 ████████▒▒▒▒▓▓▓░░░ 14.0/24G  #3 lr",
        " GPU1                       ?/24G  idle:",
        " CPU                               #9 cp",
    ]


def test_devices_without_memory_have_no_bar() -> None:
    """Names that the user declared are shown without a guess on their memory."""
    unknown = {"memory_bytes": None, "used_bytes": None}
    devices = [a_device("cuda:1", jobs=["2"], **unknown), a_device("0", jobs=["1"], **unknown)]
    jobs = [a_run_job(2, "b", 7.0), a_run_job(1, "a", 3.0)]
    assert rows_of(a_run(devices, jobs)) == [" cuda:1 #2 b 00:07", " GPU0   #1 a 00:03"]


def test_why_a_device_is_idle() -> None:
    """A problem, processes of others, or what the next job waits for, which then has no line of its own."""
    alice = ForeignProcess(1, "alice", "python", GIB)
    devices = [
        a_device("0", problem="fell off the bus"),
        a_device("1", used_bytes=GIB, strangers=[alice]),
    ]
    status = a_run(devices, next="next (#7) needs 2 GPUs")
    assert [line.split("G  ")[1] for line in rows_of(status)] == [
        "not usable: fell off the bus",
        "foreign: 1.0G in use by alice",
    ]
    assert " … next (#7) needs 2 GPUs" in texts(render_run(status, 80, 24))
    idle = a_run([*devices, a_device("2")], next="next (#7) needs 2 GPUs")
    assert " … next (#7) needs 2 GPUs" not in texts(render_run(idle, 80, 24))


def test_jobs_on_a_gpu_lose_detail_before_they_are_hidden() -> None:
    """Progress goes first, then times, then names; only then are jobs left out and counted."""
    jobs = a_crowd(1, jobs=3)[1]
    shown = [text_of(jobs_line(jobs, room)) for room in (150, 98, 80, 50, 20, 12)]
    assert "▕▇▇▇▇▁▁▁▁▏~00:05" in shown[0]
    assert "▇" not in shown[1]
    assert "~00:05" in shown[1]
    assert shown[2] == "#0 name-0-of-many 00:05  #1 name-1-of-many 00:05  #2 name-2-of-many 00:05"
    assert shown[3] == "#0 name-0-of-m…  #1 name-1-of-m…  #2 name-2-of-m…"
    assert shown[4] == "#0  #1  #2"
    assert shown[5] == "#0  #1  #2"
    assert text_of(jobs_line(a_crowd(1, jobs=30)[1], 20)) == "#0  #1  #2  +27 more"


def test_jobs_that_are_overdue_starting_or_stopping() -> None:
    """An estimate that turned out wrong is not shown; states stand in place of the time; several GPUs are marked."""
    jobs = [
        a_run_job(1, "a", 10.0, expected_end=exactly(NOW - 1)),
        a_run_job(2, "b", 0.0, state="starting"),
        a_run_job(3, "c", 9.0, state="stopping", devices=["0", "1"], expected_end=exactly(NOW + 9)),
    ]
    assert text_of(jobs_line(jobs, 80)) == "#1 a 00:10  #2 b starting  #3 c ×2 stopping"


def test_the_last_line_shrinks_with_the_terminal() -> None:
    """First the bar goes, then running and waiting, then the clock; what failed stays. A stream's total is open."""
    shown = [text_of(counts_line(a_run().counts, 84.0, None, width)).strip() for width in (64, 58, 42, 20)]
    assert shown == [
        "6/24  5 ok 1 failed 6 running 12 waiting  [01:24<?]",
        "6/24  5 ok 1 failed 6 running 12 waiting  [01:24<?]",
        "6/24  5 ok 1 failed  [01:24<?]",
        "6/24  1 failed",
    ]
    some = text_of(counts_line(RunCounts(24, 5, 1, 6, 2, cancelled=10), 84.0, None, 100))
    assert "16/24  5 ok 1 failed 10 cancelled 6 running 2 waiting" in some
    assert "6/24+ " in text_of(counts_line(RunCounts(24, 5, 1, open_ended=True), 84.0, None, 80))


def test_what_remains_is_only_guessed_roughly() -> None:
    """Estimates are rounded up, the coarser the longer, and unknown is a question mark."""
    shown = [rough_text(seconds) for seconds in (None, 0.0, 11.2, 130.0, 4000.0)]
    assert shown == ["?", "00:00", "00:15", "02:30", "1:10:00"]


def test_notices() -> None:
    """Each kind has a sign, never only a colour; a narrow terminal prefers the job's words to the hint."""
    again, note = Notice("again", 12, "b", "lost", "runs again"), Notice("note", 7, "c", "done", "left 1 process")
    assert [text.rstrip() for text in texts(notice_lines([FAILURE, again, note], 100, simulated=True))] == [
        " ✗ #5  lr=1.0  exit 1 after 00:09  RuntimeError: loss is nan                     stoker logs --sim 5",
        " ↻ #12 b       lost                runs again",
        " ! #7  c       done                left 1 process",
    ]
    assert texts(notice_lines([FAILURE], 50, simulated=False)) == [" ✗ #5 lr=1.0  exit 1 after 00:09  RuntimeError: l…"]


def test_only_the_newest_successes_are_listed() -> None:
    """What does not fit is the oldest."""
    line = text_of(successes_line(tuple(range(1, 100)), 30))
    assert line.startswith(" ✓ … #9")
    assert line.endswith("#98 #99")
