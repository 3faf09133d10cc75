"""`stoker history` of real jobs, and of many that are written down."""

from __future__ import annotations

import csv
import io
import time

import msgspec
import pytest

from stoker.app.views.history import History
from stoker.app.views.job import PastLine
from stoker.cli.screens.job import render_history
from stoker.cli.screens.text import line_cells
from stoker.core.job import Assigned, Event, Exited, Started, advance
from stoker.core.spec import Resources
from stoker.store.engine_lock import QUEUE
from stoker.store.schema import Change
from support.background import Background
from support.cli import until
from support.terminal import open_terminal
from support.views import texts


def history(queue: Background, *words: str) -> History:
    """What is over, as programs are told."""
    outcome = queue("history", "--json", *words)
    assert outcome.code == 0, outcome.err
    return msgspec.json.decode(outcome.out, type=History)


def write_past(queue: Background, count: int, *, ended: float, code: int = 0, name: str = "") -> list[int]:
    """Jobs that ran for an hour on one GPU, one after the other."""
    ids = queue.submit(*["python train.py"] * count, names=[name] * count, start=False)
    with queue.open_store() as store:
        changes = []
        for number, job_id in enumerate(ids):
            at = ended - count + number
            job = store.job(job_id)
            assert job is not None
            events: list[Event] = [Assigned("k", ("SIM-0",), "/log", at), Started(1, at - 3600), Exited(1, code, 0, at)]
            for event in events:
                job = advance(job, event)
            changes.append(Change(job, [(1, event) for event in events]))
        store.record(changes)
    return ids


def test_what_really_ran(background: Background) -> None:
    """Each with how it ended, where it ran and where its output is; newest last."""
    good, bad = background.submit("true", "exit 3", names=["good", "bad"], resources=Resources(allowed=("SIM-1",)))
    background.wait_over(good, bad)
    seen = history(background)
    assert [(job.id, job.name, job.state, job.exit_code) for job in seen.jobs] == [
        (good, "good", "done", 0),
        (bad, "bad", "failed", 3),
    ]
    assert [job.devices for job in seen.jobs] == [["1"], ["1"]]
    assert seen.jobs[0].log == str(background.cwd / f"{good}.log")
    assert seen.counts == {"done": 1, "failed": 1}
    assert seen.simulated


def test_by_time_and_end(background: Background) -> None:
    """The sums are about the chosen jobs."""
    now = time.time()
    write_past(background, 2, ended=now - 2 * 86400)
    write_past(background, 3, ended=now - 60)
    write_past(background, 1, ended=now - 60, code=1)
    assert history(background).gpu_hours == pytest.approx(6.0)
    recent = history(background, "--since", "1d")
    assert (recent.counts, round(recent.gpu_hours, 3)) == ({"done": 3, "failed": 1}, 4.0)
    for words in ("failed,oom", "F", "FAILED"):
        assert [job.state for job in history(background, "--state", words).jobs] == ["failed"]
    assert history(background, "--since", "1h", "--state", "lost").jobs == []


@pytest.mark.parametrize(
    ("words", "hint"), [(("--state", "fail"), "did you mean failed?"), (("--since", "soonish"), "2h, 1d")]
)
def test_bad_input(background: Background, words: tuple[str, ...], hint: str) -> None:
    """What is wrong, and how it is written."""
    outcome = background("history", *words)
    assert outcome.code == 2
    assert hint in outcome.err


def test_the_newest_are_shown_and_the_others_counted(background: Background) -> None:
    """The newest come last; what is hidden is told beside the lines, with the command that shows it."""
    ids = write_past(background, 250, ended=time.time())
    outcome = background("history")
    lines = outcome.out.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["ID", *map(str, ids[50:])]
    assert outcome.err == "stoker: 50 older (stoker history -a)\n"
    assert len(background("history", "-a").out.splitlines()) == 251
    assert [job.id for job in history(background, "-n", "3").jobs] == ids[-3:]
    assert history(background, "-n", "3").hidden == 247


def test_for_a_spreadsheet(background: Background) -> None:
    """Commas, quotes and line ends in names stay inside their field."""
    write_past(background, 1, ended=time.time(), name='a,"b"\n=c')
    write_past(background, 1, ended=time.time(), name="=1+1")
    rows = list(csv.DictReader(io.StringIO(background("history", "--csv").out)))
    assert [row["NAME"] for row in rows] == ['a,"b"\\n=c', "'=1+1"]
    assert [row["GPU_HOURS"] for row in rows] == ["1.0000", "1.0000"]


