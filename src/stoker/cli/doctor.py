"""Checks of `stoker engine check`."""

from __future__ import annotations

import configparser
import contextlib
import difflib
import os
import pwd
import resource
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from msgspec import Struct

from stoker.core.device import Device, Reading
from stoker.core.errors import StokerError
from stoker.core.job import Active
from stoker.core.units import count_text, duration_text, size_text
from stoker.devices.detect import FIRST_ANSWER_SECONDS
from stoker.devices.nvidia import NvidiaAbsent, NvidiaDevices
from stoker.ledger import PLACES, Ledger, LedgerView, find_ledger
from stoker.ledger.files import owner_name
from stoker.queue.config import load_config
from stoker.queue.systemd_unit import missing_program, unit_path
from stoker.store import queries
from stoker.store.damage import DAMAGED_HINT, NEWER_HINT, damage, has_log_without_file
from stoker.store.engine_lock import QUEUE, engine_lives, living_engines, process_of, version_notice
from stoker.store.ownership import held_orphans, leftover_workers, orphans
from stoker.store.paths import NETWORK_FILE_SYSTEMS, Paths, file_system_of
from stoker.store.status_file import read_status
from stoker.store.writer import Store, open_store

COMMAND_SECONDS = 5.0
"""How long a program of the system may take to answer."""


class Verdict(Struct, frozen=True):
    """One matter: well, worth knowing, or to be mended."""

    topic: str
    level: Literal["ok", "note", "problem"]
    text: str
    advice: str = ""
    """What to type, or to do, where something is not well."""


class Subject(Struct, frozen=True):
    """The machine, user and queue that are looked at."""

    paths: Paths
    environment: Mapping[str, str]
    simulated: bool
    now: float
    known_variables: frozenset[str] = frozenset()
    """Names of STOKER_* variables that mean something to some verb."""


def ok(topic: str, text: str) -> Verdict:
    """All is well."""
    return Verdict(topic, "ok", text)


def note(topic: str, text: str, advice: str = "") -> Verdict:
    """Worth knowing, and no harm by itself."""
    return Verdict(topic, "note", text, advice)


def problem(topic: str, text: str, advice: str) -> Verdict:
    """Keeps Stoker from working as it should, or will."""
    return Verdict(topic, "problem", text, advice)


