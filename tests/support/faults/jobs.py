"""Jobs that hide from their worker, leave much behind or write much, with workers that die."""

from __future__ import annotations

from support.faults.kills import AGAIN
from support.faults.table import fault
from support.storm.background import QueueStorm
from support.storm.jobs import Work

LOG_MEGABYTES = 200


def _worker_of(kind: str, trial: QueueStorm) -> None:
    """Kill workers of jobs of a kind while these go on, and see that they do not run twice."""
    trial.submit([Work(trial.next_number + at, seconds=3.0, kind=kind, gpus=at % 2) for at in range(4)])
    for _ in range(2):
        trial.wait_running(2)
        trial.blows["worker"] += trial.killer.kill_worker([trial.at_work().pid], with_job=False)


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
    """Binary logs, with an engine that is killed meanwhile."""
    size = LOG_MEGABYTES * 10**6 // 10
    trial.variables["STORM_BYTES"] = str(size)
    jobs = trial.submit([Work(trial.next_number + at, kind="loud", out="%j.loud") for at in range(2)])
    trial.wait_running()
    trial.blows["engine"] += trial.at_work().kill()
    trial.blows["large log"] += len(jobs)
    trial.feed(trial.next_number + 4)
    trial.finish()
    for job in jobs:
        written = (trial.work / f"{job}.loud").stat().st_size
        if written != size:
            trial.broken.append(f"the log of job {job} has {written} bytes instead of {size}")
