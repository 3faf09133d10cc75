"""The judge of storms over shared GPUs is judged: it finds every broken promise in evidence that was tampered with."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.storm.checker import Evidence, faults_of_runs
from support.storm.claims import overfull
from support.storm.device_use import sizes_of
from support.storm.job_script import LogLine
from support.storm.jobs import FIRST_EDITION, Work
from support.storm.memory import GIB, MIB, SHORT, Memory
from support.storm.promises import faults_of_queue
from support.storm.record import AttemptRow, JobRow, Record
from support.storm.request_log import RequestLog, SubmittedJob
from support.storm.sharing import faults_of_sharing, tally_of_sharing

HONEST, GREEDY, NEIGHBOUR, HOPELESS, WHOLE, LEARNT = range(1, 7)
"""Keeps to its part; takes more than that; is beside it; fits nowhere; has a device for itself; has a learnt part."""
SIM = "2x24G"
MEMORY = {
    HONEST: Memory(4 * GIB, 4 * GIB),
    GREEDY: Memory(22 * GIB, 3 * GIB),
    NEIGHBOUR: Memory(2 * GIB, 4 * GIB),
    HOPELESS: Memory(30 * GIB, learnt=True),
    WHOLE: Memory(20 * GIB),
    LEARNT: Memory(5 * GIB, learnt=True),
}
ALL_OF_IT = {"memory": None, "auto": False}
Run = tuple[int, str, float, float, int, dict[str, Any]]
"""Job, device, begin, end, code, and what its events say besides."""


def runs() -> list[Run]:
    learnt = {"resources": {"memory": None, "auto": True, "predicted": [["SIM 24G", 6 * GIB]]}}
    grown = {"resources": {"memory": 3 * GIB, "floor": 5 * GIB}}
    spared = {"cause": "oom", "shared": True}
    return [
        (HONEST, "0", 1.0, 10.0, 0, {}),
        (GREEDY, "0", 2.0, 4.0, SHORT, spared),
        (NEIGHBOUR, "1", 4.5, 9.0, 0, {}),
        (GREEDY, "1", 5.0, 7.0, SHORT, grown | spared),
        (GREEDY, "1", 20.0, 22.0, 0, {"resources": ALL_OF_IT}),
        (HOPELESS, "0", 30.0, 31.0, SHORT, {"cause": "oom"}),
        (WHOLE, "0", 40.0, 42.0, 0, {}),
        (LEARNT, "1", 40.5, 42.0, 0, learnt),
    ]


def resources_of(memory: Memory) -> dict[str, Any]:
    return {"memory": memory.declared, "auto": memory.learnt}


def told(run: Run, number: int) -> list[dict[str, Any]]:
    _, device, begin, end, code, more = run
    assigned = {"type": "assigned", "devices": [f"SIM-{device}"], "at": begin - 0.1}
    exited = {"type": "exited", "attempt": number, "code": code, "signal": 0, "at": end + 0.1}
    exited |= {key: value for key, value in more.items() if key != "resources"}
    given = {"resources": more["resources"]} if "resources" in more else {}
    return [assigned | given, {"type": "started", "attempt": number, "at": begin}, exited]


def an_evidence() -> Evidence:
    """Nothing is wrong here."""
    states = dict.fromkeys(MEMORY, "done") | {HOPELESS: "oom"}
    jobs = {job: JobRow(job, job, states[job], {"at": 50.0}, "queue", resources_of(MEMORY[job])) for job in MEMORY}
    record = Record(["ok"], jobs, {job: [] for job in MEMORY}, {job: [] for job in MEMORY}, [])
    lines: list[LogLine] = []
    for run in runs():
        job, device, begin, end, code, _ = run
        number = len(record.attempts[job]) + 1
        record.attempts[job].append(AttemptRow(job, number, (device,), begin - 0.1, begin, end, code, 0, "exited"))
        record.events[job] += told(run, number)
        lines.append(LogLine("start", job, job, number, (device,), begin, 0, FIRST_EDITION))
        lines.append(LogLine("end", job, job, number, (device,), end, code, FIRST_EDITION))
    return Evidence(lines, record, [], lambda job: ("0",), dict(MEMORY), sizes_of(SIM))


def faults(evidence: Evidence) -> list[str]:
    request_log = RequestLog({job: SubmittedJob(Work(job, memory=MEMORY[job]), 0.0) for job in MEMORY})
    return [
        *faults_of_runs(evidence),
        *faults_of_queue(evidence, request_log, cpu_jobs=1),
        *faults_of_sharing(evidence),
    ]


def test_what_is_in_order_has_no_faults() -> None:
    """The judge does not cry without a reason, and counts who shared."""
    assert faults(an_evidence()) == []
    assert tally_of_sharing(an_evidence()).startswith("5 of 8 attempts had parts, 4 company; 3 ran short, 2 spared")


def set_aside(evidence: Evidence, size: int) -> None:
    evidence.record.jobs[HONEST].resources["memory"] = size


def overfill_a_device(evidence: Evidence) -> None:
    set_aside(evidence, 22 * GIB)


def use_the_reserve_up(evidence: Evidence) -> None:
    set_aside(evidence, 24 * GIB - 3 * GIB - 256 * MIB)


def forget_what_was_learnt(evidence: Evidence) -> None:
    del evidence.record.events[LEARNT][0]["resources"]["predicted"]
    evidence.record.events[LEARNT][0]["at"] = 21.0


def share_with_one_that_has_all(evidence: Evidence) -> None:
    evidence.record.events[LEARNT][0]["devices"] = ["SIM-0"]


def outstay_into_one_that_has_all(evidence: Evidence) -> None:
    evidence.lines.append(LogLine("after", HONEST, HONEST, 1, ("0",), 41.0, 0, FIRST_EDITION))


def blame_in_company(evidence: Evidence) -> None:
    del evidence.record.events[GREEDY][2]["shared"]


def charge_a_retry(evidence: Evidence) -> None:
    del evidence.record.events[GREEDY][3:], evidence.record.attempts[GREEDY][1:]
    evidence.record.jobs[GREEDY] = replace(evidence.record.jobs[GREEDY], state="failed")


def overlook_a_shortage(evidence: Evidence) -> None:
    del evidence.record.events[HOPELESS][2]["cause"]


def invent_a_shortage(evidence: Evidence) -> None:
    evidence.record.events[HONEST][2] |= {"cause": "oom", "shared": True}


def stay_in_company(evidence: Evidence) -> None:
    evidence.record.events[GREEDY][6]["resources"] = {"memory": 3 * GIB, "floor": 6 * GIB}


def run_short_among_honest_ones(evidence: Evidence) -> None:
    evidence.memory[GREEDY] = Memory(2 * GIB, 3 * GIB)


def give_up_in_company(evidence: Evidence) -> None:
    evidence.record.events[HOPELESS][0]["at"] = 9.0


def give_up_what_fits(evidence: Evidence) -> None:
    evidence.memory[HOPELESS] = Memory(10 * GIB, learnt=True)


def end_with_a_code_of_its_own(evidence: Evidence) -> None:
    evidence.record.attempts[HONEST][0] = replace(evidence.record.attempts[HONEST][0], code=98)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (overfill_a_device, "have 25.00 GiB of 0 together"),
        (use_the_reserve_up, "have 23.75 GiB of 0 together"),
        (forget_what_was_learnt, "though one of them has all of it"),
        (share_with_one_that_has_all, "though one of them has all of it"),
        (outstay_into_one_that_has_all, "on 0 together for 1.000 s"),
        (blame_in_company, "told as alone"),
        (charge_a_retry, "is failed, though by its events it is not over"),
        (overlook_a_shortage, "which tells of no shortage"),
        (invent_a_shortage, "which tells of oom"),
        (stay_in_company, "shares its devices again after 2 shortages"),
        (run_short_among_honest_ones, "all who were there kept to their parts"),
        (give_up_in_company, "a device that it had shared with"),
        (give_up_what_fits, "though it is not"),
        (end_with_a_code_of_its_own, "exited with 98"),
    ],
)
def test_broken_promises_are_found(harm: Callable[[Evidence], None], words: str) -> None:
    """Each single one leads to the fault that names it."""
    evidence = an_evidence()
    harm(evidence)
    assert any(words in fault for fault in faults(evidence))


@contextlib.contextmanager
def leased(ledger: Path, *parts: int | None) -> Iterator[None]:
    """Leases on the first simulated device; the last one is of nobody who lives."""
    (ledger / "mutex").touch()
    with contextlib.ExitStack() as held:
        for number, part in enumerate(parts):
            lease = held.enter_context((ledger / f"0.{number}.lease").open("w"))
            lease.write(json.dumps({"claims": [{"name": "sim:0", "memory": part}]}))
            lease.flush()
            if number < len(parts) - 1:
                fcntl.flock(lease, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize(
    ("parts", "count"),
    [((4 * GIB, 20 * GIB, 1), 0), ((4 * GIB, 21 * GIB, 1), 1), ((None, 1 * GIB, 1), 1), ((None, None), 0)],
)
def test_leases_are_added_up(tmp_path: Path, parts: tuple[int | None, ...], count: int) -> None:
    """Only live ones count: together they have no more than there is, and one with all of it is alone."""
    with leased(tmp_path, *parts):
        assert len(overfull(tmp_path, sizes_of(SIM))) == count
