"""Users who publish lies and junk for their group: others still see who has what, and work goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import date

import pytest

from features.lab.people import Person, people
from support import ledger_programs as programs
from support.ledger_files import lease_name
from support.users import next_line, run_as, running_as
from support.wait import wait_until

ESCAPE = "\x1b[2Jhacked"
JUNK_FILES = 3000


@pytest.fixture
def three() -> Iterator[list[Person]]:
    with people(3) as users:
        yield users


def name_of(person: Person, kind: str) -> str:
    return lease_name(person.user.uid).replace(".lease", f".{kind}")


def board(pid: int, job: str) -> str:
    """A board that tells of a job that runs since 1970."""
    told = {"job": job, "pid": pid, "since": 0.0, "utilisation": 100, "title": ESCAPE}
    waiting = [{"jobs": 2**53, "gpus": 4096, "since": 0.0}]
    return json.dumps({"version": 1, "jobs": [told], "waiting": waiting, "more": 2**53})


def usage(queue: str, hours: float) -> str:
    today = date.today().toordinal()
    days = [[day, ESCAPE, hours, 0.0, 100.0] for day in (today, today, 719163, date(2090, 1, 1).toordinal())]
    return json.dumps({"version": 1, "queue": queue, "at": 3.9e9, "gpus": days, "groups": [[today, ESCAPE, 0, 1e15]]})


def test_a_board_claims_nothing(three: list[Person]) -> None:
    """It adds neither jobs nor names to leases of others; what it says of waiting jobs is its user's."""
    alice, evil, newcomer = three
    alice.do("submit", "--", "sleep", "1000")
    wait_until(lambda: any(job.utilisation_percent is not None for job in newcomer.lab().jobs))
    (job,) = newcomer.lab().jobs
    ledger = newcomer.home.parent / "ledger"
    with ExitStack() as planting:
        for person in (alice, evil):
            name, contents = name_of(person, "board"), board(job.pid, job.job)
            next_line(planting.enter_context(running_as(evil.user, programs.plant, ledger, name, contents)))
        lab = newcomer.lab()
    assert [(line.user, line.gpus, line.title, line.since) for line in lab.jobs] == [
        (alice.user.name, job.gpus, "", job.since)
    ]
    assert {line.user for line in lab.waiting} == {evil.user.name}
    assert len(lab.notes) == 1


def test_hostile_files_of_a_group(three: list[Person]) -> None:
    """Lies of a user stay within bounds, and hide no figure of others; no screen prints an escape sequence."""
    alice, evil, newcomer = three
    alice.do("submit", "--", "sleep", "2")
    alice.do("wait", "last")
    alice.do("engine", "stop")
    honest = newcomer.usage().totals
    assert [(total.user, total.gpu_hours > 0) for total in honest] == [(alice.user.name, True)]
    ledger = newcomer.home.parent / "ledger"
    run_as(evil.user, programs.litter, ledger, evil.user.uid, JUNK_FILES, "[]", "usage", umask=0o022)
    for person, hours in ((alice, 25.0), (evil, 25.0), (evil, -1.0), (evil, float("nan"))):
        name = name_of(person, "usage")
        contents = usage(name.split(".")[1], hours)
        run_as(evil.user, programs.plant_lasting, ledger, name, contents, umask=0o022)
    told = newcomer.usage("--month")
    by_user = {total.user: total for total in told.totals}
    assert by_user[alice.user.name] == honest[0]
    assert by_user[evil.user.name].gpu_hours == 25.0
    assert len(told.notes) == 1
    for words in (["usage", "--by", "gpu"], ["usage", "--by", "group"], ["usage", "--csv"], ["status", "--all-users"]):
        assert "\x1b" not in newcomer.do(*words, *([] if "--csv" in words else ["--table"]))
    alice.do("submit", "--", "true")
    alice.do("wait", "last")