def output_of(command: Sequence[str], seconds: float = COMMAND_SECONDS) -> str | None:
    """What a program of the system prints; None where it is not there, fails, or takes too long."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None


OLDEST = 1_704_067_200.0
"""The start of 2024, before which nobody had this program."""

JUMP = 5.0
"""Seconds by which an engine's clock may differ from the machine's."""


def look_at_clock(subject: Subject) -> Iterator[Verdict]:
    """The date, its source, and whether somebody has set it while the engine ran."""
    if subject.now < OLDEST:
        yield problem("clock", "the machine's clock is years behind", "set it: timedatectl set-ntp true")
        return
    jump = _jump(subject)
    if abs(jump) > JUMP:
        way = "forward" if jump > 0 else "back"
        text = (
            f"the clock was set {way} by {duration_text(abs(jump))} since the engine started, which goes by the old one"
        )
        yield note("clock", text, "stoker engine stop && stoker engine start; jobs go on")
    answer = output_of(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    if answer is not None and answer.strip() == "no":
        yield note("clock", "the clock is not synchronised with others", "timedatectl set-ntp true")
    elif abs(jump) <= JUMP:
        yield ok("clock", "nothing is wrong with it" if answer is None else "synchronised")


def _jump(subject: Subject) -> float:
    """How far the machine's clock has gone ahead of a living engine's, which no setting moves."""
    path = subject.paths.status_file(QUEUE)
    view = read_status(path)
    if view is not None and engine_lives(subject.paths, QUEUE):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime - view.at
    return 0.0


FEW_FILES = 256

FEW_PROCESSES = 200
"""Room for so many more processes is little: a data loader alone has dozens."""


def look_at_limits(_subject: Subject) -> Iterator[Verdict]:
    """`ulimit -n` and `ulimit -u`."""
    yield judge_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    uid = os.getuid()
    yield judge_processes(resource.getrlimit(resource.RLIMIT_NPROC)[0], _threads_of(uid), uid)


def judge_files(limit: int) -> Verdict:
    """The limit of open files in one process."""
    if limit != resource.RLIM_INFINITY and limit < FEW_FILES:
        return problem("limits", f"a process may open only {limit} files", "raise it: ulimit -n 4096")
    return ok("limits", f"a process may open {_text(limit)} files")


def judge_processes(limit: int, running: int, uid: int) -> Verdict:
    """The limit of all processes and threads of a user, which does not hold for root."""
    if limit == resource.RLIM_INFINITY or uid == 0:
        return ok("limits", "as many processes as the machine can take")
    text = f"{running} of {limit} processes and threads that you may have are running"
    if limit - running < FEW_PROCESSES // 4:
        return problem("limits", text, "raise the limit (ulimit -u), or end some: jobs cannot start")
    if limit - running < FEW_PROCESSES:
        return note("limits", text, "raise the limit: ulimit -u")
    return ok("limits", text)


def _threads_of(uid: int) -> int:
    count = 0
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                if process.stat().st_uid == uid:
                    count += len(os.listdir(process / "task"))
    return count


def _text(limit: int) -> str:
    return "any number of" if limit == resource.RLIM_INFINITY else str(limit)


SCARCE = 2**30
"""Bytes of free space below which a full disk is near..."""

GONE = 64 * 2**20
"""... and below which it is as good as full."""

_ELSEWHERE = "set STOKER_STATE to a directory on a local disk"


def look_at_place(subject: Subject, mountinfo: str = "/proc/self/mountinfo") -> Iterator[Verdict]:
    """The file system of the queue."""
    paths = subject.paths
    if paths.note:
        yield note("state", paths.note, "nothing has to be done; STOKER_STATE chooses another local directory")
        return
    kind = file_system_of(paths.state, mountinfo)
    if kind in NETWORK_FILE_SYSTEMS:
        yield problem("state", f"{paths.state} is on {kind}, where a queue is not safe", _ELSEWHERE)
    else:
        yield ok("state", f"{paths.state} is on {kind}")


def look_at_space(subject: Subject) -> Iterator[Verdict]:
    """Room for the queue and the logs."""
    status = os.statvfs(subject.paths.state)
    yield _space(status.f_bavail * status.f_frsize, str(subject.paths.state))
    if status.f_files and status.f_favail < 1000:
        yield problem("disk", f"only {status.f_favail} more files fit on the disk of the queue", "remove some there")


def _space(free: int, where: str) -> Verdict:
    text = f"{size_text(free)} free for {where}"
    if free < GONE:
        return problem("disk", text, "free some space there: jobs and their ends cannot be recorded on a full disk")
    if free < SCARCE:
        return note("disk", text, "free some space there before it is full")
    return ok("disk", text)


_PREFIX = "STOKER_"

OF_THE_PROGRAM = frozenset({"STOKER_STATE", "STOKER_LEDGER", "STOKER_SIM", "STOKER_OUTPUT"})


def look_at_config(subject: Subject) -> Iterator[Verdict]:
    """The files that hold for the engine, and in this directory."""
    try:
        config = load_config(subject.environment, Path.cwd())
    except StokerError as error:
        yield problem("config", error.message, error.hint)
        return
    yield from (note("config", warning) for warning in config.warnings)
    files = ", ".join(map(str, config.files))
    yield ok("config", f"read from {files}" if files else "all as built in")


def look_at_variables(subject: Subject) -> Iterator[Verdict]:
    """STOKER_* variables that nobody reads, and those that a job was given."""
    given = sorted(name for name in subject.environment if name.startswith(_PREFIX))
    if "STOKER_JOB_ID" in given:
        yield note("variables", f"this runs inside job {subject.environment['STOKER_JOB_ID']}")
        given = [name for name in given if name not in _OF_A_JOB]
    known = subject.known_variables | OF_THE_PROGRAM
    unknown = [name for name in given if name not in known]
    for name in unknown:
        near = difflib.get_close_matches(name, known, 1, 0.75)
        yield note("variables", f"{name} means nothing to Stoker", f"did you mean {near[0]}?" if near else "")
    if not unknown:
        yield ok("variables", f"set are {', '.join(given)}" if given else "none is set")


_OF_A_JOB = frozenset(
    f"{_PREFIX}{name}"
    for name in (
        *("JOB_ID", "JOB_NAME", "ATTEMPT", "GPU_IDS", "GROUP", "VRAM", "ARRAY_ID", "ARRAY_INDEX"),
        *("WORK_DIR", "REPORT", "PARAMS", "KEEPER"),
    )
)

ROOT = Path("/")

_FOLDERS = ("usr/lib/systemd", "run/systemd", "etc/systemd")
"""Where the login manager is configured, the weakest first."""

_ASK = "busctl --timeout=3 get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager"

_LINGER = "loginctl enable-linger"


def look_at_unit(subject: Subject) -> Iterator[Verdict]:
    """Whether the unit, where there is one, still starts something."""
    path = unit_path(subject.environment)
    if program := missing_program(path):
        yield problem("unit", f"{path} starts {program}, which is not there any more", "stoker engine install")
    elif path.exists():
        yield ok("unit", f"systemd starts the engine by {path}")


def look_at_session(subject: Subject, root: Path = ROOT) -> Iterator[Verdict]:
    """What happens to processes at the end of the user's last session."""
    if not (root / "run/systemd/system").is_dir():
        yield ok("logout", "no systemd runs here that could end jobs at logout")
        return
    yield _judged(
        kills=_asked("KillUserProcesses") if root == ROOT else None,
        configured=kills_user_processes(_logind_files(root)),
        lingers=lingers(root),
        unit=has_unit(subject.environment),
    )


