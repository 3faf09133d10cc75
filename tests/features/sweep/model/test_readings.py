"""Values in log lines, JSON lines, CSV and reports, however the bytes arrive."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isnan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.features.sweep.model.objective import parse_objective
from stoker.features.sweep.model.readings import LONGEST_LINE, LineSplitter, Reading, reader_for, readings_in_reports

LOG = "\x1b[32mepoch 1\x1b[0m val_loss=0.5\r\nepoch 2:  10%|#  |\repoch 2: val_loss=4e-1\nnothing\nepoch 3 val_loss=nan"


def readings(text: str, data: bytes | str, *cuts: int) -> tuple[list[Reading], str]:
    """All readings of an objective, where the data arrives in pieces, and the notice."""
    raw = data.encode() if isinstance(data, str) else data
    lines, reader = LineSplitter(), reader_for(parse_objective(text))
    places = [0, *sorted(cut % (len(raw) + 1) for cut in cuts), len(raw)]
    found = [line for begin, end in pairwise(places) for line in lines.feed(raw[begin:end])]
    return [value for line in (*found, *lines.finish()) if (value := reader.read(line))], reader.notice


@settings(max_examples=50, derandomize=True)
@given(st.lists(st.integers(0, 200), max_size=6))
def test_a_log_may_arrive_in_any_pieces(cuts: list[int]) -> None:
    """Colours, carriage returns, line ends of Windows, nan, and a last line without an end."""
    found, notice = readings("regex:val_loss=([-+.0-9a-z]+)", LOG, *cuts)
    assert [value for value, _ in found[:2]] == [0.5, 0.4]
    assert isnan(found[2][0])
    assert (len(found), notice) == (3, "")


@pytest.mark.parametrize(
    ("pattern", "line", "expected"),
    [
        (r"loss=(\S+)", "loss=3 loss=2", [(2.0, None)]),
        (r"step (?P<step>\d+).*loss=(?P<value>\S+)", "step 40 loss=-inf", [(-inf, 40.0)]),
        (r"step (?P<step>\d+) .*loss=(\S+)", "step 40 loss=2", [(2.0, 40.0)]),
        (r"[0-9.]+$", "loss 0.25", [(0.25, None)]),
        (r"loss=(\S+)", "loss=oops", []),
        (r"loss=(\S+)?", "loss=", []),
    ],
)
def test_what_a_pattern_finds(pattern: str, line: str, expected: list[Reading]) -> None:
    """The last match of a line counts; what is no number is left out; both are told."""
    found, notice = readings(f"x=regex:{pattern}", line)
    assert found == expected
    assert bool(notice) == (line.count("loss=") > 1 or not expected)


def test_json_lines() -> None:
    """Nested keys, steps, Python's NaN, rows of other things, and damage."""
    rows = [
        '{"step": 10, "eval": {"loss": 0.5}}',
        '{"epoch": 2, "eval.loss": NaN, "text": "a: NaN, b"}',
        '{"step": 11, "train": 1}',
        '{"eval": {"loss": "0.25"}}',
        "[1, 2]",
        '{"step": ',
    ]
    found, notice = readings("eval.loss=jsonl:x", "\n".join(rows))
    assert (found[0], found[2], len(found)) == ((0.5, 10.0), (0.25, None), 3)
    assert isnan(found[1][0])
    assert found[1][1] == 2.0
    assert "not JSON" in notice


def test_csv() -> None:
    """Columns by name; a header may come again; short rows and empty cells have no value."""
    text = 'epoch, "loss",note\n1,0.5,"a, b"\n2,,x\n3\nepoch,loss\n4,1e-3\n'
    assert readings("loss=csv:x", text) == ([(0.5, 1.0), (0.001, 4.0)], "")
    found, notice = readings("acc=csv:x:max", text)
    assert found == []
    assert "no column acc" in notice


def test_reports() -> None:
    """What is no number is left out."""
    rows: list[dict[str, Any]] = [{"step": 1, "loss": 0.5}, {"loss": True}, {"loss": "nan", "step": "2"}, {"other": 1}]
    found = list(readings_in_reports(rows, "loss"))
    assert found[0] == (0.5, 1.0)
    assert isnan(found[1][0])
    assert len(found) == 2


def test_a_line_without_end_is_cut() -> None:
    """A binary log cannot fill the memory."""
    lines = LineSplitter()
    for _ in range(5):
        assert lines.feed(b"x" * LONGEST_LINE) == []
    assert [len(line) for line in lines.feed(b"\n")] == [LONGEST_LINE]


@settings(max_examples=100, derandomize=True)
@given(st.binary(max_size=300), st.sampled_from(["x=regex:([0-9.]+)", "x=jsonl:f", "x=csv:f", "a.b=jsonl:f"]))
def test_any_bytes_are_read(data: bytes, text: str) -> None:
    """Files of jobs are not trusted: nothing raises."""
    for value, step in readings(text, data)[0]:
        assert isinstance(value, float)
        assert step is None or isinstance(step, float)
