"""Find what is wrong with this machine, and what to do about it (`stoker engine check`)."""

from __future__ import annotations

import contextlib
import csv
import difflib
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from stoker.app.jobs.config import load_config
from stoker.app.jobs.installation import how_to_remove, how_to_repair
from stoker.app.jobs.options import BY_NAME
from stoker.app.jobs.submit import JOB_VARIABLES
from stoker.app.service.systemd_unit import missing_program, unit_path
from stoker.core.errors import StokerError
from stoker.core.job import Active
from stoker.core.settings import KEYS
from stoker.core.units import count_text, size_text
from stoker.devices.detect import FIRST_ANSWER_SECONDS
from stoker.devices.nvidia import NvidiaAbsent, NvidiaDevices
from stoker.features import feature_checks, load
from stoker.ledger import PLACES, Ledger, find_ledger
from stoker.ledger.files import owner_name
from stoker.store import engine_lock, queries
from stoker.store.database import DAMAGED_HINT, NEWER_HINT, damage, has_log_without_file
from stoker.store.engine_lock import QUEUE
from stoker.store.paths import NETWORK_FILE_SYSTEMS, Paths, file_system_of
from stoker.store.status_file import read_status
from stoker.store.writer import Store, open_store

COMMAND_SECONDS = 5.0
"""How long a program of the system may take to answer."""
RESTART = "stoker engine restart; jobs continue"


class Verdict(Struct, frozen=True):
    """One matter: well, worth knowing, or to be mended."""

    topic: str
    level: Literal["ok", "note", "problem"]
    text: str
    advice: str = ""
    """The command or action that mends it."""


class Check(Struct, frozen=True):
    """The whole examination: `stoker engine check --json`, and that of a cluster."""

    schema: str
    problems: int
    findings: list[Verdict]


class Subject(Struct, frozen=True):
    """The machine, user and queue to check."""

    paths: Paths
    environment: Mapping[str, str]
    answers: bool = False
    """Whether the engine, where one lives, reacted when it was asked."""
    known_variables: frozenset[str] = frozenset()
    """Names of STOKER_* variables that set an option of a command."""


def ok(text: str) -> Verdict:
    return Verdict("", "ok", text)


def note(text: str, advice: str = "") -> Verdict:
    return Verdict("", "note", text, advice)


def problem(text: str, advice: str) -> Verdict:
    return Verdict("", "problem", text, advice)


def diagnose(subject: Subject) -> Iterator[Verdict]:
    """The findings of all checks, each as soon as it is known."""
    own = {topic: load(path) for topic, path in feature_checks().items()}
    for topic, check in {**CHECKS, **own}.items():
        try:
            findings = list(check(subject))
        except OSError as error:  # a check that fails hides no other
            findings = [problem(f"cannot check this: {error}", "check its permissions")]
        yield from (structs.replace(verdict, topic=topic) for verdict in findings)


