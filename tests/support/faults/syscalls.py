"""Kills, errors and delays at single calls of the kernel, by strace."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.faults.kills import ONCE, enter_what_is_there
from support.faults.table import fault
from support.storm.background import QueueStorm
from support.storm.command_line import start_submit
from support.storm.jobs import Work
from support.storm.processes import children, is_forked
from support.wait import PATIENCE_SECONDS, wait_until

ERRORS = {
    "fdatasync": ("EIO", "ENOSPC"),
    "pwrite64": ("EIO", "ENOSPC"),
    "write": ("EIO", "ENOSPC"),
    "sendmsg": ("EIO", "ENOMEM", "EPIPE"),
    "unlink": ("EIO",),
    "rename": ("EIO", "ENOSPC"),
    "mkdir": ("EIO", "ENOSPC"),
    "flock": ("ENOLCK", "ENOMEM"),
    "fallocate": ("ENOSPC", "EIO"),
    "connect": ("EAGAIN", "ENOMEM"),
    "unlinkat": ("EIO",),
    "openat": ("EMFILE", "ENOMEM", "EIO", "ENOSPC"),
}
"""The calls by which the engine changes anything, and how each can fail."""
MOMENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 45, 60)
SUBMIT_CALLS = {"fdatasync": 2, "pwrite64": 18, "write": 3, "flock": 5, "openat": 250}
"""How often a submit does each."""
POINTS = 3
"""How many engines meet one in a round."""
STRIKE_SECONDS = 1.5
"""How long an engine gets to reach its point."""
FORKS = "clone,clone3,fork,vfork"
MAPS = "mmap,brk,mremap"


@fault("kill-at-syscall", ONCE, needs=("strace",))
def kill_at_syscall(trial: QueueStorm) -> None:
    """The engine dies when it enters its n-th call of a kind, counted from its start or from a later moment."""
    for name in trial.dice.sample(sorted(ERRORS), POINTS):
        trial.disruptions["engine at syscall"] += _meet(trial, name, "signal=KILL")


@fault("error-at-syscall", ONCE, needs=("strace",), noisy=True)
def error_at_syscall(trial: QueueStorm) -> None:
    """A call of the engine fails once or a few times; it may go on or end, and the next one takes over."""
    for name in trial.dice.sample(sorted(ERRORS), POINTS):
        error = trial.dice.choice(ERRORS[name])
        _meet(trial, name, f"error={error}")
        trial.disruptions[f"{error} injected"] += 1
    trial.end_engine()  # a file that could not be removed goes with the start of the next engine


def _meet(trial: QueueStorm, name: str, harm: str) -> bool:
    """Let an engine at work meet harm at a call, and wait a while for that; whether it died of it."""
    trial.feed(trial.next_number + 5)
    when = trial.dice.choice(MOMENTS)
    last = f"..{when + trial.dice.choice([0, 0, 3])}" if harm.startswith("error") else ""
    injection = f"{name}:{harm}:when={when}{last}"
    trial.end_engine()
    if trial.dice.random() < 0.5:
        trial.wrapper = ("strace", "-D", *_words(injection))
        engine = trial.at_work()
        trial.wrapper = ()
        struck = _was_struck(trial)
        engine.kill()
        return struck
    engine = trial.at_work()
    engine.wait_ready()
    with traced([engine.pid], injection):
        trial.client.change_jobs()
        trial.feed(trial.next_number + 3)
        return _was_struck(trial)


def _was_struck(trial: QueueStorm) -> bool:
    """Whether the engine dies within a while: it may never come to that call."""
    with contextlib.suppress(AssertionError):
        wait_until(lambda: not trial.engine_lives, STRIKE_SECONDS)
    return not trial.engine_lives


@fault("kill-client-at-syscall", "a submit that is killed has submitted once or not at all", needs=("strace",))
def kill_client_at_syscall(trial: QueueStorm) -> None:
    """A submit dies at its n-th write to disk or to the engine."""
    trial.feed(4)
    trial.at_work().wait_ready()
    for name in trial.dice.sample(sorted(SUBMIT_CALLS), 3):
        work = Work(trial.next_number)
        trial.next_number += 1
        began = time.time()
        words = ["strace", *_words(f"{name}:signal=KILL:when={trial.dice.randint(1, SUBMIT_CALLS[name])}")]
        environment = {**trial.environment, "STORM": str(trial.home)}
        client = start_submit(work, trial.work, environment, trial.sim, words)
        out, _ = client.communicate(timeout=PATIENCE_SECONDS)
        trial.disruptions["client at syscall"] += client.returncode != 0
        enter_what_is_there(trial, work, began)
        if client.returncode == 0 and int(out) not in trial.request_log.submitted:
            trial.broken.append(f"lost: job {out} was acknowledged and is not there")


@fault(
    "kill-worker-at-syscall",
    "what a worker had begun is lost at most, and runs again",
    needs=("strace",),
    losses_known=False,
)
def kill_worker_at_syscall(trial: QueueStorm) -> None:
    """All workers of a moment die at their n-th call."""
    trial.feed(10)
    for name in trial.dice.sample(["pwrite64", "sendto", "wait4", "openat", "close", "poll", "recvmsg"], 2):
        trial.wait_running()
        pids = [pid for _, pid in trial.killer.workers([trial.at_work().pid])]
        with traced(pids, f"{name}:signal=KILL:when={trial.dice.choice([1, 2, 3, 5])}"):
            trial.feed(trial.next_number + 4)
            time.sleep(STRIKE_SECONDS / 2)
        trial.disruptions["worker at syscall"] += sum(not Path(f"/proc/{pid}").exists() for pid in pids)


@fault(
    "no-processes",
    "a job that cannot be started for want of processes waits, and is not failed",
    needs=("strace",),
    noisy=True,
)
def no_processes(trial: QueueStorm) -> None:
    """Neither the forkserver nor a worker can start a process for a while (EAGAIN)."""
    trial.submit([Work(trial.next_number + at, seconds=0.3, gpus=at % 2) for at in range(8)])
    trial.wait_running()
    _injected_for(trial, _forkserver_and_workers(trial), f"{FORKS}:error=EAGAIN", 2.0)
    trial.disruptions["EAGAIN injected"] += 1


@fault("no-memory", ONCE, needs=("strace",), noisy=True)
def no_memory(trial: QueueStorm) -> None:
    """The engine gets no memory for a while (ENOMEM); it may end."""
    trial.feed(8)
    engine = trial.at_work()
    engine.wait_ready()
    _injected_for(trial, [engine.pid], f"{MAPS}:error=ENOMEM", 1.5)
    trial.disruptions["ENOMEM injected"] += 1


@fault("no-memory-for-workers", "a job that cannot be started for want of memory waits", needs=("strace",), noisy=True)
def no_memory_for_workers(trial: QueueStorm) -> None:
    """Neither the forkserver nor a worker can start a process for a while (ENOMEM)."""
    trial.submit([Work(trial.next_number + at, seconds=0.3, gpus=at % 2) for at in range(8)])
    trial.wait_running()
    _injected_for(trial, _forkserver_and_workers(trial), f"{FORKS}:error=ENOMEM", 1.5)
    trial.disruptions["ENOMEM injected"] += 1


@fault("slow-fsync", ONCE, needs=("strace",))
def slow_fsync(trial: QueueStorm) -> None:
    """Each write to disk takes 0.3 s, and the engine is killed meanwhile."""
    trial.feed(12)
    engine = trial.at_work()
    engine.wait_ready()
    _injected_for(trial, [engine.pid], "fdatasync,fsync:delay_enter=300000", 2.0)
    trial.disruptions["engine"] += engine.kill()
    trial.disruptions["slow fsync"] += 1


def _forkserver_and_workers(trial: QueueStorm) -> list[int]:
    engine = trial.at_work()
    servers = [child for child in children(engine.pid) if is_forked(child)]
    return [*servers, *dict.fromkeys(pid for _, pid in trial.killer.workers([engine.pid]))]


def _injected_for(trial: QueueStorm, pids: Sequence[int], injection: str, seconds: float) -> None:
    with traced(pids, injection, follow=injection.startswith(FORKS)):
        trial.feed(trial.next_number + 6)
        time.sleep(seconds)


@contextlib.contextmanager
def traced(pids: Sequence[int], injection: str, *, follow: bool = False) -> Iterator[None]:
    """Processes under an injection during the block, and those that they start if they are to be followed."""
    alive = [pid for pid in dict.fromkeys(pids) if Path(f"/proc/{pid}").exists()]
    if not alive:
        yield
        return
    words = [
        "strace",
        *(["-f"] if follow else []),
        *_words(injection),
        *(word for pid in alive for word in ("-p", str(pid))),
    ]
    tracer = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: all(_is_traced(pid) for pid in alive) or tracer.poll() is not None)
        yield
    finally:
        tracer.send_signal(signal.SIGINT)  # it lets go of them and ends
        tracer.wait(PATIENCE_SECONDS)


def _is_traced(pid: int) -> bool:
    """Also where the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    return "TracerPid:\t0\n" not in status


def _words(injection: str) -> list[str]:
    calls = injection.partition(":")[0]
    return shlex.split(f"-qq -o /dev/null -e trace={calls} -e inject={injection}")
