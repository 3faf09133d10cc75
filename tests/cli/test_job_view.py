"""`stoker status ID` on a terminal, from data written by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stoker.app.jobs.local_time import to_datetime
from stoker.app.jobs.options import OPTIONS
from stoker.app.views.job import JobFacts, PastLine
from stoker.app.views.job_details import AttemptLine, EventLine, JobDetails, SelectedJobs
from stoker.app.views.pages import SelectedLines
from stoker.cli.screens.job import render_details, render_selected
from stoker.cli.screens.text import LABEL_COLUMNS, line_cells
from stoker.core.learning import LEAST_BYTES
from support.views import GIB, NOW, a_line, texts

EVIL = "a\x1b[31mb\nc\x07\u202ed"
ATTEMPT = AttemptLine(
    number=1,
    devices=["0", "1"],
    assigned=to_datetime(NOW - 100),
    started=to_datetime(NOW - 100),
    ended=to_datetime(NOW - 40),
    seconds=60.0,
    exit_code=None,
    signal=9,
    why="exited",
    peak_memory_bytes=GIB,
    note=EVIL,
    log="/state/logs/1.log",
    errors=None,
    reserved_bytes=10 * GIB,
    peak_vram_bytes=8 * GIB,
    utilisation_percent=87,
    vram_curve=[(0.0, GIB), (30.0, 4 * GIB), (60.0, 8 * GIB)],
)
DETAILS = JobDetails(
    **msgspec.structs.asdict(
        a_line(
            1,
            name=EVIL,
            command=f"python train.py {EVIL} " + "x" * 500,
            why=EVIL,
            vram_bytes=10 * GIB,
            vram_mode="size",
            reserved_bytes=12 * GIB,
            limit_seconds=3600.0,
            expected_start=to_datetime(NOW + 60),
        )
    ),
    directory=f"/home/{EVIL}",
    shell="/bin/sh",
    tags={"kind": EVIL},
    allowed=["0"],
    preferred=["1"],
    gpu_type="a100",
    after=["5 (ok)", "array 6 (any)"],
    begin=to_datetime(NOW + 30),
    grace_seconds=30.0,
    retries=2,
    retry_on=["oom", "3"],
    requeue=False,
    at_once=8,
    commit="3f2a1c*",
    exit_code=None,
    signal=None,
    note="",
    attempts=[ATTEMPT],
    events=[EventLine(to_datetime(NOW - 100), "assigned", f"GPU {EVIL}")],
    variables={"SEED": "4", "MY_TOKEN": "********"},
    environment={"HOME": f"/home/{EVIL}"},
    options={"tag": {"kind": EVIL}},
)
CHOSEN = SelectedJobs("", to_datetime(NOW), False, [DETAILS])


@pytest.mark.parametrize("width", [40, 80, 200])
def test_long_values_go_on_in_the_next_line(width: int) -> None:
    """Values go on in the next line, so that all of them can be read and copied."""
    heading, *lines = render_details(DETAILS, msgspec.structs.replace(CHOSEN, simulated=True), width)
    assert all(line_cells(line) <= width for line in lines[:20])
    shown = "".join(line.strip() for line in texts(lines))
    assert "x" * 500 in shown
    assert heading[0].text == " SIM "


def test_nothing_can_move_the_cursor() -> None:
    """Whatever the job's own words are."""
    assert all(text.isprintable() for text in texts(render_details(DETAILS, CHOSEN, 80)))


