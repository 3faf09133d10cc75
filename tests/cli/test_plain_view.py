"""Lines for programs, and what the documents say of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stoker.app.views.job import JobLine
from stoker.cli.screens.plain import (
    DEVICE_COLUMNS,
    GROUP_COLUMNS,
    JOB_COLUMNS,
    PAST_COLUMNS,
    USER_COLUMNS,
    Columns,
    plain_lines,
)
from support.views import GIB, a_device, a_line, a_running_line

TEXT = (Path(__file__).parents[2] / "docs/output.md").read_text()


@pytest.mark.parametrize(
    ("verb", "columns"),
    [
        ("status", JOB_COLUMNS),
        ("status --by-group", GROUP_COLUMNS),
        ("status --by-user", USER_COLUMNS),
        ("history", PAST_COLUMNS),
        ("gpus", DEVICE_COLUMNS),
    ],
)
def test_every_column_is_in_the_documents(verb: str, columns: Columns) -> None:
    """In the order in which they are printed."""
    _, section = TEXT.split(f"## `stoker {verb} --plain`", 1)
    named = re.findall(r"^\| ([A-Z_]+) \|", section.split("\n## ")[0], re.MULTILINE)
    assert named == list(columns)


def fields(job: JobLine) -> dict[str, str]:
    """A job's fields by the names of their columns."""
    header, line = plain_lines([job], JOB_COLUMNS)
    return dict(zip(header.split("\t"), line.split("\t"), strict=True))


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (
            a_running_line(vram_mode="auto", reserved_bytes=7 * GIB, used_bytes=9, peak_vram_bytes=GIB, speed=0.853),
            ("auto", str(7 * GIB), "9", str(GIB), "-", "0.85"),
        ),
        (a_line(vram_mode="size", vram_bytes=GIB, reserved_bytes=GIB), (str(GIB), str(GIB), "-", "-", "-", "-")),
        (a_running_line(utilisation_percent=40), ("all", "-", "-", "-", "40", "-")),
        (a_line(vram_mode="none", gpus=0), ("-", "-", "-", "-", "-", "-")),
    ],
)
def test_memory_of_jobs(job: JobLine, expected: tuple[str, ...]) -> None:
    """Asked for, set aside, used, and used at most; what is not known is a dash."""
    told = fields(job)
    assert tuple(told[name] for name in ("VRAM", "RESERVED", "USED", "PEAK_VRAM", "UTIL", "SPEED")) == expected


def test_speeds_of_devices() -> None:
    """Only where they are known."""
    header, *lines = plain_lines([a_device(combined_speed=1.7), a_device()], DEVICE_COLUMNS)
    place = header.split("\t").index("SPEED")
    assert [line.split("\t")[place] for line in lines] == ["1.70", "-"]
