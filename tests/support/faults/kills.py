"""Processes of every kind are killed or stopped, and the machine goes down."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator

from support.faults.table import fault
from support.storm.background import QueueStorm
from support.storm.command_line import start_submit
from support.storm.jobs import Work
from support.storm.processes import children, is_forked, kill_and_wait, marked, variables_of
from support.storm.record import open_jobs, read_record
from support.storm.request_log import SubmittedJob
from support.wait import PATIENCE_SECONDS, wait_until

ONCE = "each job runs once to its end, and its exit code is recorded"
AGAIN = "only what a killed worker ran is lost; it runs again when nothing of it is left"
MOST_STOPPED_SECONDS = 1.5


@fault("kill-engine", ONCE)
def kill_engine(trial: QueueStorm) -> None:
    """Early, late, and right after a submit."""
    strike(trial, "engine", 5)


@fault("engine-restarts", "an engine that was killed is started again when a job ends, and nobody has to look")
def engine_restarts(trial: QueueStorm) -> None:
    """The engine of a user, which is not ours to start again."""
    trial.submit([Work(trial.next_number + at, seconds=0.6) for at in range(8)])
    code, said = trial.typed("engine", "start")
    assert code == 0, said

    def is_back() -> bool:
        if not trial.engine_lives:
            trial.find_engine()
        return (trial.engine_lives and trial.running() > 0) or not open_jobs(trial.killer.state)

    try:
        for _ in range(2):
            wait_until(is_back)
            if trial.engine is not None and trial.running():
                trial.disruptions["engine"] += trial.engine.kill()
        wait_until(lambda: not open_jobs(trial.killer.state))
    except AssertionError:
        trial.broken.append(f"stuck: no engine came back for jobs {open_jobs(trial.killer.state)}")


@fault("kill-forkserver", ONCE)
def kill_forkserver(trial: QueueStorm) -> None:
    """While it may be forking a worker."""
    strike(trial, "forkserver", 4)


@fault("kill-worker", AGAIN)
def kill_worker(trial: QueueStorm) -> None:
    """With and without its job, with and without an engine."""
    strike(trial, "worker", 4)


@fault("kill-template", "a job that is forked from a template runs once, or again after its worker died")
def kill_template(trial: QueueStorm) -> None:
    """Templates, engines, workers and jobs are killed, while templates import and fork."""
    pauses = [0.0, 0.02, 0.3]
    for victim in ("template", "worker", "engine") * 4:  # a new engine trusts templates again
        first = trial.next_number
        trial.submit([Work(first + at, seconds=trial.dice.choice(pauses), warm=True) for at in range(6)])
        engine = trial.at_work()
        engine.wait_ready()
        time.sleep(trial.dice.uniform(0.0, 0.4))
        if victim == "template":
            trial.disruptions[victim] += trial.killer.kill_template(engine.pid)
        elif victim == "worker":
            trial.disruptions[victim] += trial.killer.kill_worker([engine.pid])
        else:
            trial.disruptions[victim] += engine.kill()


@fault("two-engines", "the second engine of a queue leaves at once")
def two_engines(trial: QueueStorm) -> None:
    """While jobs run."""
    strike(trial, "rival", 2)


@fault("engine-leaves", "an engine that is asked to leave loses nothing, whatever comes in meanwhile")
def engine_leaves(trial: QueueStorm) -> None:
    """By SIGTERM and SIGHUP, some of them killed on their way."""
    strike(trial, "farewell", 3)


@fault("two-submits", "two people who submit without an engine start one engine")
def two_submits(trial: QueueStorm) -> None:
    """By the command line itself."""
    strike(trial, "typed", 2)


def strike(trial: QueueStorm, disruption: str, times: int) -> None:
    """Do one of the things that a storm does, between submissions and requests."""
    for _ in range(times):
        trial.feed(trial.next_number + 5)
        trial.client.change_jobs()
        trial.strike(disruption)
        trial.client.note_answers()
        trial.note_overfull()


@fault("kill-job", "a job that dies of a signal has that signal in its record")
def kill_job(trial: QueueStorm) -> None:
    """Its first process, which is the leader of its session."""
    trial.submit([Work(trial.next_number + at, seconds=0.7) for at in range(6)])
    for _ in range(3):
        trial.wait_running()
        for pid in marked(trial.marker)[:2]:
            with contextlib.suppress(ProcessLookupError, KeyError):
                if os.getsid(pid) != pid:
                    continue
                variables = variables_of(pid)
                trial.struck.add((int(variables["STOKER_JOB_ID"]), int(variables["STOKER_ATTEMPT"])))
                kill_and_wait(pid)
                trial.disruptions["job"] += 1


@fault("preemption", "a job that gives way runs again, once at a time, whoever is killed meanwhile")
def preemption(trial: QueueStorm) -> None:
    """Jobs that save and jobs that are stopped, with an engine or workers that die while they leave."""
    number = trial.next_number
    saving = [Work(number + at, seconds=0.6, kind="saves", preemptible="save") for at in range(4)]
    stopped = [Work(number + 4 + at, seconds=0.4, preemptible="restart") for at in range(4)]
    ours = set(trial.submit([work for pair in zip(saving, stopped, strict=True) for work in pair]))
    for killed in trial.dice.sample(["engine", "engine", "worker", "both", "nobody"], 5):
        trial.feed(trial.next_number + 3)
        trial.at_work()
        wait_until(lambda: trial.client.preempt_running() > 0 or ours.isdisjoint(open_jobs(trial.killer.state)))
        trial.disruptions["preemption"] += 1
        time.sleep(trial.dice.choice([0.0, 0.01, 0.05, 0.3]))
        if killed in ("worker", "both"):
            trial.disruptions["worker"] += trial.killer.kill_worker([trial.at_work().pid])
        if killed in ("engine", "both"):
            trial.disruptions["engine"] += trial.at_work().kill()
        trial.client.note_answers()


@fault("kill-client", "a submit that is killed has submitted once or not at all")
def kill_client(trial: QueueStorm) -> None:
    """At any moment, with and without an engine to start."""
    trial.feed(4)
    for _ in range(6):
        if trial.dice.random() < 0.5:
            trial.at_work()
        work = Work(trial.next_number)
        trial.next_number += 1
        began = time.time()
        client = start_submit(work, trial.work, {**trial.environment, "STORM": str(trial.home)}, trial.sim)
        time.sleep(trial.dice.uniform(0.02, 0.5))
        client.kill()
        client.communicate(timeout=PATIENCE_SECONDS)
        trial.disruptions["client"] += 1
        enter_what_is_there(trial, work, began)


def enter_what_is_there(trial: QueueStorm, work: Work, began: float) -> None:
    """Write down a job that a killed client may have submitted."""
    found = [row.job for row in read_record(trial.killer.state).jobs.values() if row.number == work.number]
    if len(found) > 1:
        trial.broken.append(f"double: jobs {found} come from one submit")
    for job in found:
        trial.request_log.submitted[job] = SubmittedJob(work, began)


@fault("stop-engine", ONCE)
def stop_engine(trial: QueueStorm) -> None:
    """SIGSTOP for a while."""
    trial.feed(12)
    for _ in range(2):
        engine = trial.at_work()
        engine.wait_ready()
        _stop(trial, "engine", [engine.pid])
        trial.feed(trial.next_number + 4)


@fault("stop-worker", ONCE)
def stop_worker(trial: QueueStorm) -> None:
    """SIGSTOP of all workers for a while, with an engine and with the next one."""
    trial.feed(12)
    for _ in range(2):
        trial.wait_running()
        workers = list(dict.fromkeys(pid for _, pid in trial.killer.workers([trial.at_work().pid])))
        if trial.dice.random() < 0.5:
            trial.disruptions["engine"] += trial.at_work().kill()
        _stop(trial, "worker", workers)
        trial.feed(trial.next_number + 4)


@fault("stop-forkserver", ONCE)
def stop_forkserver(trial: QueueStorm) -> None:
    """SIGSTOP for a while."""
    trial.feed(6)
    engine = trial.at_work()
    engine.wait_ready()
    with _stopped([child for child in children(engine.pid) if is_forked(child)]) as stopped:
        trial.disruptions["forkserver stopped"] += stopped
        trial.feed(trial.next_number + 6)
        time.sleep(trial.dice.uniform(0.2, MOST_STOPPED_SECONDS))


@fault("reboot", "a machine that goes down costs what ran then, and nothing else; it runs again")
def reboot(trial: QueueStorm) -> None:
    """Everything is killed at once; every second time the ledger is empty afterwards, as on a tmpfs."""
    for _ in range(2):
        trial.feed(trial.next_number + 8)
        trial.wait_running(2)
        trial.end_engine()
        while trial.killer.kill_worker([], with_job=True):
            trial.disruptions["worker"] += 1
        for pid in marked(trial.marker):
            kill_and_wait(pid)
        if trial.dice.random() < 0.5:
            shutil.rmtree(trial.ledger, ignore_errors=True)
        trial.disruptions["reboot"] += 1


def _stop(trial: QueueStorm, kind: str, pids: list[int]) -> None:
    with _stopped(pids) as stopped:
        time.sleep(trial.dice.uniform(0.2, MOST_STOPPED_SECONDS))
    trial.disruptions[f"{kind} stopped"] += stopped


@contextlib.contextmanager
def _stopped(pids: list[int]) -> Iterator[int]:
    """Processes that stand still during the block; how many."""
    stopped = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
        yield len(stopped)
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