def output_of(command: Sequence[str], seconds: float = COMMAND_SECONDS) -> str | None:
    """The output of a program; None where it is missing, fails, or takes too long."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None


# -- the state directory -------------------------------------------------------------------------

SCARCE = 2**30
"""Bytes of free space below which a full disk is near."""
GONE = 64 * 2**20
"""Bytes of free space below which a disk is as good as full."""


def check_state(subject: Subject, mountinfo: str = "/proc/self/mountinfo") -> Iterator[Verdict]:
    """The file system of the queue."""
    state = subject.paths.state
    if subject.paths.note:
        yield note(subject.paths.note, "no action needed; to choose another local directory, set STOKER_STATE")
    elif (kind := file_system_of(state, mountinfo)) in NETWORK_FILE_SYSTEMS:
        yield problem(f"{state} is on {kind}, which is not safe for a queue", "set STOKER_STATE to a local directory")
    else:
        yield ok(f"{state} is on {kind}")


def check_disk(subject: Subject) -> Iterator[Verdict]:
    """Room for the queue and the logs."""
    status = os.statvfs(subject.paths.state)
    free = status.f_bavail * status.f_frsize
    text = f"{size_text(free)} free for {subject.paths.state}"
    if free < GONE:
        yield problem(text, "free some space there: jobs and results cannot be recorded on a full disk")
    elif free < SCARCE:
        yield note(text, "free some space there before it is full")
    else:
        yield ok(text)
    if status.f_files and status.f_favail < 1000:
        yield problem(f"only {status.f_favail} more files fit on the disk of the queue", "remove some files there")


def check_queue(subject: Subject) -> Iterator[Verdict]:
    """The whole database."""
    path = subject.paths.database
    if not path.exists() and not has_log_without_file(path):
        yield ok("no queue yet; the first submit creates it")
    elif wrong := damage(path):
        yield problem(f"{path}: {wrong}", NEWER_HINT if "newer Stoker" in wrong else DAMAGED_HINT)
    else:
        yield ok(f"{path}: no corruption found")


# -- the engine ----------------------------------------------------------------------------------


def check_engine(subject: Subject) -> Iterator[Verdict]:
    """Whether an engine serves the queue."""
    paths = subject.paths
    pid = engine_lock.process_of(paths, QUEUE)
    if pid is None:
        with _store(subject) as store:
            load = queries.loads(store).get(QUEUE) if store else None
        if load is not None and load.open:
            yield problem(
                f"{count_text(load.open, 'job')} in the queue, but the engine is not running", "stoker engine start"
            )
        else:
            yield ok("not running (starts automatically on submit)")
        return
    if not subject.answers:
        yield problem(f"the engine (process {pid}) does not answer", f"see {paths.log}; then: {RESTART}")
        return
    status = read_status(paths.status_file(QUEUE))
    if status is not None and status.trouble:
        yield problem(f"the engine has a problem: {status.trouble}", f"see {paths.log}")
    else:
        yield ok(f"running (process {pid})")


def check_leftovers(subject: Subject) -> Iterator[Verdict]:
    """Jobs, workers and leases that dead engines left."""
    with _store(subject) as store:
        if store is not None:
            yield from [*_jobs_left(subject, store), *_leases_left(subject, store)] or [ok("none")]


def _jobs_left(subject: Subject, store: Store) -> Iterator[Verdict]:
    paths = subject.paths
    held = [job for job, engine in engine_lock.interrupted_active_jobs(paths, store) if engine != QUEUE]
    if held:
        text = f"{count_text(len(held), 'job')} of an interrupted run, still running"
        yield note(text, "start the engine to record their results: stoker engine start")
    left = [job for job, engine in engine_lock.interrupted_jobs(paths, store) if engine != QUEUE]
    waiting = sum(not isinstance(job.state, Active) for job in left)
    if waiting:
        text = f"{count_text(waiting, 'job')} of an interrupted run, not started"
        yield note(text, "continue them (stoker run --resume, stoker resume), or cancel them")
    with contextlib.suppress(FileNotFoundError):
        if names := engine_lock.leftover_workers(paths, store):
            text = f"{count_text(len(names), 'folder')} of workers, no longer needed"
            yield note(text, "start the engine to remove them: stoker engine start")


def _leases_left(subject: Subject, store: Store) -> Iterator[Verdict]:
    """Leases of this user that no job of this queue has; a living engine may hold some in reserve."""
    if any(True for _ in engine_lock.living_engines(subject.paths)):
        return
    with contextlib.suppress(StokerError):
        view = Ledger(find_ledger(subject.environment)).live()
        refs = [owned.job.state.ref for owned in queries.all_active(store) if isinstance(owned.job.state, Active)]
        words = {word for ref in refs for word in ref.split()}  # the name of the lease is one of the words
        for name, lease in view.leases.items():
            if name not in words and lease.owner == owner_name(os.geteuid()):
                devices = ", ".join(claim.name for claim in lease.claims)
                text = f"your lease on {devices} ({lease.what}) belongs to no job of this queue"
                yield note(text, f"if you do not use it, check process {lease.pid} and its children")


@contextlib.contextmanager
def _store(subject: Subject) -> Iterator[Store | None]:
    """The store, where there is one that can be opened."""
    with contextlib.ExitStack() as closing:
        store: Store | None = None
        with contextlib.suppress(StokerError):
            if subject.paths.database.exists():
                store = closing.enter_context(contextlib.closing(open_store(subject.paths)))
        yield store


# -- other users ---------------------------------------------------------------------------------


def check_ledger(subject: Subject, paths: Iterable[Path] = PLACES) -> Iterator[Verdict]:
    """The directory of leases: whether it can be used, is open to all, and is the one that all users have."""
    if subject.paths.is_simulated and not subject.environment.get("STOKER_LEDGER"):
        yield ok("not used: simulated GPUs are not shared with other users")
        return
    try:
        path = find_ledger(subject.environment, paths)
    except StokerError as error:
        yield problem(error.message, error.hint)
        return
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o002:
        yield ok(f"{path} is open to all users")
    else:
        advice = f"its owner must run 'chmod 1777 {path}'; or set STOKER_LEDGER to another directory"
        yield problem(f"{path} has mode {mode:o}: other users cannot register their GPUs there", advice)
    yield from (note(warning) for warning in Ledger(path).live().warnings)
    for other in paths:
        if other == path or not os.path.isdir(other):
            continue
        view = Ledger(other).live()
        if users := {lease.owner for lease in view.leases.values()} | {
            demand.owner for demand in view.demands.values()
        }:
            text = f"{', '.join(sorted(users))} use {other}, you use {path}: you may be given the same GPUs"
            yield problem(text, "all users must set the same STOKER_LEDGER, or none")


# -- configuration -------------------------------------------------------------------------------

_PROGRAM_VARIABLES = frozenset({"STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM", "STOKER_SIM_DIR", "STOKER_OUTPUT"})
_JOB_VARIABLES = JOB_VARIABLES | {"STOKER_GROUP", "STOKER_VRAM", "STOKER_WORKER"}


def check_config(subject: Subject) -> Iterator[Verdict]:
    """The configuration files of the engine and of this directory."""
    try:
        config = load_config(subject.environment, Path.cwd())
    except StokerError as error:
        yield problem(error.message, error.hint)
        return
    yield from (note(warning) for warning in config.warnings)
    files = ", ".join(map(str, config.files))
    yield ok(f"read from {files}" if files else "all defaults")


def check_variables(subject: Subject) -> Iterator[Verdict]:
    """STOKER_* variables without a meaning, and those of a job."""
    given = sorted(name for name in subject.environment if name.startswith("STOKER_"))
    if "STOKER_JOB_ID" in given:
        yield note(f"this runs inside job {subject.environment['STOKER_JOB_ID']}")
        given = [name for name in given if name not in _JOB_VARIABLES]
    variables = subject.known_variables | _PROGRAM_VARIABLES | {f"STOKER_{name.upper()}" for name in (*KEYS, *BY_NAME)}
    unknown = [name for name in given if name not in variables]
    for name in unknown:
        near = difflib.get_close_matches(name, variables, 1, 0.75)
        yield note(f"{name} is not a variable of Stoker", f"did you mean {near[0]}?" if near else "")
    if not unknown:
        yield ok(f"set: {', '.join(given)}" if given else "none set")


# -- the installation

_SHARED_NAMES = frozenset({"simple_gpu_scheduler", "gpu_task_scheduler"})
"""Import names of ours that packages of older tools have too."""


def check_install(_subject: Subject, path: Sequence[str] | None = None) -> Iterator[Verdict]:
    """Packages that install files of the same names over ours, or took ours along when they were removed."""
    distributions = {dist.name: dist for dist in metadata.distributions(path=list(sys.path if path is None else path))}
    ours = distributions.pop("stoker", None)
    others = sorted(name for name, dist in distributions.items() if any(_is_shared(file) for file in dist.files or ()))
    for name in others:
        text = f"the package {name} has the same import names and commands, and may have replaced those of Stoker"
        yield problem(text, f"{how_to_remove(name)}, which removes files of both, and then: {how_to_repair()}")
    gone = _missing_files(ours) if ours else []
    if gone and not others:
        yield problem(f"missing files of Stoker: {', '.join(map(os.path.basename, gone[:3]))}", how_to_repair())
    if not gone and not others:
        yield ok("no package conflicts")


def _missing_files(dist: metadata.Distribution) -> list[str]:
    """Compare with the record of pip: `dist.files` leaves missing files out since Python 3.12."""
    rows = csv.reader((dist.read_text("RECORD") or "").splitlines())
    return [row[0] for row in rows if row and not os.path.exists(str(dist.locate_file(row[0])))]


def _is_shared(file: metadata.PackagePath) -> bool:
    return file.parts[0] in _SHARED_NAMES


# -- the machine ---------------------------------------------------------------------------------

PCI = Path("/sys/bus/pci/devices")
ROOT = Path("/")
FEW_FILES = 256
FEW_PROCESSES = 200
"""Room for so many more processes is little: a data loader alone has dozens."""
_KILLS_PROCESSES = (
    "busctl --timeout=3 get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager "
    "KillUserProcesses"
)
_LINGER = "loginctl enable-linger"


def check_gpus(subject: Subject) -> Iterator[Verdict]:
    """Every GPU that the driver shows; where it shows none, why."""
    if subject.paths.is_simulated:
        yield ok("simulated; no driver needed")
        return
    with contextlib.closing(NvidiaDevices()) as devices:
        try:
            snapshot = devices.first(FIRST_ANSWER_SECONDS)
        except NvidiaAbsent as absent:
            yield judge_absence(absent.message, nvidia_cards())
            return
    yield ok(f"the NVIDIA driver shows {count_text(len(snapshot.devices), 'GPU')}")
    for device in snapshot.devices:
        if trouble := snapshot.reading(device.id).problem:
            advice = "check nvidia-smi and dmesg; reset the GPU or reboot to recover a lost one"
            yield problem(f"GPU {device.label}: {trouble}", advice)
    # Without persistence the driver forgets an idle GPU, and the next job waits until it is ready again.
    said = output_of([sys.executable, "-P", "-m", "stoker.devices.nvml_probe", "persistence"], FIRST_ANSWER_SECONDS)
    if said and (off := said.split()):
        text = f"persistence mode is off on GPU {', '.join(off)}: jobs on an idle GPU start seconds later"
        yield note(text, "as root, run: systemctl enable --now nvidia-persistenced")


def judge_absence(reason: str, cards: int) -> Verdict:
    """Why there is no GPU, which is fine on a machine without a card."""
    if "not found" not in reason:
        return problem(reason, "check nvidia-smi; a reboot usually fixes this")
    if cards:
        return problem(f"{count_text(cards, 'NVIDIA card')} in this machine, but {reason}", "install the NVIDIA driver")
    advice = "name devices yourself (--devices), try simulated ones (--sim 4x24G), or run jobs without GPU (-G 0)"
    return note(f"no GPU in this machine: {reason}", advice)


def nvidia_cards(pci: Path = PCI) -> int:
    """The number of NVIDIA graphics cards, with or without a driver."""
    count = 0
    for device in pci.glob("*"):
        with contextlib.suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            count += vendor == "0x10de" and kind.startswith("0x03")  # NVIDIA, display controller
    return count


def check_unit(subject: Subject) -> Iterator[Verdict]:
    """Whether the program of the unit exists."""
    path = unit_path(subject.environment)
    if program := missing_program(path):
        yield problem(f"{path} starts {program}, which no longer exists", "stoker engine install")
    elif path.exists():
        yield ok(f"systemd starts the engine by {path}")


def check_logout(
    subject: Subject, root: Path = ROOT, ask: Callable[[Sequence[str]], str | None] = output_of
) -> Iterator[Verdict]:
    """Whether systemd ends processes after the user's last session, as the login manager answers."""
    if not (root / "run/systemd/system").is_dir():
        yield ok("systemd is not running, so nothing stops jobs at logout")
        return
    kills = (ask(_KILLS_PROCESSES.split()) or "").split() == ["b", "true"]
    lingers = (root / "var/lib/systemd/linger" / owner_name(os.getuid())).exists()
    unit = unit_path(subject.environment).exists()
    if kills and not (lingers and unit):
        needed = [*([] if lingers else [_LINGER]), *([] if unit else ["stoker engine install"])]
        text = "systemd kills all your processes at logout (KillUserProcesses=yes), including the engine and jobs"
        yield problem(text, " && ".join(needed))
    elif unit and not lingers:
        text = "the engine's unit ends at your last logout, with all jobs, since your user does not linger"
        yield problem(text, _LINGER)
    elif not lingers:
        advice = f"if that matters: stoker engine install, and {_LINGER}"
        yield note("jobs continue after logout, but nothing starts the engine at boot", advice)
    else:
        yield ok("jobs continue after logout")


