"""Files that are damaged, or written to do harm: a screen shows what it can, a command refuses with a sentence."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.app.jobs.config import load_config
from stoker.app.jobs.context import SubmitContext
from stoker.app.jobs.job_files import ParsedJob, read_list
from stoker.app.jobs.job_spec import spec_of
from stoker.app.jobs.local_time import clock_text
from stoker.app.views.engines import read_statuses
from stoker.app.views.facts import QueueFacts
from stoker.app.views.gpus import gpus_of
from stoker.app.views.status import status_of
from stoker.cli.screens.gpus import render_gpus
from stoker.cli.screens.plain import DEVICE_COLUMNS, JOB_COLUMNS, plain_lines
from stoker.cli.screens.status import render_status
from stoker.core.device import Process, Reading
from stoker.core.errors import StokerError
from stoker.core.job import Running
from stoker.core.learning import Live
from stoker.core.planner.order import QueuePosition
from stoker.core.planner.queue import ReasonKey, job_kind_of
from stoker.core.planner.reasons import Leased, MemoryShort
from stoker.core.settings import EngineSettings, policy_of
from stoker.core.spec import Command, JobSpec, NewJob, Resources
from stoker.core.text import printable
from stoker.core.units import duration_text, parse_duration, parse_moment, parse_sim, parse_since, parse_size
from stoker.store.engine_lock import QUEUE, EngineLock
from stoker.store.paths import Paths
from stoker.store.reports import latest_text, read_latest, read_reports
from stoker.store.schema import Change
from stoker.store.status_file import EngineStatus, Wait, read_machine
from stoker.store.writer import Store, open_store
from support.build import GIB, a_job, a_lease, simulated
from support.hostile import hostile, mutated

NOW = 1_800_000_000.0
WAITING = JobSpec(Resources(1, 8 * GIB))
NEVER = SubmitContext(cwd="/w", umask=0o022, environment="", default_out="", resolve=str, now=NOW)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """A state directory that all inputs of this module share."""
    return Paths(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="module")
def store(paths: Paths) -> Iterator[Store]:
    """A queue with a running and a waiting job."""
    with contextlib.closing(open_store(paths)) as store:
        first, _ = store.add_jobs(
            store.add_batch("test", NOW), QUEUE, [NewJob(Command(("true",)), WAITING) for _ in range(2)], NOW
        )
        job = store.job(first)
        assert job is not None
        running = Running(1, "w 1", ("0",), NOW - 60.0)
        store.record([Change(msgspec.structs.replace(job, state=running), [])])
        yield store


def a_status_file() -> bytes:
    devices = simulated(24, 24)
    job_kind = job_kind_of(a_job(2, spec=WAITING))
    return msgspec.json.encode(
        EngineStatus(
            engine=QUEUE,
            label="stoker",
            pid=4711,
            version="1",
            since=NOW - 100.0,
            at=NOW,
            waiting=1,
            blocked=0,
            devices=devices,
            readings={"0": Reading(5 * GIB, 90, 60, 250.0, (Process(99, GIB, "bob", "x"),), "hot")},
            note="a note",
            trouble="a trouble",
            draining=False,
            leases=(a_lease("0"),),
            waits=(
                Wait(
                    ReasonKey(job_kind.resources, job_kind.priority),
                    Leased("0", "bob", "x", 2, MemoryShort(8 * GIB, GIB, "1", 1)),
                ),
            ),
            reserved=2,
            order=(
                QueuePosition(9, 1, 5, NOW - 90.0, 600.0, True, 1),
                QueuePosition(2, 1, 0, NOW - 90.0, 1800.0, False, 2, 3),
            ),
            starts={2: NOW + 60.0},
            ends={1: NOW + 50.0, 2: NOW + 70.0},
            empty=NOW + 70.0,
            uses={1: Live(GIB, 2 * GIB, 50)},
            settings=EngineSettings(),
        )
    )


@given(data=mutated(a_status_file()), lives=st.booleans())
@hostile
def test_a_status_file(paths: Paths, store: Store, data: bytes, lives: bool) -> None:
    """Every screen can be drawn, and printed as JSON and plain lines, whatever the file says."""
    paths.status_file(QUEUE).parent.mkdir(exist_ok=True)
    paths.status_file(QUEUE).write_bytes(data)
    read_machine(paths.status_file(QUEUE))
    with contextlib.closing(EngineLock(paths, QUEUE)) if lives else contextlib.nullcontext():
        statuses = read_statuses(paths, NOW + 1.0)
    facts = QueueFacts(store, statuses, NOW + 1.0, simulated=False)
    status, gpus = status_of(facts, "host", None), gpus_of(facts)
    for line in (*render_status(status, 80, 24), *render_gpus(gpus, 120)):
        assert all(printable(span.text) == span.text for span in line)
    for text in (*plain_lines(status.jobs, JOB_COLUMNS), *plain_lines(gpus.devices, DEVICE_COLUMNS)):
        assert "\x1b" not in text
    msgspec.json.encode(status)
    msgspec.json.encode(gpus)


REPORTS = b"""{"at":1800000000.0,"attempt":1,"values":{"loss":0.25,"note":"fine","steps":[1,2],"deep":{"a":1}}}
{"at":1800000001.5,"attempt":1,"done":3,"total":10}
"""


@given(data=mutated(REPORTS))
@hostile
def test_reports_of_a_job(paths: Paths, data: bytes) -> None:
    """Lines that cannot be read are skipped; the others can be printed."""
    file = paths.state / "reports.jsonl"
    file.write_bytes(data)
    read_reports(file)
    if latest := read_latest(file):
        assert isinstance(latest_text(latest), str)
        msgspec.json.encode(latest)


CONFIG = b"""max_use = 4
strangers = "avoid"
devices = "0,1"
idle_exit = "10m"
keep = "90d"
margin = "15%"
reserve = "512M"
secrets = ["*TOKEN*"]
[groups]
vision = 2
[defaults]
time = "8h"
retries = 1
[defaults.env]
A = "b"
"""


@given(data=mutated(CONFIG))
@hostile
def test_a_configuration_file(paths: Paths, data: bytes) -> None:
    """It is used, or refused with a sentence."""
    file = paths.state / "config.toml"
    file.write_bytes(data)
    with contextlib.suppress(StokerError):
        config = load_config({"HOME": str(paths.state)}, None, system=file)
        policy_of(config.engine, 8)
        config.origins()


JOB_FILES = {
    "jsonl": b"""{"command":["python","x.py"],"gpus":2,"time":"1h","env":{"A":"b"},"tag":{"k":"v"},"priority":-3}
{"command":"a | b","vram":"6G","retries":2,"begin":"22:00","array":"0-9%2","grace":"5s","retry_on":"oom,3"}
""",
    "toml": b"""[[job]]
