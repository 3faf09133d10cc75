"""The lines of the live display, from scenes written down by hand."""

from __future__ import annotations

from itertools import product

from stoker.cli.views.run import (
    SPARE_ROWS,
    Columns,
    Counts,
    Notice,
    Occupant,
    Row,
    Scene,
    bar_line,
    frame,
    heading_line,
    left_text,
    notice_line,
    occupants_line,
    row_lines,
    successes_line,
)
from stoker.cli.views.text import Line, cells, clip, line_cells

GIB = 2**30
ROW = Row("GPU0", (Occupant(3, "lr=1e-3", 41.0),), 18 * GIB, 24 * GIB)
FAILURE = Notice("failed", 5, "lr=1.0", "exit 1 after 00:09", "RuntimeError: loss is nan")
COUNTS = Counts(total=24, ok=5, failed=1, running=6, waiting=12)
HEADING = ("stoker run jobs.txt", "24 jobs", "4 GPUs", "log dir ./stoker-runs/now")


def a_scene(
    rows: tuple[Row, ...] = (ROW,),
    *,
    counts: Counts = COUNTS,
    notices: tuple[Notice, ...] = (),
    successes: tuple[int, ...] = (),
    waits: str = "",
    simulated: bool = False,
    left: float | None = None,
) -> Scene:
    """A scene with one busy GPU, unless told otherwise."""
    return Scene(HEADING, rows, counts, 84.0, simulated, left, waits, notices, successes)


def a_crowd(gpus: int, jobs: int) -> tuple[Row, ...]:
    """Many GPUs with many jobs each."""
    return tuple(
        Row(
            f"GPU{gpu}",
            tuple(Occupant(100 * gpu + job, f"name-{job}-of-many", 5.0, expected=9.0) for job in range(jobs)),
            7 * GIB,
            80 * GIB,
        )
        for gpu in range(gpus)
    )


def text_of(line: Line) -> str:
    """What a terminal without colours shows."""
    return "".join(span.text for span in line)


