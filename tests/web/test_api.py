"""The API answers in the shapes of --json, a page at a time, whatever jobs are called and write."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.app.views.gpus import Gpus
from stoker.app.views.job_details import SelectedJobs
from stoker.app.views.log import LogText
from stoker.app.views.model import Status
from stoker.app.views.pages import HistoryPage, JobsPage
from stoker.app.views.samples import GpuSamples, Series
from stoker.app.views.timeline import Timeline
from stoker.app.views.usage import Usage
from stoker.core.job import Paused
from stoker.core.spec import Command, Dependency, JobSpec, NewJob
from stoker.store.engine_lock import QUEUE
from stoker.store.schema import VERSION
from stoker.web.api import Session
from support.past import PastQueue
from support.store import after
from support.web import Browser, read, refusal

HOSTILE = '<script>alert("1")</script>'
SHAPES: dict[str, Any] = {
    "session": Session,
    "status": Status,
    "jobs": JobsPage,
    "jobs?state=all": JobsPage,
    "jobs?state=failed": JobsPage,
    "jobs/1": SelectedJobs,
    "jobs/1/log": LogText,
    "jobs/1/series": Series,
    "gpus": Gpus,
    "gpus/samples?hours=1": GpuSamples,
    "timeline?since=1d": Timeline,
    "history": HistoryPage,
    "usage?since=7d": Usage,
}


def labels(client: Browser, query: str = "") -> list[str]:
    return [line["label"] for line in read(client, f"jobs?{query}")["jobs"]]


@pytest.mark.parametrize("path", SHAPES)
def test_shapes(client: Browser, queue: PastQueue, tmp_path: Path, path: str) -> None:
    """Answers have the types whose schemas are in docs/schema; names stay text in JSON."""
    log = tmp_path / "1.log"
    log.write_text(f"{HOSTILE}\n")
    queue.ran(HOSTILE, "0", -60, -30, code=1, log=str(log), group=HOSTILE)
    queue.submit(HOSTILE)
    answer = client.get(f"/api/v1/{path}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    msgspec.json.decode(answer.content, type=SHAPES[path], strict=True)
    if path != "jobs/1/series" and path.startswith(("status", "jobs", "history")):
        assert HOSTILE in str(answer.json())


def test_a_queue_that_is_gone(client: Browser, queue: PastQueue) -> None:
    """It is told, and no request makes an empty one in its place."""
    read(client, "status")
    database = queue.paths.database
    database.rename(database.with_name("away"))
    for path in (*SHAPES, "../../metrics"):
        code, message = refusal(client, path)
        assert (code, message) == (503, f"the queue is gone: {database}"), path
    assert not database.exists()


def test_pages(client: Browser, queue: PastQueue) -> None:
    """A hundred lines each, which together are all jobs, each once, in every order."""
    spec = JobSpec()
    batch = queue.store.add_batch("many", queue.now)
    queue.store.add_jobs(batch, QUEUE, [NewJob(Command(("true",)), spec, f"n{i % 7}") for i in range(203)], queue.now)
    for number in (5, 70, 150):
        queue.attempt(queue.store.job(number) or queue.submit(), "0", -5, None)
    for sort in ("", "id", "-id", "name", "-priority", "state", "started", "seconds", "memory", "group", "submitted"):
        pages = [read(client, f"jobs?sort={sort}&page={page}") for page in (1, 2, 3)]
        assert [(len(page["jobs"]), page["pages"], page["total"]) for page in pages] == [
            (100, 3, 203),
            (100, 3, 203),
            (3, 3, 203),
        ]
        found = [line["id"] for page in pages for line in page["jobs"]]
        assert sorted(found) == list(range(1, 204)), sort
    assert labels(client)[:4] == ["5", "70", "150", "1"]
    assert labels(client, "sort=-id")[:2] == ["203", "202"]
    assert labels(client, "page=4") == []


def test_a_long_queue(client: Browser, queue: PastQueue) -> None:
    """Of 100,000 jobs a page is as small as of a hundred; the last page is there, too, and one job is found."""
    batch = queue.store.add_batch("many", queue.now)
    jobs = [NewJob(Command(("python", "train.py", "--seed", str(seed))), JobSpec()) for seed in range(100_000)]
    queue.store.add_jobs(batch, QUEUE, jobs, queue.now)
    answer = client.get("/api/v1/jobs", headers={"Accept-Encoding": "identity"})
    assert len(answer.content) < 100_000
    assert (answer.json()["pages"], answer.json()["total"]) == (1000, 100_000)
    assert labels(client, "page=1000") == [str(number) for number in range(99_901, 100_001)]
    assert labels(client, "sort=-id&page=2")[0] == "99900"
    assert labels(client, "search=--seed+77777") == ["77778"]
    assert len(read(client, "status")["jobs"]) == 100


def test_tasks_share_a_line(client: Browser, queue: PastQueue) -> None:
    """As long as they wait alike, unless each is wanted; a line stands for its first task."""
    batch = queue.store.add_batch("array", queue.now)
    tasks = [NewJob(Command(("true",)), JobSpec(), "", index) for index in range(5)]
    queue.store.add_jobs(batch, QUEUE, tasks, queue.now, array=True)
    queue.attempt(queue.store.job(2) or queue.submit(), "0", -5, None)
    page = read(client, "jobs")
    assert ([line["label"] for line in page["jobs"]], page["total"]) == (["1.1", "1.[0,2-4]"], 2)
    assert labels(client, "tasks=each&sort=id") == [f"1.{task}" for task in range(5)]
    assert read(client, "jobs/1.[0,2-4]")["jobs"][0]["label"] == "1.0"
    assert read(client, "jobs/1.3")["jobs"][0]["label"] == "1.3"


def test_filters(client: Browser, queue: PastQueue) -> None:
    """By state, group and text; ended jobs are lines with an end, and come last first."""
    queue.ran("good", "0", -60, -30, group="vision")
    queue.ran("bad", "1", -60, -20, code=3)
    queue.attempt(queue.submit("runs", group="vi*"), "0", -10, None)
    held = queue.submit("held 100%_!")
    queue.store.record([after(held, [Paused(queue.now, "held by you")])])
    batch = queue.store.add_batch("b", queue.now)
    behind = JobSpec(after=(Dependency(3),))
    queue.store.add_jobs(batch, QUEUE, [NewJob(Command(("sh", "-c", "echo x")), behind)], queue.now)
    assert labels(client) == ["3", "5", "4"] or labels(client) == ["3", "4", "5"]
    assert labels(client, "state=held") == ["4"]
    assert labels(client, "state=blocked") == ["5"]
    assert labels(client, "state=queued") == []
    assert sorted(labels(client, "state=running,blocked")) == ["3", "5"]
    assert labels(client, "state=done,failed") == ["2", "1"]
    assert labels(client, "state=all&sort=id") == ["1", "2", "3", "4", "5"]
    assert labels(client, "state=all&group=vision") == ["1"]
    assert labels(client, "state=all&group=vi*") == ["3"]
    assert labels(client, "search=100%25_!") == ["4"]
    assert labels(client, "search=python+train") == labels(client, "search=train.py") == ["3", "4"]
    assert labels(client, "search=echo+x") == ["5"]
    assert labels(client, "search=4") == ["4"]
    assert labels(client, "search=nothing+like+it") == []
    line = read(client, "jobs?state=failed")["jobs"][0]
    assert (line["state"], line["seconds"], line["devices"]) == ("failed", 40.0, ["1"])
    assert line["ended"] is not None
    past = read(client, "history?state=failed")
    assert ([one["label"] for one in past["jobs"]], past["total"], past["counts"]) == (["2"], 1, {"failed": 1})


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("jobs?state=purple", 400),
        ("jobs?sort=colour", 400),
        ("jobs?page=0", 400),
        ("jobs?page=x", 400),
        ("jobs?page=999999999999999999", 400),
        ("history?page=999999999999999999", 400),
        ("jobs?search=%00", 400),
        (f"history?search={'x' * 60_000}", 400),
        (f"jobs?group={'x' * 60_000}", 400),
        ("history?state=running", 400),
        ("history?since=yesteryear", 400),
        ("timeline?since=100&until=50", 400),
        ("gpus/samples?hours=nan", 400),
        ("jobs/7", 404),
        ("jobs/1.7", 404),
        ("jobs/all", 404),
        ("jobs/last", 404),
        ("jobs/name", 404),
        ("jobs/-1", 404),
        ("jobs/99999999999999999999", 404),
        ("jobs/1/log", 404),
        ("jobs/..%2F..%2Fetc%2Fpasswd/log", 404),
        ("jobs/%2e%2e/log", 404),
        ("jobs/1%00/log", 404),
        ("nothing", 404),
        ("../../etc/passwd", 404),
    ],
)
def test_bad_requests(client: Browser, queue: PastQueue, path: str, code: int) -> None:
    """They get an error in JSON with what is wrong and what to do."""
    queue.submit("name")
    assert refusal(client, path)[0] == code


def test_actions_are_checked(client: Browser) -> None:
    """What is no action, or names no job, changes nothing; a body may not be endless."""
    bad: list[Any] = [
        {},
        {"action": "delete", "jobs": ["1"]},
        {"action": "cancel", "jobs": "1"},
        {"action": "cancel", "jobs": ["all"]},
        {"action": "cancel", "jobs": ["*"]},
        {"action": "cancel", "jobs": ["1"], "force": True},
        {"action": "cancel", "jobs": ["1.[0-4]"]},
        {"action": "cancel", "jobs": [{"label": "*", "state": "held"}]},
        {"action": "cancel", "matching": {"count": 2**70}},
        {"action": "cancel", "matching": {"count": -1}},
        {"action": "priority", "jobs": []},
    ]
    for body in bad:
        assert client.post("/api/v1/actions", json=body).status_code == 400, body
    long = client.post("/api/v1/actions", content=b"[" * (3 * 2**20), headers={"Content-Type": "application/json"})
    assert (long.status_code, "too long" in long.text) == (400, True)
    deep = client.post("/api/v1/actions", content=b"[" * 100_000, headers={"Content-Type": "application/json"})
    assert deep.status_code == 400
    assert client.get("/api/v1/actions").status_code == 405


def test_all_jobs_that_match(client: Browser, queue: PastQueue) -> None:
    """Nothing is done to them if there are more than the user saw."""
    for number in range(150):
        queue.submit("mass" if number else "other")
    shown = read(client, "jobs?search=mass&tasks=each")
    assert (shown["total"], len(shown["jobs"])) == (149, 100)
    body = {"action": "cancel", "matching": {"search": "mass", "count": 148}}
    refused = client.post("/api/v1/actions", json=body)
    assert (refused.status_code, "more than 148" in refused.json()["error"]["message"]) == (400, True)
    assert queue.store.requests(QUEUE) == []


def test_the_tasks_of_an_array(client: Browser, queue: PastQueue) -> None:
    """They have a list of their own, with how many are in each state."""
    job = queue.submit("alone")
    batch = queue.store.add_batch("array", queue.now)
    tasks = [NewJob(job.command, job.spec, "task", index) for index in range(3)]
    queue.store.add_jobs(batch, "queue", tasks, queue.now, array=True)
    shown = read(client, "jobs?array=2&state=all&tasks=each&sort=id")
    assert [one["label"] for one in shown["jobs"]] == ["2.0", "2.1", "2.2"]
    assert shown["counts"] == {"waiting": 3}
    assert read(client, "jobs")["counts"] == {}


def test_environment(client: Browser, queue: PastQueue) -> None:
    """The names of variables are shown, and none of their values."""
    digest = queue.store.add_environment({"PLAIN": "visible", "API_TOKEN": "hidden"})
    batch = queue.store.add_batch("b", queue.now)
    spec = JobSpec(environment=digest)
    queue.store.add_jobs(batch, QUEUE, [NewJob(Command(("true",)), spec)], queue.now)
    answer = client.get("/api/v1/jobs/1")
    assert answer.json()["jobs"][0]["environment"] == {"API_TOKEN": "", "PLAIN": ""}
    assert "visible" not in answer.text


class TestLog:
    """A log comes in parts, as text, whatever is in it."""

    def test_parts(self, client: Browser, queue: PastQueue, tmp_path: Path) -> None:
        """Whole characters only, each byte once; a file that was rewritten is read from its start."""
        log = tmp_path / "log"
        log.write_bytes(b"\x1b[31m<b>red</b>\x1b[0m \xe2\x82\xac\xff end")
        queue.ran("job", "0", -60, None, log=str(log))
        text, offset = "", 0
        while offset < log.stat().st_size:
            part = read(client, f"jobs/1/log?offset={offset}&limit=7")
            assert part["offset"] == offset
            text, offset = text + part["text"], part["next"]
        assert text == "\x1b[31m<b>red</b>\x1b[0m €\ufffd end"
        assert read(client, "jobs/1/log?offset=-3")["text"] == "end"
        assert read(client, "jobs/1/log?offset=-6")["text"] == "\ufffd end"
        log.write_text("new")
        rewritten = read(client, f"jobs/1/log?offset={offset}")
        assert (rewritten["text"], rewritten["offset"], rewritten["ended"]) == ("new", 0, False)
        log.unlink()
        assert read(client, "jobs/1/log")["text"] == ""

    def test_a_gigabyte(self, client: Browser, queue: PastQueue, tmp_path: Path) -> None:
        """Only the part that was asked for is read, and never more than the limit."""
        log = tmp_path / "log"
        with log.open("wb") as file:
            file.truncate(2**30)
            file.seek(0, os.SEEK_END)
            file.write(b"the end\n")
        queue.ran("job", "0", -60, -1, log=str(log))
        part = read(client, "jobs/1/log?offset=-8")
        assert (part["text"], part["size"], part["ended"]) == ("the end\n", 2**30 + 8, True)
        assert read(client, "jobs/1/log?offset=5&limit=1000000000")["next"] == 5 + 256 * 1024

    def test_search_and_download(self, client: Browser, queue: PastQueue, tmp_path: Path) -> None:
        """All of a log can be searched, and had as a file."""
        text = "wandb: View run\n" + "step\n" * 50_000 + "the end\n"
        (tmp_path / "log").write_text(text)
        queue.ran("job", "0", -60, -1, log=str(tmp_path / "log"))
        found = read(client, "jobs/1/log/search?text=view+RUN")
        assert (found["offsets"], found["start"], found["size"]) == ([0], 0, len(text))
        assert read(client, "jobs/1/log/search?text=the+end&before=100")["offsets"] == []
        file = client.get("/api/v1/jobs/1/log/download")
        assert (file.text == text, "stoker-1-1.log" in file.headers["content-disposition"]) == (True, True)
        for bad in ("search", "search?text=", "search?text=%00", f"search?text={'x' * 2000}", "search?text=x&before=y"):
            assert refusal(client, f"jobs/1/log/{bad}")[0] == 400

    def test_attempts(self, client: Browser, queue: PastQueue, tmp_path: Path) -> None:
        """The last one is shown unless another is asked for; a pipe is not read."""
        os.mkfifo(tmp_path / "pipe")
        job = queue.ran("job", "0", -60, -50, code=-1, log=str(tmp_path / "pipe"))
        (tmp_path / "second").write_text("second")
        queue.attempt(job, "0", -40, -30, log=str(tmp_path / "second"))
        part = read(client, "jobs/1/log")
        assert (part["text"], part["attempt"], part["attempts"]) == ("second", 2, 2)
        assert read(client, "jobs/1/log?attempt=1")["text"] == ""
        assert refusal(client, "jobs/1/log?attempt=3")[0] == 404


def test_series(client: Browser, queue: PastQueue) -> None:
    """What a job reported becomes curves, without what is no number and of other attempts."""
    queue.ran("job", "0", -60, None)
    queue.paths.reports.mkdir()
    lines = [
        b'{"at": 1, "attempt": 1, "values": {"step": 1, "loss": 9}}',
        b'{"at": 2, "attempt": 2, "values": {"step": 1, "loss": 0.5, "name": "x", "flag": true}}',
        b'{"at": 3, "attempt": 2, "values": {"step": 2, "loss": null}, "done": 1, "total": 4}',
        b"not json",
        b'{"at": 4, "attempt": 2, "values": {"step": 3, "loss": 0.25}, "done": 9, "total": 4}',
    ]
    queue.paths.report(1).write_bytes(b"\n".join(lines))
    found = read(client, "jobs/1/series")
    assert found["metrics"] == {"loss": [[1, 0.5], [3, 0.25]]}
    assert (found["progress"], found["steps"]) == ([[3.0, 0.25], [4.0, 1.0]], True)


def test_metrics(client: Browser, queue: PastQueue) -> None:
    """Figures for Prometheus, with labels that cannot break the format."""
    queue.ran("bad", "0", -60, -30, code=3)
    queue.submit('a "job"\n')
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = answer.text.splitlines()
    assert 'stoker_jobs{state="waiting"} 1.0' in lines
    assert 'stoker_jobs_ended{result="failed"} 1.0' in lines
    assert "stoker_engine_up 0.0" in lines
    assert any(line.startswith('stoker_gpu_utilisation_ratio{gpu="0"') and line.endswith(" 0.5") for line in lines)


def test_a_newer_queue(client: Browser, queue: PastQueue) -> None:
    """It is not touched, and the answer says what to do."""
    with closing(sqlite3.connect(queue.paths.database)) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    for path in ("status", "jobs", "history", "usage"):
        code, message = refusal(client, path)
        assert (code, "newer Stoker" in message) == (503, True)
    assert client.get("/metrics").status_code == 503


def test_a_deleted_state_directory(client: Browser, queue: PastQueue) -> None:
    """The server says that the queue cannot be opened, and does not make a new one."""
    shutil.rmtree(queue.paths.state)
    for path in ("status", "jobs", "jobs/1", "history"):
        assert refusal(client, path)[0] == 503
    assert client.post("/api/v1/actions", json={"action": "cancel", "jobs": ["1"]}).status_code == 503
    assert not queue.paths.state.exists()