def test_one_value_for_each(background: Background) -> None:
    """A stream of all, however many, each as in the one value."""
    write_past(background, 210, ended=time.time())
    lines = background("history", "--jsonl").out.splitlines()
    jobs = [msgspec.json.decode(line, type=PastLine) for line in lines]
    assert len(jobs) == 210
    assert jobs[-200:] == history(background).jobs


def labels(background: Background, *words: str) -> set[str]:
    """Ids of the jobs that are shown; those that ran at once may end in any order."""
    return {job.label for job in history(background, *words).jobs}


def test_ids_and_names(background: Background) -> None:
    """With ids or names, only these jobs are shown; one that has not ended is told of."""
    array, *tasks = background.submit("exit 0", "exit 1", "exit 2", array=True)
    single, running = background.submit("true", until("gate"), names=["fit", ""])
    background.wait_over(array, *tasks, single)
    assert labels(background, str(array)) == {f"{array}.{task}" for task in range(3)}
    assert labels(background, f"{array}.[1-2]", "--state", "failed", str(single)) == {f"{array}.1", f"{array}.2"}
    assert [job.id for job in history(background, "fit").jobs] == [single]
    outcome = background("history", str(running), "--csv")
    assert len(outcome.out.splitlines()) == 1
    assert f"1 job not finished yet: stoker status {running}" in outcome.err


def test_an_empty_history(background: Background) -> None:
    """It is no error."""
    assert background("history").out.splitlines()[0].startswith("ID\tST")
    assert history(background).jobs == []
    background.submit("true", start=False)
    assert history(background).jobs == []


def test_a_job_that_was_cancelled_before_it_ran(background: Background) -> None:
    """It has an end, and neither devices nor a log."""
    from stoker.core.job import Cancelled

    (job_id,) = background.submit("true", start=False)
    with background.open_store() as store:
        job = store.job(job_id)
        assert job is not None
        event = Cancelled(time.time(), "cancelled by you")
        store.record([Change(advance(job, event), [(0, event)])])
        assert store.owner(job_id) == QUEUE
    (line,) = history(background).jobs
    assert (line.state, line.devices, line.log, line.note) == ("cancelled", [], None, "cancelled by you")


def test_nothing_is_wider_than_the_terminal(background: Background) -> None:
    """Whatever the names are, and they cannot move the cursor."""
    write_past(background, 30, ended=time.time(), code=1, name="名\x1b[2J\n" * 30)
    seen = history(background)
    for width in (20, 40, 80, 120, 200):
        frame = render_history(seen, width)
        assert max(map(line_cells, frame)) <= width
        assert "".join(texts(frame)).isprintable()


def test_on_a_terminal(background: Background) -> None:
    """As many as there is room for, with the sum of all in the last line."""
    ids = write_past(background, 100, ended=time.time())
    names = ("STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM", "PATH")
    variables = {name: background.environment[name] for name in names}
    with open_terminal(background.home, **variables, LINES="24") as terminal:
        terminal.start(["stoker", "history"], 80, 25)
        screen = terminal.wait_for("exit code 0")
    assert screen.startswith(" SIM  finished jobs on ")
    assert f" {ids[-1]} " in screen
    assert "… 80 older (stoker history -a) · 100 done · 100.00 GPU-hours" in screen


def test_an_array_is_one_line_of_the_table(background: Background) -> None:
    """With its results and why it failed; `--tasks` shows each, and so do lines for programs."""
    array, *_ = background.submit("true", "echo ValueError: bad; exit 1", array=True, names=["sweep"] * 2)
    background.wait_over(array, array + 1)
    table = background("history", "--table", COLUMNS="100").out
    assert f"{array}.[0-1]" in table
    assert "1 done, 1 failed: sweep (ValueError: bad)" in table
    expanded = background("history", "--table", "--tasks", COLUMNS="100").out
    assert f"{array}.1 " in expanded
    assert "sweep (ValueError: bad)" in expanded
    # The later minute comes first, so the order is open if the tasks end in two minutes.
    notes = {line.label: line.note for line in history(background).jobs}
    assert notes == {f"{array}.0": "", f"{array}.1": "ValueError: bad"}
    assert "1.1" not in background("history", "--state", "done").out
    assert background("history", "--state", "running").code == 2


def test_jobs_that_end_in_the_same_minute_are_in_the_order_of_their_ids(background: Background) -> None:
    """The table shows minutes; within one, the order of the seconds looked like none."""
    now = time.time() // 60 * 60
    write_past(background, 2, ended=now + 30)
    write_past(background, 2, ended=now + 10)
    write_past(background, 1, ended=now - 60)
    ids = [line.split()[0] for line in texts(render_history(history(background), 80))[2:-1]]
    assert ids == ["5", "1", "2", "3", "4"]