def _judged(*, kills: bool | None, configured: bool | None, lingers: bool, unit: bool) -> Verdict:
    """Without a word of the login manager and its files, it is as distributions build it: nothing is killed."""
    if (kills if kills is not None else configured) and not (lingers and unit):
        needed = [*([] if lingers else [_LINGER]), *([] if unit else ["stoker engine install"])]
        text = "systemd ends all your processes at logout (KillUserProcesses=yes), the engine and jobs too"
        return problem("logout", text, " && ".join(needed))
    if unit and not lingers:
        text = "the engine's unit ends at your last logout, with all jobs, since your user does not linger"
        return problem("logout", text, _LINGER)
    if not lingers:
        return note("logout", "jobs outlive your logout, but nothing starts the engine after a boot", _for_boots())
    return ok("logout", "jobs outlive your logout")


def _for_boots() -> str:
    return f"if that matters: stoker engine install, and {_LINGER}"


def has_unit(environment: Mapping[str, str]) -> bool:
    """Whether systemd starts the engine."""
    return unit_path(environment).exists()


def lingers(root: Path = ROOT) -> bool:
    """Whether the user's services go on without a session."""
    with contextlib.suppress(KeyError):
        return (root / "var/lib/systemd/linger" / pwd.getpwuid(os.getuid()).pw_name).exists()
    return False


def kills_user_processes(texts: Iterable[str]) -> bool | None:
    """What configuration files say, the weakest first; None where none says anything."""
    found: bool | None = None
    for text in texts:
        parser = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True)
        with contextlib.suppress(configparser.Error):
            parser.read_string(text)
            value = parser.get("Login", "KillUserProcesses", fallback="") or ""
            found = value.strip().lower() in ("yes", "true", "on", "1") if value.strip() else found
    return found


def _logind_files(root: Path) -> Iterator[str]:
    """The main file of the strongest folder, then all pieces by name; a stronger folder replaces namesakes."""
    folders = [root / folder for folder in _FOLDERS]
    mains = [path for folder in folders if (path := folder / "logind.conf").is_file()]
    spans = {path.name: path for folder in folders for path in (folder / "logind.conf.d").glob("*.conf")}
    for path in [*mains[-1:], *(spans[name] for name in sorted(spans))]:
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


def _asked(name: str) -> bool | None:
    """What the login manager itself says, where it can be asked."""
    answer = output_of([*_ASK.split(), name])
    return None if answer is None else answer.split() == ["b", "true"]


def look_at_ledger(subject: Subject, paths: Iterable[Path] = PLACES) -> Iterator[Verdict]:
    """The directory of leases: whether it can be used, is open to all, and is the one that all use."""
    if subject.simulated and not subject.environment.get("STOKER_LEDGER"):
        yield ok("ledger", "simulated GPUs are shared with nobody")
        return
    try:
        path = find_ledger(subject.environment, paths)
    except StokerError as error:
        yield problem("ledger", error.message, error.hint)
        return
    yield _openness(path)
    yield from (note("ledger", warning) for warning in Ledger(path).live().warnings)
    yield from _elsewhere(path, paths)


def _openness(path: Path) -> Verdict:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o002:
        return ok("ledger", f"{path} is open to all users")
    text = f"{path} has mode {mode:o}: other users cannot tell there what they use"
    return problem("ledger", text, f"let its owner run 'chmod 1777 {path}', or set STOKER_LEDGER to another one")