def test_everything_is_told() -> None:
    """Needs, limits, dependencies, attempts and how to see the output."""
    shown = "\n".join(texts(render_details(DETAILS, CHOSEN, 200, " --sim")))
    assert "1 GPU, 10.0G on each, type a100, only 0, 1 first" in shown
    assert "12.0G to be reserved" in shown
    assert "8.0/10G   87%  1.0G" in shown
    assert "▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄█ up to 8.0G in 0:01:00" in shown
    assert "1:00:00 run time, 8 of its executor at once, 2 retries (on oom, 3), not requeued after a crash" in shown
    task = "\n".join(texts(render_details(msgspec.structs.replace(DETAILS, label="12.3"), CHOSEN, 200)))
    assert "8 tasks of its array at once" in task
    assert "5 (ok), array 6 (any)" in shown
    assert "start now" in shown or "start at " in shown or "start tomorrow " in shown
    assert "3f2a1c, with changes that were not committed" in shown
    assert "SEED=4, MY_TOKEN=********" in shown
    assert "signal 9" in shown
    assert "1.0G" in shown
    assert "/state/logs/1.log" in shown
    assert "stoker logs --sim 1" in shown


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vram_mode": "auto", "reserved_bytes": None}, "not known yet: the first run is exclusive, to measure it"),
        ({"vram_mode": "auto", "reserved_bytes": 7 * GIB}, "7.0G to be reserved"),
        ({"vram_mode": "auto", "reserved_bytes": LEAST_BYTES}, "512M to be reserved: earlier runs used less"),
        ({"devices": ["0"], "reserved_bytes": 7 * GIB, "held_bytes": 5 * GIB}, "7.0G reserved, 5.0G in use"),
        ({"devices": ["0"], "reserved_bytes": None, "peak_vram_bytes": GIB}, "exclusive, peak 1.0G"),
        ({"devices": ["0"], "utilisation_percent": 40}, "12.0G reserved, GPU 40% busy"),
        ({"devices": ["0"], "ended": to_datetime(NOW), "peak_vram_bytes": GIB}, "12.0G reserved, peak 1.0G"),
        ({"speed": 0.85}, "speed      0.85 of its exclusive speed"),
        ({"ended": to_datetime(NOW), "advice": "there are larger GPUs"}, "advice     there are larger GPUs"),
    ],
)
def test_what_is_told_of_memory(fields: dict[str, Any], words: str) -> None:
    """What is or to be reserved, what is used, and what helps where that was too little."""
    assert words in "\n".join(texts(render_details(msgspec.structs.replace(DETAILS, **fields), CHOSEN, 120)))


def test_without_a_gpu_there_is_no_memory() -> None:
    """Nothing is told of it."""
    lines = texts(render_details(msgspec.structs.replace(DETAILS, vram_mode="none", gpus=0), CHOSEN, 120))
    assert not [line for line in lines if "set aside" in line]


def test_ended_jobs_have_columns_of_their_own() -> None:
    """A table of many jobs shows where each ran, its memory and how it ended, below those that are still open."""
    record = {name: getattr(DETAILS, name) for name in JobFacts.__struct_fields__}
    usual: dict[str, Any] = {"command": "python train.py --seed 1", "name": "", "state": "done", "devices": ["2"]}
    past: dict[str, Any] = {
        "exit_code": 0,
        "signal": None,
        "note": "",
        "wait_seconds": 1.0,
        "gpu_hours": 0.1,
        "attempts": 1,
    }
    past |= {"peak_memory_bytes": None, "directory": "/", "commit": "", "tags": {}, "log": None}
    ran: dict[str, Any] = {"ended": to_datetime(NOW), "run_seconds": 61.0, "peak_vram_bytes": 4 * GIB}
    ended = [PastLine(**record | usual | past | ran | {"label": f"7.{task}"}) for task in range(5)]
    waiting = msgspec.structs.replace(DETAILS, state="queued", name="", command="true", why="", label="7.5")
    all_ended = SelectedLines(to_datetime(NOW), {"done": 5}, [], ended)
    assert texts(render_selected(all_ended, 100, "", simulated=False))[0] == "5 jobs: 5 done"
    both = SelectedLines(to_datetime(NOW), {"done": 5, "queued": 3}, [waiting], ended)
    lines = texts(render_selected(both, 100, "", simulated=False))
    assert lines[0] == "8 jobs: 5 done, 3 queued"
    assert "7.5" in lines[2]
    assert lines[4].split() == ["ID", "STATE", "EXIT", "GPU", "PEAK", "RAN", "ENDED", "NAME", "/", "NOTE"]
    assert lines[5].split()[:6] == ["7.0", "done", "0", "2", "4.0/12G", "0:01:01"]
    assert lines[-1] == " … 2 more (stoker status -a ID...); details: stoker status 7.5"
    short = msgspec.structs.replace(all_ended, ended=[msgspec.structs.replace(job, run_seconds=0.0) for job in ended])
    assert " 0:00:00 " in texts(render_selected(short, 100, "", simulated=False))[2]


def test_the_end_of_the_log() -> None:
    """The last lines of the output follow the command that shows all of it."""
    details = msgspec.structs.replace(DETAILS, output=("epoch 1/3", "loss \x1b[31mnan"))
    assert texts(render_details(details, CHOSEN, 80))[-3:] == [
        " its output: stoker logs 1",
        "   epoch 1/3",
        "   loss \\x1b[31mnan",
    ]


def test_labels_of_options_do_not_touch_their_values() -> None:
    assert [option.label for option in OPTIONS if len(option.label) >= LABEL_COLUMNS] == []
