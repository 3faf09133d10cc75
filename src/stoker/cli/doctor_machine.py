"""What a check finds, and the checks of the machine: GPUs, systemd, clock and limits."""

from __future__ import annotations

import configparser
import contextlib
import os
import pwd
import resource
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from stoker.core.units import count_text, duration_text
from stoker.devices.detect import FIRST_ANSWER_SECONDS
from stoker.devices.nvidia import NvidiaAbsent, NvidiaDevices
from stoker.queue.systemd_unit import missing_program, unit_path
from stoker.store.engine_lock import QUEUE, engine_lives
from stoker.store.paths import Paths
from stoker.store.status_file import read_status

COMMAND_SECONDS = 5.0
"""How long a program of the system may take to answer."""
RESTART = "stoker engine restart; jobs go on"


class Verdict(Struct, frozen=True):
    """One matter: well, worth knowing, or to be mended."""

    topic: str
    level: Literal["ok", "note", "problem"]
    text: str
    advice: str = ""
    """What to type, or to do, where something is not well."""


class Subject(Struct, frozen=True):
    """The machine, user and queue to check."""

    paths: Paths
    environment: Mapping[str, str]
    simulated: bool
    now: float
    answers: bool = False
    """Whether the engine, where one lives, reacted when it was asked."""
    known_variables: frozenset[str] = frozenset()
    """Names of STOKER_* variables that set an option or a setting."""


def ok(text: str) -> Verdict:
    return Verdict("", "ok", text)


def note(text: str, advice: str = "") -> Verdict:
    """Worth knowing, and no harm by itself."""
    return Verdict("", "note", text, advice)


def problem(text: str, advice: str) -> Verdict:
    """Keeps Stoker from working as it should, or will."""
    return Verdict("", "problem", text, advice)


def output_of(command: Sequence[str], seconds: float = COMMAND_SECONDS) -> str | None:
    """The output of a program; None where it is missing, fails, or takes too long."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    return done.stdout if done.returncode == 0 else None


# -- GPUs

PCI = Path("/sys/bus/pci/devices")


def check_gpus(subject: Subject, pci: Path = PCI) -> Iterator[Verdict]:
    """Every GPU that the driver shows; where it shows none, why."""
    if subject.simulated:
        yield ok("simulated ones need no driver")
        return
    devices = NvidiaDevices()
    try:
        snapshot = devices.first(FIRST_ANSWER_SECONDS)
    except NvidiaAbsent as absent:
        yield judge_absence(absent.message, nvidia_cards(pci))
        return
    finally:
        devices.close()
    yield ok(f"the NVIDIA driver shows {count_text(len(snapshot.devices), 'GPU')}")
    for device in snapshot.devices:
        if trouble := snapshot.reading(device.id).problem:
            advice = "see nvidia-smi and dmesg; a lost GPU comes back with a reset or a restart of the machine"
            yield problem(f"GPU {device.label}: {trouble}", advice)
    # Without persistence the driver forgets an idle GPU, and the next job waits until it is ready again.
    said = output_of([sys.executable, "-P", "-m", "stoker.devices.nvml_probe", "persistence"], FIRST_ANSWER_SECONDS)
    if said and (off := said.split()):
        text = f"persistence mode is off on GPU {', '.join(off)}: a job on an idle GPU starts seconds later"
        yield note(text, "let root run: systemctl enable --now nvidia-persistenced")


def judge_absence(reason: str, cards: int) -> Verdict:
    """Why there is no GPU, which is fine on a machine without a card."""
    if "not found" not in reason:
        return problem(reason, "see what nvidia-smi says; a restart of the machine mends most of it")
    if cards:
        return problem(f"{count_text(cards, 'NVIDIA card')} in this machine, but {reason}", "install the NVIDIA driver")
    advice = "name devices yourself (--devices), try simulated ones (--sim 4x24G), or run jobs without GPU (-G 0)"
    return note(f"no GPU in this machine: {reason}", advice)


def nvidia_cards(pci: Path = PCI) -> int:
    """The number of NVIDIA graphics cards, with or without a driver."""
    found = 0
    with contextlib.suppress(OSError):
        for device in pci.iterdir():
            with contextlib.suppress(OSError):
                vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
                found += vendor == "0x10de" and kind.startswith("0x03")  # NVIDIA, display controller
    return found


# -- systemd

ROOT = Path("/")
_FOLDERS = ("usr/lib/systemd", "run/systemd", "etc/systemd")
"""Where the login manager is configured, the weakest first."""
_KILLS_PROCESSES = (
    "busctl --timeout=3 get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager "
    "KillUserProcesses"
)
_LINGER = "loginctl enable-linger"


def check_unit(subject: Subject) -> Iterator[Verdict]:
    """Whether the program of the unit exists."""
    path = unit_path(subject.environment)
    if program := missing_program(path):
        yield problem(f"{path} starts {program}, which is not there any more", "stoker engine install")
    elif path.exists():
        yield ok(f"systemd starts the engine by {path}")


def check_logout(subject: Subject, root: Path = ROOT) -> Iterator[Verdict]:
    """What systemd does to processes at the end of the user's last session."""
    if not (root / "run/systemd/system").is_dir():
        yield ok("no systemd runs here that could end jobs at logout")
        return
    kills = _asked_login_manager() if root == ROOT else None
    if kills is None:
        kills = kills_user_processes(_logind_files(root))
    lingers, unit = _lingers(root), unit_path(subject.environment).exists()
    if kills and not (lingers and unit):
        needed = [*([] if lingers else [_LINGER]), *([] if unit else ["stoker engine install"])]
        text = "systemd ends all your processes at logout (KillUserProcesses=yes), the engine and jobs too"
        yield problem(text, " && ".join(needed))
    elif unit and not lingers:
        yield problem(
            "the engine's unit ends at your last logout, with all jobs, since your user does not linger", _LINGER
        )
    elif not lingers:
        advice = f"if that matters: stoker engine install, and {_LINGER}"
        yield note("jobs outlive your logout, but nothing starts the engine after a boot", advice)
    else:
        yield ok("jobs outlive your logout")