def _elsewhere(path: Path, paths: Iterable[Path]) -> Iterator[Verdict]:
    """Others who use another ledger do not see our leases, nor we theirs."""
    for other in paths:
        if other == path or not os.path.isdir(other):
            continue
        view = Ledger(other).live()
        if view.leases or view.demands:
            text = f"{_names(view)} use {other}, you use {path}: you may get each other's GPUs"
            yield problem("ledger", text, "let all set the same STOKER_LEDGER, or nobody any")


def _names(view: LedgerView) -> str:
    owners = {lease.owner for lease in view.leases.values()} | {demand.owner for demand in view.demands.values()}
    return ", ".join(sorted(owners))


_NVIDIA = "0x10de"

_DISPLAY_CLASS = "0x03"

PCI = Path("/sys/bus/pci/devices")


def look_at_gpus(subject: Subject, pci: Path = PCI) -> Iterator[Verdict]:
    """Every GPU that the driver shows; where it shows none, why."""
    if subject.simulated:
        yield ok("gpus", "simulated ones need no driver")
        return
    devices = NvidiaDevices()
    try:
        snapshot = devices.first(FIRST_ANSWER_SECONDS)
    except NvidiaAbsent as absent:
        yield judge_absence(absent.message, cards(pci))
        return
    finally:
        devices.close()
    yield ok("gpus", f"the NVIDIA driver shows {count_text(len(snapshot.devices), 'GPU')}")
    for device in snapshot.devices:
        yield from _trouble(device, snapshot.reading(device.id))
    yield from _persistence()


def judge_absence(reason: str, cards: int) -> Verdict:
    """Why there is no GPU; without a card that may be as it should be."""
    if "not found" not in reason:
        return problem("gpus", reason, "see what nvidia-smi says; a restart of the machine mends most of it")
    if cards:
        text = f"{count_text(cards, 'NVIDIA card')} in this machine, but {reason}"
        return problem("gpus", text, "install the NVIDIA driver")
    advice = "name devices yourself (--devices), try simulated ones (--sim 4x24G), or run jobs without GPU (-G 0)"
    return note("gpus", f"no GPU in this machine: {reason}", advice)


def cards(pci: Path = PCI) -> int:
    """How many graphics cards of NVIDIA's the machine has, driver or not."""
    found = 0
    with contextlib.suppress(OSError):
        for device in pci.iterdir():
            with contextlib.suppress(OSError):
                vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
                found += vendor == _NVIDIA and kind.startswith(_DISPLAY_CLASS)
    return found


def _trouble(device: Device, reading: Reading) -> Iterator[Verdict]:
    if reading.problem:
        advice = "see nvidia-smi and dmesg; a lost GPU comes back with a reset or a restart of the machine"
        yield problem("gpus", f"GPU {device.label}: {reading.problem}", advice)


def _persistence() -> Iterator[Verdict]:
    """Without persistence a driver forgets the GPU between two jobs, and each one waits for it anew."""
    said = output_of([sys.executable, "-P", "-m", "stoker.devices.nvml_probe", "persistence"], FIRST_ANSWER_SECONDS)
    if said and (off := said.split()):
        text = f"persistence mode is off on GPU {', '.join(off)}: a job on an idle GPU starts seconds later"
        yield note("gpus", text, "let root run: systemctl enable --now nvidia-persistenced")


def look_at_queue(subject: Subject) -> Iterator[Verdict]:
    """The file of the queue, from its first page to its last."""
    path = subject.paths.database
    if not path.exists() and not has_log_without_file(path):
        yield ok("queue", "nothing was submitted yet")
    elif wrong := damage(path):
        yield problem("queue", f"{path}: {wrong}", NEWER_HINT if "newer Stoker" in wrong else DAMAGED_HINT)
    else:
        yield ok("queue", f"{path} is whole")


def look_at_engine(subject: Subject, *, answers: bool) -> Iterator[Verdict]:
    """Whether somebody serves what was submitted."""
    paths = subject.paths
    pid = process_of(paths, QUEUE)
    if pid is None:
        yield _absent(subject)
        return
    if not answers:
        advice = f"see {paths.log}; then: stoker engine stop && stoker engine start; jobs go on"
        yield problem("engine", f"the engine (process {pid}) does not answer", advice)
        return
    view = read_status(paths.status_file(QUEUE))
    if notice := version_notice(paths):
        what, _, _ = notice.partition(";")
        yield note("engine", what, "stoker engine stop && stoker engine start; jobs go on")
    if view is not None and view.trouble:
        yield problem("engine", f"the engine cannot work as it should: {view.trouble}", f"see {paths.log}")
    else:
        yield ok("engine", f"it runs (process {pid}) and answers")