command = ["python", "x.py"]
gpus = 2
time = "1h"
[[job]]
command = "a | b"
vram = "6G"
env = {A = "b"}
array = "0-9%2"
""",
    "csv": b"""command,gpus,time,vram,name,priority
python x.py,2,1h,6G,"a, b",5
"python ""z"" y.py",1,30m,auto,c,-1
""",
    "txt": b"""python x.py
# a comment
a \\
  b | c
""",
}


@pytest.mark.parametrize("suffix", JOB_FILES)
def test_a_job_file(paths: Paths, suffix: str) -> None:
    """Every job of it is usable, or the file or the row is refused with a sentence."""
    file = paths.state / f"jobs.{suffix}"

    @given(data=mutated(JOB_FILES[suffix]))
    @hostile
    def check(data: bytes) -> None:
        file.write_bytes(data)
        with contextlib.suppress(StokerError):
            for item in read_list(file, "/bin/sh"):
                if isinstance(item, ParsedJob):
                    with contextlib.suppress(StokerError):
                        spec_of(item.options, NEVER)
                else:
                    assert item.sentence

    check()


TYPED: dict[str, Callable[[str], object]] = {
    "size": parse_size,
    "duration": lambda text: duration_text(parse_duration(text)),
    "moment": lambda text: clock_text(parse_moment(text, NOW, UTC), NOW),
    "since": lambda text: clock_text(parse_since(text, NOW, UTC), NOW),
    "sim": parse_sim,
}
WORDS = (
    *("24G", "1.5GiB", "512M", "90s", "1h30m", "2-03:00:00", "01:02:03", "now+1hour", "+2h", "22:00", "10:30pm"),
    *("tomorrow noon", "yesterday", "2026-11-15T22:00", "20261115", "2026-11-15 22:00:01+05:30", "4x24G,2x80G"),
)


@pytest.mark.parametrize("kind", TYPED)
def test_what_a_user_types(kind: str) -> None:
    """A size, duration or date is understood or refused with a sentence."""

    @given(word=st.sampled_from(WORDS).flatmap(lambda word: mutated(word.encode())) | st.text(max_size=20).map(encoded))
    @hostile
    def check(word: bytes) -> None:
        with contextlib.suppress(StokerError):
            TYPED[kind](word.decode(errors="surrogateescape"))

    check()


def encoded(text: str) -> bytes:
    return text.encode(errors="replace")


def test_a_report_of_endless_depth(tmp_path: Path) -> None:
    """It is skipped like any other line that cannot be read."""
    file = tmp_path / "reports.jsonl"
    file.write_bytes(b'{"at":1,"values":{"x":' + b"[" * 100_000 + b"\n" + REPORTS)
    assert len(read_reports(file)) == 2