def _lingers(root: Path) -> bool:
    """Whether the user's services go on without a session."""
    with contextlib.suppress(KeyError):
        return (root / "var/lib/systemd/linger" / pwd.getpwuid(os.getuid()).pw_name).exists()
    return False


def kills_user_processes(texts: Iterable[str]) -> bool | None:
    """What configuration files say, the weakest first; None, as distributions build it, means no."""
    found: bool | None = None
    for text in texts:
        parser = configparser.ConfigParser(strict=False, interpolation=None, allow_no_value=True)
        with contextlib.suppress(configparser.Error):
            parser.read_string(text)
            value = parser.get("Login", "KillUserProcesses", fallback="") or ""
            found = value.strip().lower() in ("yes", "true", "on", "1") if value.strip() else found
    return found


def _logind_files(root: Path) -> Iterator[str]:
    """The main file of the strongest folder, then all drop-ins by name; a stronger folder replaces namesakes."""
    folders = [root / folder for folder in _FOLDERS]
    mains = [path for folder in folders if (path := folder / "logind.conf").is_file()]
    drop_ins = {path.name: path for folder in folders for path in (folder / "logind.conf.d").glob("*.conf")}
    for path in [*mains[-1:], *(drop_ins[name] for name in sorted(drop_ins))]:
        with contextlib.suppress(OSError):
            yield path.read_text(errors="replace")


def _asked_login_manager() -> bool | None:
    answer = output_of(_KILLS_PROCESSES.split())
    return None if answer is None else answer.split() == ["b", "true"]


# -- the machine

OLDEST = 1_704_067_200.0
"""The start of 2024, before the first version of this program."""
JUMP = 5.0
"""Seconds by which an engine's clock may differ from the machine's."""
FEW_FILES = 256
FEW_PROCESSES = 200
"""Room for so many more processes is little: a data loader alone has dozens."""


def check_clock(subject: Subject) -> Iterator[Verdict]:
    """The date, its source, and whether it was set while the engine ran."""
    if subject.now < OLDEST:
        yield problem("the machine's clock is years behind", "set it: timedatectl set-ntp true")
        return
    jump = _jump(subject)
    if abs(jump) > JUMP:
        way, span = "forward" if jump > 0 else "back", duration_text(abs(jump))
        yield note(f"the clock was set {way} by {span} since the engine started, which goes by the old one", RESTART)
    answer = output_of(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    if answer is not None and answer.strip() == "no":
        yield note("the clock is not synchronised with others", "timedatectl set-ntp true")
    elif abs(jump) <= JUMP:
        yield ok("nothing is wrong with it" if answer is None else "synchronised")


def _jump(subject: Subject) -> float:
    """How far the machine's clock is ahead of a living engine's, which no setting moves."""
    path = subject.paths.status_file(QUEUE)
    view = read_status(path)
    if view is not None and engine_lives(subject.paths, QUEUE):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime - view.at
    return 0.0


def check_limits(_subject: Subject) -> Iterator[Verdict]:
    """`ulimit -n` and `ulimit -u`."""
    yield judge_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    uid = os.getuid()
    yield judge_processes(resource.getrlimit(resource.RLIMIT_NPROC)[0], _threads_of(uid), uid)


def judge_files(limit: int) -> Verdict:
    """The limit of open files in one process."""
    if limit == resource.RLIM_INFINITY:
        return ok("a process may open any number of files")
    if limit < FEW_FILES:
        return problem(f"a process may open only {limit} files", "raise it: ulimit -n 4096")
    return ok(f"a process may open {limit} files")


def judge_processes(limit: int, running: int, uid: int) -> Verdict:
    """The limit of all processes and threads of a user, which does not hold for root."""
    if limit == resource.RLIM_INFINITY or uid == 0:
        return ok("as many processes as the machine can take")
    text = f"{running} of {limit} processes and threads that you may have are running"
    if limit - running < FEW_PROCESSES // 4:
        return problem(text, "raise the limit (ulimit -u), or end some: jobs cannot start")
    if limit - running < FEW_PROCESSES:
        return note(text, "raise the limit: ulimit -u")
    return ok(text)


def _threads_of(uid: int) -> int:
    count = 0
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                if process.stat().st_uid == uid:
                    count += len(os.listdir(process / "task"))
    return count