def _absent(subject: Subject) -> Verdict:
    with _store(subject) as store:
        load = queries.loads(store).get(QUEUE) if store else None
    if load is not None and load.open:
        text = f"{count_text(load.open, 'job')} in the queue, and no engine runs"
        return problem("engine", text, "stoker engine start")
    return ok("engine", "none runs, and none is needed; it starts with the next submit")


def look_at_leftovers(subject: Subject) -> Iterator[Verdict]:
    """What dead engines left: jobs, workers and leases."""
    with _store(subject) as store:
        if store is None:
            return
        left = [*_jobs(subject, store), *_workers(subject, store), *_leases(subject, store)]
    yield from left or [ok("leftovers", "none")]


def _jobs(subject: Subject, store: Store) -> Iterator[Verdict]:
    paths = subject.paths
    held = [orphan for orphan in held_orphans(paths, store) if orphan.engine != QUEUE]
    if held:
        text = f"{count_text(len(held), 'job')} of a run that died, still in the hands of workers"
        yield note("leftovers", text, "the engine records how they end: stoker engine start")
    waiting = sum(not isinstance(each.job.state, Active) for each in orphans(paths, store) if each.engine != QUEUE)
    if waiting:
        text = f"{count_text(waiting, 'job')} of a run that died, left waiting"
        yield note("leftovers", text, "go on with them (stoker run --resume, stoker resume), or cancel them")


def _workers(subject: Subject, store: Store) -> Iterator[Verdict]:
    with contextlib.suppress(FileNotFoundError):
        if names := leftover_workers(subject.paths, store):
            text = f"{count_text(len(names), 'folder')} of workers that nobody needs any more"
            yield note("leftovers", text, "the next engine removes them: stoker engine start")


def _leases(subject: Subject, store: Store) -> Iterator[Verdict]:
    """Leases of this user's that no job of this queue has; a living engine may hold some in reserve."""
    if any(True for _ in living_engines(subject.paths)):
        return
    with contextlib.suppress(StokerError):
        view = Ledger(find_ledger(subject.environment)).live()
        refs = [owned.job.state.ref for owned in queries.all_active(store) if isinstance(owned.job.state, Active)]
        known = {word for ref in refs for word in ref.split()}  # the name of the lease is one of the words
        ours = {name: lease for name, lease in view.leases.items() if lease.owner == owner_name(os.geteuid())}
        for name, lease in ours.items():
            if name not in known:
                devices = ", ".join(claim.name for claim in lease.claims)
                text = f"a lease of yours on {devices} ({lease.what}) belongs to no job of this queue"
                yield note(
                    "leftovers", text, f"if nothing else of yours uses it, see process {lease.pid} and its children"
                )


@contextlib.contextmanager
def _store(subject: Subject) -> Iterator[Store | None]:
    """The store, where there is one that can be opened."""
    store: Store | None = None
    with contextlib.suppress(StokerError):
        store = open_store(subject.paths) if subject.paths.database.exists() else None
    try:
        yield store
    finally:
        if store is not None:
            store.close()


Look = Callable[[Subject], Iterable[Verdict]]


def diagnose(subject: Subject, *, answers: bool) -> Iterator[Verdict]:
    """One matter after the other; `answers` is whether the engine, where one lives, reacted when it was asked."""
    looks: list[tuple[str, Look]] = [
        ("state", look_at_place),
        ("disk", look_at_space),
        ("queue", look_at_queue),
        ("engine", partial(look_at_engine, answers=answers)),
        ("leftovers", look_at_leftovers),
        ("ledger", look_at_ledger),
        ("gpus", look_at_gpus),
        ("config", look_at_config),
        ("variables", look_at_variables),
        ("unit", look_at_unit),
        ("logout", look_at_session),
        ("clock", look_at_clock),
        ("limits", look_at_limits),
    ]
    for topic, look in looks:
        try:
            yield from list(look(subject))
        except OSError as error:  # one matter that cannot be seen hides no other
            yield problem(topic, f"this cannot be looked at: {error}", "see whether you may read it")
