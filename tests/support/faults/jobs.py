"""Jobs that hide from their worker, leave much behind or write much, with workers that die."""

from __future__ import annotations

import time

from support.faults.kills import AGAIN
from support.faults.table import fault
from support.storm.background import QueueStorm
from support.storm.jobs import Work

LONG_SECONDS = 4.0
"""Longer than a second run waits for the locks of the first."""
HIDING_SECONDS = 0.5
SMALL_BYTES, LARGE_BYTES = 100_000_000, 1_000_000_000


def _worker_of(kind: str, trial: QueueStorm) -> None:
    """Kill workers of jobs of a kind while these go on, and see that they do not run twice."""
    trial.submit([Work(trial.next_number + at, seconds=LONG_SECONDS, kind=kind, gpus=at % 2) for at in range(4)])
    for _ in range(2):
        trial.wait_running(2)
        time.sleep(HIDING_SECONDS)
        trial.disruptions["worker"] += trial.killer.kill_worker([trial.at_work().pid], with_job=False)


@fault("hidden-by-environment", AGAIN)
def hidden_by_environment(trial: QueueStorm) -> None:
    """`env -i` in a session of its own."""
    _worker_of("bare", trial)


@fault("hidden-by-session", AGAIN)
def hidden_by_session(trial: QueueStorm) -> None:
    """A session of its own."""
    _worker_of("session", trial)


@fault("hidden-by-writing", AGAIN)
def hidden_by_writing(trial: QueueStorm) -> None:
    """A process that writes over its own environment, as setproctitle does."""
    _worker_of("overwritten", trial)


@fault("hidden-daemon", AGAIN)
def hidden_daemon(trial: QueueStorm) -> None:
    """A daemon without an environment, in a session of its own."""
    _worker_of("daemon", trial)


@fault("many-processes", AGAIN)
def many_processes(trial: QueueStorm) -> None:
    """A hundred processes per job."""
    _worker_of("forks", trial)


@fault("large-logs", "however much a job writes, its log is complete and the queue goes on")
def large_logs(trial: QueueStorm) -> None:
    """A binary log, with an engine that is killed meanwhile; `logs` and `status` show it nevertheless."""
    size = LARGE_BYTES if trial.thorough else SMALL_BYTES
    trial.variables["STORM_BYTES"] = str(size)
    (job,) = trial.submit([Work(trial.next_number, kind="loud", out="%j.loud")])
    trial.wait_running()
    trial.disruptions["engine"] += trial.at_work().kill()
    trial.feed(trial.next_number + 4)
    trial.finish()
    log = trial.work / f"{job}.loud"
    trial.disruptions["log MB"] += log.stat().st_size // 10**6
    if log.stat().st_size != size:
        trial.broken.append(f"the log of job {job} has {log.stat().st_size} bytes instead of {size}")
    for words in (["logs", "-n", "3", str(job)], ["status", str(job)]):
        code, said = trial.typed(*words)
        if code != 0:
            trial.broken.append(f"`stoker {' '.join(words)}` ended with {code} for a binary log: {said[-1000:]}")
    log.unlink()
