"""Kills, errors and delays at single calls of the kernel, by strace."""

from __future__ import annotations

import contextlib
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from support.cli import PROGRAM
from support.faults.kills import ONCE, enter_what_is_there
from support.faults.table import fault
from support.storm.background import QueueStorm
from support.storm.checker import faulty_rows
from support.storm.command_line import start_command, start_submit
from support.storm.jobs import Work
from support.storm.processes import children, is_forked
from support.storm.record import read_record
from support.storm.request_log import CANCEL, EDIT, HOLD, RELEASE
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
SPLIT_CALLS = {"fdatasync": 1, "flock": 4, "pwrite64": 16}
"""How often an engine does each while it records what becomes of some tasks of an array."""
TASKS = 60
MANY_TASKS = 1000
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
    "kill-engine-at-split",
    "tasks and lines that share a row of the store get rows of their own in one step or not at all",
    needs=("strace",),
)
def kill_engine_at_split(trial: QueueStorm) -> None:
    """The engine dies at its n-th write while it records what was asked of some of the tasks."""
    work = Work(trial.next_number, at_once=trial.dice.choice([2, None]))
    trial.submit([work] * (TASKS // 2), array=True, held=True, alike=True)
    trial.submit([Work(trial.next_number + at) for at in range(TASKS // 2)], held=True, alike=True)
    for name in trial.dice.choices(sorted(SPLIT_CALLS), k=2 * POINTS):
        engine = trial.at_work()
        engine.wait_ready()
        with traced([engine.pid], f"{name}:signal=KILL:when={trial.dice.randint(1, SPLIT_CALLS[name])}"):
            trial.client.change_tasks([CANCEL, EDIT, EDIT, RELEASE, RELEASE])
            _was_struck(trial)
        trial.disruptions["engine at split"] += engine.wait_end(0) == -signal.SIGKILL  # else it left, or works
        trial.broken += faulty_rows(read_record(trial.killer.state))
        trial.client.note_answers()


@fault(
    "kill-client-of-array",
    "an array is submitted with all of its tasks or not at all, and so is what is asked of a range of them",
    needs=("strace",),
)
def kill_client_of_array(trial: QueueStorm) -> None:
    """A submit of many tasks dies at its n-th call, and so do a cancel, a pause and a resume of a part of them."""
    trial.feed(2)
    trial.at_work().wait_ready()
    for _ in range(2):
        work = Work(trial.next_number, at_once=4)
        trial.next_number += 1
        array = _array_of_killed_client(trial, work)
        if not array:
            array = trial.submit([work] * MANY_TASKS, array=True, held=True, alike=True)
        _change_as_killed_client(trial, RELEASE, "resume", array, range(4, 24))
        _change_as_killed_client(trial, HOLD, "pause", array, range(12, MANY_TASKS))
        _change_as_killed_client(trial, CANCEL, "cancel", array, range(24, MANY_TASKS))
        trial.client.cancel(array[30], len(array) - 30)  # else the round takes long


def _array_of_killed_client(trial: QueueStorm, work: Work) -> list[int]:
    """The tasks that a submit left that was killed."""
    began = time.time()
    options = ["--hold", "-a", f"0-{MANY_TASKS - 1}%{work.at_once}"]
    environment = {**trial.environment, "STORM": str(trial.home)}
    client = start_submit(work, trial.work, environment, trial.sim, _words_of_kill(trial), options=options)
    client.communicate(timeout=PATIENCE_SECONDS)
    trial.disruptions["client of array"] += client.returncode != 0
    found = sorted(row.job for row in read_record(trial.killer.state).jobs.values() if row.number == work.number)
    if found and found != list(range(found[0], found[0] + MANY_TASKS)):
        trial.broken.append(f"lost: of an array of {MANY_TASKS} there are jobs {found}")
    if not found and client.returncode == 0:
        trial.broken.append("lost: an array was acknowledged and is not there")
    trial.client.enter(found, [work] * len(found), began, array=True, held=True, alike=bool(found))
    return found


def _change_as_killed_client(trial: QueueStorm, kind: str, verb: str, array: Sequence[int], tasks: range) -> None:
    began, since = time.time(), trial.client.last_request
    environment = {**trial.environment, **({"STOKER_SIM": trial.sim} if trial.sim else {})}
    typed = [PROGRAM, verb, f"{array[0]}.{tasks[0]}-{tasks[-1]}"]
    client = start_command([*_words_of_kill(trial), *typed], trial.work, environment)
    _, said = client.communicate(timeout=PATIENCE_SECONDS)
    trial.disruptions["client of range"] += client.returncode != 0
    asked = trial.client.note_request(kind, range(array[tasks[0]], array[tasks[-1]] + 1), began, since)
    if kind == CANCEL and client.returncode == 0 and not asked:  # the others may have found nothing to do
        trial.broken.append(f"lost: `{' '.join(typed[1:])}` was acknowledged and is not there: {said}")


def _words_of_kill(trial: QueueStorm) -> list[str]:
    """The words before a command that dies at one of its calls."""
    name = trial.dice.choice(sorted(SUBMIT_CALLS))
    return ["strace", *_words(f"{name}:signal=KILL:when={trial.dice.randint(1, SUBMIT_CALLS[name])}")]


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