def check_limits(_subject: Subject) -> Iterator[Verdict]:
    """`ulimit -n` and `ulimit -u`."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY and files < FEW_FILES:
        yield problem(f"a process may open only {files} files", "raise it: ulimit -n 4096")
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if processes == resource.RLIM_INFINITY or os.getuid() == 0:  # root has no limit
        yield ok("no limit on processes")
    else:
        yield judge_processes(processes, _threads_of(os.getuid()))


def judge_processes(limit: int, running: int) -> Verdict:
    """The limit of all processes and threads of a user."""
    text = f"{running} of {limit} allowed processes and threads are in use"
    few = limit - running < FEW_PROCESSES
    return problem(text, "raise the limit (ulimit -u), or end some processes: jobs may not start") if few else ok(text)


def _threads_of(uid: int) -> int:
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            count += len(os.listdir(process / "task")) if process.stat().st_uid == uid else 0
    return count


CHECKS: Mapping[str, Callable[[Subject], Iterable[Verdict]]] = {
    "state": check_state,
    "disk": check_disk,
    "queue": check_queue,
    "engine": check_engine,
    "leftovers": check_leftovers,
    "ledger": check_ledger,
    "gpus": check_gpus,
    "config": check_config,
    "variables": check_variables,
    "unit": check_unit,
    "logout": check_logout,
    "limits": check_limits,
    "install": check_install,
}
