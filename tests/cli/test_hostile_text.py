"""Foreign text reaches no terminal and no JSON raw, whichever field of a job holds it, and is escaped only once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.cli.main import run_cli
from stoker.cli.screens.text import Span, heading
from stoker.cli.top.app import Top
from stoker.cli.top.source import QueueReader
from stoker.core.device import Process, Reading
from stoker.core.job import Assigned, Exited, OnHold, Started
from stoker.core.spec import Command, JobSpec, NewJob, Resources
from stoker.core.text import printable, to_json
from stoker.core.units import LAST_GPUS
from stoker.store.engine_lock import QUEUE, EngineLock
from stoker.store.paths import paths_for
from stoker.store.queries import paused_key
from stoker.store.schema import Change
from stoker.web.api import ServedQueue
from support.build import GIB, a_lease
from support.past import PastQueue
from support.store import after, wanted
from support.textual_screen import screen_text, wait_for_text
from support.web import TOKEN, Browser

EVIL = "\x1b[31m\x1b]0;t\x07\n\r\t\u202e\u2066\u2028\u200f\udc80\x01\x9b2J\x7f"
"""Sequences, line ends, direction marks, a byte that is not UTF-8, and control characters of one byte and of two."""
ONCE = printable(EVIL)
IN_JSON = EVIL.replace("\udc80", "\\x80")
"""A program reads the same text, but for the byte."""
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
TWICE = re.compile(r"\\\\(?:x1b|n|r|t|u202e|x80|x7f)")
LETTER = "x"


def evil(field: str) -> str:
    """A text that shows in which field it was."""
    return f"{field}{EVIL}{LETTER}"


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PastQueue]:
    """A job that runs, one that failed, one that waits and one on hold, with foreign text in every field."""
    for name, value in (("STATE", str(tmp_path / "state")), ("SIM", "2x24G"), ("LEDGER", str(tmp_path / "ledger"))):
        monkeypatch.setenv(f"STOKER_{name}", value)
    monkeypatch.setenv("COLUMNS", "500")
    made = PastQueue(paths_for(LAST_GPUS).state, time.time())
    log = tmp_path / "log"
    log.write_bytes(os.fsencode(f"RuntimeError: {evil('line')}\n"))
    for number in range(4):
        _job(made, number, str(log))
    _write_status(made)
    made.store.put_setting(paused_key(QUEUE), {"note": evil("pause"), "at": made.now})
    with closing(EngineLock(made.paths, QUEUE)):
        yield made
    made.close()


def _job(made: PastQueue, number: int, log: str) -> None:
    environment = made.store.add_environment({"A": evil("value"), evil("variable"): "1"})
    spec = JobSpec(
        resources=Resources(memory=GIB, model=evil("model")),
        cwd=f"/{evil('cwd')}",
        environment=environment,
        extra_env=((evil("extra"), evil("extra")),),
        out=f"/{evil('out')}",
        group="a group",  # others are refused
        tags=((evil("tag"), evil("tag")),),
        commit=evil("commit"),
        notify=(f"json://{evil('notify')}",),
    )
    new = NewJob(Command(("python", evil("command"))), spec, evil("name"))
    (job_id,) = made.store.add_jobs(made.store.add_batch(evil("batch"), made.now), QUEUE, [new], made.now - 60)
    job = wanted(made.store, job_id)
    if number == 3:
        made.store.record([Change(msgspec.structs.replace(job, state=OnHold(made.now, evil("hold"))), [])])
        return
    if number == 2:
        return
    events: list[Any] = [
        Assigned("w - 0", ("0",), log, made.now - 50, resources=spec.resources),
        Started(1, made.now - 50),
    ]
    if number == 1:
        events.append(Exited(1, 3, 0, made.now - 10, note=evil("note"), said=evil("said")))
    made.store.record([after(job, events)])


def _write_status(made: PastQueue) -> None:
    """The engine's view, with foreign text from drivers and from other users."""
    devices = [msgspec.structs.replace(device, label=evil(device.id), model=evil("gpu")) for device in made.devices]
    process = Process(99, GIB, evil("owner"), evil("process"))
    reading = Reading(5 * GIB, 90, 60, 250.0, (process,), evil("problem"))
    lease = msgspec.structs.replace(a_lease("1"), owner=evil("lease"), what=evil("what"))
    fields = {"note": evil("reading"), "trouble": evil("trouble"), "label": evil("label"), "leases": (lease,)}
    status = made.status(devices=tuple(devices), readings={"1": reading}, at=time.time(), **fields)
    made.paths.engines.mkdir(exist_ok=True)
    made.paths.status_file(QUEUE).write_bytes(to_json(status))


