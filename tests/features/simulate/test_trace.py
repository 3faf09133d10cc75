"""Traces and tables of models, as people have them in files."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from stoker.core.errors import UsageError
from stoker.features.simulate.trace import SAMPLE, read_models, read_trace
from stoker.features.simulate.workload import MEASURED_PEAKS, TraceJob, extract, offered_load

PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,8,23608.0,6214e9
"""
GIB = 2**30


def rows(tmp_path: Path, text: str | bytes) -> list[TraceJob]:
    """What is read of a file with this text."""
    path = tmp_path / "trace.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path)


def test_microsofts_trace_is_read_as_it_is(tmp_path: Path) -> None:
    """Moments become seconds, clusters stand for users, and the order of the file stays."""
    first, second = rows(tmp_path, PHILLY)
    assert (first.seconds, first.gpus, first.user) == (66.0, 1, "11cb48")
    assert (second.gpus, first.arrival - second.arrival) == (8, 48 * 60 + 52)


def test_all_columns_go_by_their_names(tmp_path: Path) -> None:
    """In any order and in any case; what is empty is as good as missing."""
    text = "Name,LOAD,vram,submit,user,gpus,duration\ntrain,35%,6G,12.5,ann,2,90\n,,,13,,,90\n"
    assert rows(tmp_path, text) == [TraceJob(12.5, 90.0, 2, "ann", 6 * GIB, 35, "train"), TraceJob(13.0, 90.0)]


@pytest.mark.parametrize(
    ("moment", "seconds"),
    [("1970-01-01T00:01:00Z", 60.0), ("1970-01-01 01:00:00+01:00", 0.0), ("1970-01-02", 86400.0), ("-5", -5.0)],
)
def test_moments(tmp_path: Path, moment: str, seconds: float) -> None:
    """ISO in its usual forms, in universal time where no other is named; or seconds."""
    assert rows(tmp_path, f"arrival,duration\n{moment},1\n")[0].arrival == seconds


def test_marks_of_other_programs_do_not_matter(tmp_path: Path) -> None:
    """A byte order mark, Windows' line ends, empty lines and cells that are left off at the end."""
    text = b"\xef\xbb\xbfarrival,duration,gpus\r\n0,5,2\r\n\r\n1,6\r\n"
    assert rows(tmp_path, text) == [TraceJob(0.0, 5.0, 2), TraceJob(1.0, 6.0)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("soon,5", "arrival is 'soon'"),
        ("nan,5", "arrival is 'nan'"),
        ("1e999,5", "arrival is '1e999'"),
        ("0,-5", "duration is '-5'"),
        ("0,inf", "duration is 'inf'"),
        ("0,", "duration is ''"),
        ("0,5,-1", "gpus is '-1'"),
        ("0,5,1.5", "gpus is '1.5'"),
        ("0,5,inf", "gpus is 'inf'"),
        ("0,5,1,lots", "memory is 'lots'"),
        ("0,5,1,0G", "memory is '0G'"),
        ("0,5,1,4G,120", "load is '120'"),
    ],
)
def test_a_line_that_cannot_be_is_named(tmp_path: Path, line: str, said: str) -> None:
    """With the file, the number of the line, and what was expected."""
    with pytest.raises(UsageError, match="not a") as refused:
        rows(tmp_path, f"arrival,duration,gpus,vram,load\n0,1,1,1G,1\n{line}\n")
    assert f"trace.csv:3: {said}" in refused.value.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("duration,gpus\n5,1\n", "has no column for the arrival"),
        ("arrival,gpus\n5,1\n", "has no column for the duration"),
        ('arrival,duration\n0,"' + "x" * 200_000 + '"\n', "field larger than"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """The error lists the columns that the file has."""
    with pytest.raises(UsageError, match=said):
        rows(tmp_path, text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A directory, too."""
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read_trace(path)
        with pytest.raises(UsageError, match="cannot be read"):
            read_models(path)


def test_gavels_measurements_become_models_and_speeds(tmp_path: Path) -> None:
    """Shares of the speed alone; a pair that did not fit together is left to the law, and unknown families out."""
    lm, big, odd = "('LM (batch size 5)', 1)", "('LM (batch size 80)', 1)", "('Novel', 1)"
    table = {
        lm: {"null": 100.0, big: [60.0, 10.0], odd: [0.0, 0.0]},
        big: {"null": 20.0, lm: [10.0, 60.0]},
        odd: {"null": 5.0},
        "('LM (batch size 5)', 2)": {"null": 150.0},
    }
    path = tmp_path / "gavel.json"
    path.write_text(json.dumps({"v100": table, "k80": {}}))
    models = read_models(path)
    names = [model.name for model in models.table]
    assert names == ["LM (batch size 5)", "LM (batch size 80)", *(model.name for model in MEASURED_PEAKS)]
    assert models.table[0].memory < models.table[1].memory
    assert models.pairs == {
        ("LM (batch size 5) on 1", "LM (batch size 80) on 1"): 0.6,
        ("LM (batch size 80) on 1", "LM (batch size 5) on 1"): 0.5,
    }


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"v100": {"x": {"null": 1}}}', '{"v100": {"(1, 2)": {}}}'])
def test_another_file_is_no_table_of_models(tmp_path: Path, text: str) -> None:
    """The error says what is expected."""
    path = tmp_path / "models.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="has no throughputs") as refused:
        read_models(path)
    assert "gavel_throughputs.json" in refused.value.hint


HISTORY = "ID,STATE,GPUS,DEVICES,VRAM,PEAK_VRAM,UTIL,SUBMITTED,RAN,DIRECTORY,NAME,COMMAND"


def test_a_history_is_read_as_it_is_printed(tmp_path: Path) -> None:
    """What was asked for is no peak; runs of one program are one kind; a job that never ran took no time."""
    lines = (
        HISTORY,
        '1,done,2,"0,1",auto,6000000000,80,2026-11-17T04:00:00Z,90,/a,x,train.py --seed 1',
        "2,failed,1,0,all,,,2026-11-17T04:00:10Z,5,/a,y,train.py --seed 2",
        "3,skipped,1,,all,,,2026-11-17T04:00:20Z,,/b,,eval.py",
    )
    jobs = rows(tmp_path, "\n".join(lines))
    assert [job.arrival - jobs[0].arrival for job in jobs] == [0, 10, 20]
    assert [(job.seconds, job.gpus, job.memory, job.load) for job in jobs] == [
        (90, 2, 6_000_000_000, 80), (5, 1, None, None), (0, 1, None, None)
    ]  # fmt: skip
    assert [job.devices for job in jobs] == [("0", "1"), ("0",), ()]
    assert jobs[0].kind == jobs[1].kind != jobs[2].kind


def test_a_history_without_its_durations_is_refused(tmp_path: Path) -> None:
    """The column that is missing is named."""
    with pytest.raises(UsageError, match="no column for the duration"):
        rows(tmp_path, "SUBMITTED,GPUS\n2026-11-17T04:00:00Z,1\n")


def test_the_sample_is_what_its_program_writes() -> None:
    """Its jobs keep a machine of eight GPUs busy, but not more than busy."""
    program = runpy.run_path(str(Path(__file__).parents[3] / "docs" / "make_sample_trace.py"))
    assert SAMPLE.read_text() == program["sample"]()
    jobs = read_trace(SAMPLE)
    assert len(jobs) == 400
    assert 0.7 < offered_load(extract(jobs), 8) < 1.0