def test_a_whole_frame() -> None:
    """Title, GPUs, failures, successes and the bar stand below each other as they are drawn in the documents."""
    idle = Row("GPU1", (), 0, 24 * GIB, "idle: next (#15) needs 2 GPUs; 1 free")
    scene = a_scene((ROW, idle), notices=(FAILURE,), successes=(1, 2, 6), left=220.0)
    assert [text_of(line).rstrip() for line in frame(scene, 100, 24)] == [
        "stoker run jobs.txt · 24 jobs · 4 GPUs · log dir ./stoker-runs/now",
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
        scene = a_scene(
            a_crowd(gpus, jobs=9),
            notices=(FAILURE,) * 20,
            successes=tuple(range(40)),
            waits="next (#7) waits",
            left=9.0,
        )
        lines = frame(scene, width, height)
        rows, columns = len(lines), max(line_cells(line) for line in lines)
        if rows > height - SPARE_ROWS or columns > width:
            too_large.append(f"{gpus} GPUs on {width} x {height} take {columns} x {rows}")
    assert too_large == []


def test_devices_that_do_not_fit_are_counted() -> None:
    """Sixteen GPUs on a low terminal end in a line that tells how many are hidden and what they do."""
    rows = (*a_crowd(15, jobs=1), Row("GPU15", (), 0, 80 * GIB, "idle: no job waits"))
    lines = row_lines(rows, 80, 6)
    assert len(lines) == 6
    assert text_of(lines[-1]) == " … 11 more GPUs: 10 busy, 1 idle"


def test_a_low_terminal_still_shows_failures() -> None:
    """GPUs leave room for the newest failures even when there are too many of them."""
    lines = frame(a_scene(a_crowd(16, jobs=1), notices=(FAILURE,) * 5), 80, 10)
    assert sum("✗ #5" in text_of(line) for line in lines) >= 1


def test_memory_is_told_by_who_has_it() -> None:
    """Held by our jobs, set aside for them, other people's, and free."""
    shared = Row("GPU0", ROW.occupants, 14 * GIB, 24 * GIB, reserved=16 * GIB, others=4 * GIB)
    unseen = Row("GPU1", ROW.occupants, None, 24 * GIB, reserved=16 * GIB)
    assert [text_of(line)[:34] for line in row_lines((shared, unseen), 100, 5)] == [
        " GPU0 ████████▒▒▒▒▓▓▓░░░ 14.0/24G ",
        " GPU1                       ?/24G ",
    ]


def test_devices_without_memory_have_no_bar() -> None:
    """Names that the user declared are shown without a guess on their memory."""
    lines = row_lines((Row("cuda:1", (Occupant(2, "b", 7.0),)), Row("GPU0", (Occupant(1, "a", 3.0),))), 80, 5)
    assert [text_of(line) for line in lines] == [" cuda:1 #2 b 00:07", " GPU0   #1 a 00:03"]


def test_memory_that_nobody_could_read_is_a_question_mark() -> None:
    """Unknown is never shown as nothing."""
    assert "?/24G" in text_of(row_lines((Row("GPU0", (), None, 24 * GIB, "not usable"),), 80, 3)[0])


def test_jobs_on_a_gpu_lose_detail_before_they_are_hidden() -> None:
    """Progress goes first, then times, then names; only then are jobs left out and counted."""
    jobs = a_crowd(1, jobs=3)[0].occupants
    told = [text_of(occupants_line(jobs, room)) for room in (150, 98, 80, 50, 20, 12)]
    assert "▕▇▇▇▇▁▁▁▁▏~00:05" in told[0]
    assert "▇" not in told[1]
    assert "~00:05" in told[1]
    assert told[2] == "#0 name-0-of-many 00:05  #1 name-1-of-many 00:05  #2 name-2-of-many 00:05"
    assert told[3] == "#0 name-0-of-m…  #1 name-1-of-m…  #2 name-2-of-m…"
    assert told[4] == "#0  #1  #2"
    assert told[5] == "#0  #1  #2"
    assert text_of(occupants_line(a_crowd(1, jobs=30)[0].occupants, 20)) == "#0  #1  #2  +27 more"


def test_a_job_that_takes_longer_than_expected_shows_no_progress() -> None:
    """An estimate that turned out wrong is not shown."""
    assert text_of(occupants_line((Occupant(1, "a", 10.0, expected=9.0),), 80)) == "#1 a 00:10"


def test_what_is_not_running_says_so() -> None:
    """Starting and stopping stand where the time would be, and several GPUs are marked."""
    jobs = (Occupant(1, "a", None, "starting"), Occupant(2, "b", None, "stopping", gpus=2))
    assert text_of(occupants_line(jobs, 80)) == "#1 a starting  #2 b ×2 stopping"


def test_simulated_gpus_are_announced() -> None:
    """The title begins with SIM, whatever else has to go."""
    assert text_of(heading_line(a_scene(simulated=True), 40)) == " SIM  stoker run jobs.txt · 24 jobs"


def test_what_remains_is_only_guessed_roughly() -> None:
    """Estimates are rounded up, the coarser the longer, and unknown is a question mark."""
    told = [left_text(seconds) for seconds in (None, 0.0, 11.2, 130.0, 4000.0)]
    assert told == ["?", "00:00", "00:15", "02:30", "1:10:00"]


def test_the_bar_shrinks_with_the_terminal() -> None:
    """First the bar goes, then running and waiting, then the clock; what failed stays."""
    told = [text_of(bar_line(a_scene(), width)).strip() for width in (64, 58, 42, 20)]
    assert told[0] == "6/24  5 ok 1 failed 6 running 12 waiting  [01:24<?]"
    assert told[1] == "6/24  5 ok 1 failed 6 running 12 waiting  [01:24<?]"
    assert told[2] == "6/24  5 ok 1 failed  [01:24<?]"
    assert told[3] == "6/24  1 failed"


def test_more_jobs_may_come() -> None:
    """The total of a stream is marked as what it is so far."""
    assert "6/24+ " in text_of(bar_line(a_scene(counts=Counts(24, 5, 1, open_ended=True)), 80))


def test_a_narrow_terminal_prefers_the_failure_to_the_hint() -> None:
    """The command that shows the log is left out where the job's own words would not fit."""
    columns = Columns.of((FAILURE,), 50)
    assert text_of(notice_line(FAILURE, columns, 50, simulated=False)) == (
        " ✗ #5 lr=1.0  exit 1 after 00:09  RuntimeError: l…"
    )


def test_logs_of_simulated_jobs_are_elsewhere() -> None:
    """The hint is a command that finds the log."""
    line = notice_line(FAILURE, Columns.of((FAILURE,), 100), 100, simulated=True)
    assert text_of(line).endswith("  stoker logs --sim 5")


def test_only_the_newest_successes_are_listed() -> None:
    """What does not fit is the oldest."""
    assert text_of(successes_line(tuple(range(1, 100)), 30)).startswith(" ✓ … #9")
    assert text_of(successes_line(tuple(range(1, 100)), 30)).endswith("#98 #99")


def test_state_is_never_told_by_colour_alone() -> None:
    """Failures, retries and notes have signs of their own."""
    marks = {
        mark: text_of(
            notice_line(Notice(mark, 1, "a", "b"), Columns(1, 1, 1), 40, simulated=False),
        )[1]
        for mark in ("failed", "again", "note")
    }
    assert marks == {"failed": "✗", "again": "↻", "note": "!"}


def test_wide_characters_take_two_columns() -> None:
    """Names in any script are measured as a terminal shows them."""
    assert [cells("abc"), cells("数据"), cells("e\u0301")] == [3, 4, 1]
    assert [clip("数据集", 5), clip("数据集", 6), clip("abc", 0)] == ["数据…", "数据集", ""]