def shown(words: list[str], capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Output and errors of a command, which must both be safe."""
    run_cli([*words])
    out, err = capfd.readouterr()
    for text in (out, err):
        assert not UNSAFE.search(text), (words, text)
    return out, err


SCREENS = [
    ["status"],
    ["status", "-a"],
    ["status", "--by-group"],
    ["status", "--by-user"],
    ["status", "1", "2", "3", "4", "--environment"],
    ["history"],
    ["history", "--timeline"],
    ["gpus"],
]
OTHERS = [
    ["history", "--csv"],
    ["history", "--timeline", "--svg", "-"],
    ["report", "--html", "-"],
    ["engine", "status"],
    ["engine", "config"],
    ["cancel", "--dry-run", "1", "3"],
    ["retry", "--dry-run", "2"],
    ["wait", "2"],
    ["cancel", evil("word")],
    ["status", evil("word")],
    ["status", "--tag", evil("word")],
    ["submit", "--dry-run", "--name", "n\x1b", "--", "echo", evil("typed")],
    ["run", "--dry-run", "--", "echo", evil("typed")],
    [evil("command")],
]
JSON = [
    *([*words, "--json"] for words in SCREENS if "--timeline" not in words),
    ["history", "--jsonl"],
    ["history", "--timeline", "--json"],
    ["logs", "--jsonl", "2"],
    ["engine", "status", "--json"],
    ["engine", "config", "--json"],
    ["wait", "2", "--json"],
    ["cancel", "--dry-run", "--json", "1"],
    ["retry", "--dry-run", "--json", "2"],
    ["submit", "--dry-run", "--json", "--", "echo", evil("typed")],
    ["run", "--dry-run", "--json", "--", "echo", evil("typed")],
    ["status", evil("word"), "--json"],
]


@pytest.mark.parametrize("form", ["--table", "--plain"])
@pytest.mark.parametrize("words", SCREENS, ids=" ".join)
def test_screens(queue: PastQueue, capfd: pytest.CaptureFixture[str], words: list[str], form: str) -> None:
    """Every screen shows foreign text as escapes."""
    out, err = shown([*words, form, "--color", "never"], capfd)
    assert "\\x1b[31m" in out or words[-1].startswith("--by")
    assert not TWICE.search(out + err)


@pytest.mark.parametrize("words", OTHERS, ids=lambda words: printable(" ".join(words)))
def test_other_text(queue: PastQueue, capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    """So do sentences about jobs, errors that repeat what was typed, pictures and pages."""
    out, err = shown(words, capfd)
    assert out or err
    assert not TWICE.search(out + err)


@pytest.mark.parametrize("words", JSON, ids=lambda words: printable(" ".join(words)))
def test_json(queue: PastQueue, capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    """All JSON is valid, and holds foreign text as it is, but for bytes that are not UTF-8."""
    out, _ = shown(words, capfd)
    values = [json.loads(line) for line in out.splitlines()]
    texts = list(texts_in(values))
    assert not any(TWICE.search(text) for text in texts)
    whole = [text for text in texts if "\x1b[31m" in text and words[0] != "logs"]  # of a log, each line is a text
    lines = [text.replace("; ", "\n") for text in whole]  # a title is one line
    assert all(IN_JSON in line.replace("\\udc80", "\\x80") for line in lines)  # the store has names so


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for part in pair for text in texts_in(part))
    elif isinstance(value, list):
        yield from (text for part in value for text in texts_in(part))


PATHS = ("session", "status", "jobs", "jobs/2", "jobs/2/log", "gpus", "timeline?since=1d", "history", "usage?since=1d")


@pytest.mark.parametrize("path", PATHS)
def test_api(queue: PastQueue, path: str) -> None:
    """The answers for the page are such JSON, too."""
    client = Browser(ServedQueue(queue.paths, evil("user")), Authorization=f"Bearer {TOKEN}")
    answer = client.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text
    assert not UNSAFE.search(answer.text)
    assert any(IN_JSON in text or EVIL[:5] in text for text in texts_in(answer.json()))


@pytest.mark.parametrize("key", ["1", "2", "3"])
def test_top(queue: PastQueue, key: str) -> None:
    """The live view draws escapes in its tables, details and log."""

    async def run() -> None:
        with closing(QueueReader(queue.paths)) as source:
            source.start()
            app = Top(source, readonly=False)
            async with app.run_test(size=(200, 60)) as pilot:
                await pilot.press(key)
                await wait_for_text(pilot, "\\x1b[31m")
                await pilot.press("enter")
                await pilot.pause(0.2)
                screen = screen_text(app)
                assert not UNSAFE.search(screen)
                assert not TWICE.search(screen)

    asyncio.run(run())


def test_a_span_is_escaped_before_its_width_counts() -> None:
    """No line of a screen can hold anything else."""
    assert Span(EVIL).text == ONCE
    assert Span(ONCE) == Span(EVIL)
    assert heading([EVIL], 200, simulated=False)[0].text == ONCE


def test_json_escapes_what_a_terminal_would_obey() -> None:
    """Direction marks and 8-bit control characters are valid in JSON, but are written as escapes."""
    written = to_json({"text": EVIL, "é": ["\ud800", ("\udcff", 1.5)]})
    assert not UNSAFE.search(written.decode())
    assert json.loads(written) == {"text": IN_JSON, "é": ["\\ud800", ["\\xff", 1.5]]}
    assert written == to_json(json.loads(written))
