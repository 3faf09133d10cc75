"""Record the software that jobs start with: Python and its packages, the driver, and the GPUs of the machine.

An engine records it when it starts a job, and again only when it has changed. Jobs of one environment share a record:
a folder for each environment and program has a file for each change, whose name is the moment and the record.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from stoker.core.device import Device
from stoker.core.job import Job
from stoker.core.spec import JobSpec, digest_of
from stoker.core.units import size_text
from stoker.features.freeze import interpreter
from stoker.store.paths import UNREADABLE, Paths, host_name, replace_file
from stoker.store.reader import Reader

CHECK_INTERVAL = 1.0
"""Seconds for which what was seen of an environment counts as current."""
MOST_KNOWN = 1000
"""Environments whose next check is remembered."""
CLOSE_SECONDS = 2.0
"""Seconds that an engine waits at its end for the last record."""
PROBE_SECONDS = 20.0
"""Seconds within which a Python must say where it looks for packages."""
YOUNG_SECONDS = 86_400.0
"""Age below which a record without a reference stays: its reference may be about to be written."""
NVIDIA = "/proc/driver/nvidia/version"
_PYTHONS = ("python3", "python")
_PATHS = ("PATH", "PYTHONPATH")
"""The variables that decide which packages a program finds."""


class Software(Struct, frozen=True):
    """Python, packages and driver at one moment."""

    python: str
    """Version of its Python; empty if there is none, or if it did not answer."""
    implementation: str
    executable: str
    source: str
    """Where that Python is named: in the `command`, in the `program` that the command starts, or on the `PATH`."""
    environment: str
    """Directory of the virtual or conda environment, or of the Python itself."""
    packages: dict[str, str]
    """Versions by name."""
    conda: dict[str, str]
    """Packages of conda, which may be other than Python's."""
    driver: str
    """Version of the NVIDIA driver; empty without one."""
    gpus: dict[str, str]
    """All GPUs of the machine: models and sizes by number."""
    host: str


class Place(NamedTuple):
    """The program, directory and variables that decide where a job finds its packages."""

    program: str
    cwd: str
    variables: Mapping[str, str]


class _Request(NamedTuple):
    folder: Path
    place: Place
    devices: Sequence[Device]
    at: float


# -- where records are -----------------------------------------------------------------------------


def folder_of(paths: Paths, job: Job) -> Path:
    """The folder of the environment and the program of a job."""
    return paths.software / _folder_name(job.spec, _program(job))


def _folder_name(spec: JobSpec, program: str) -> str:
    """Begins with the digest of the environment: both are removed together."""
    own = {name: value for name, value in spec.extra_env if name in _PATHS}
    cwd = spec.cwd if "/" in program and not program.startswith("/") else ""
    return f"{spec.environment}-{digest_of({**own, 'program': program, 'cwd': cwd})[:8]}"


def _program(job: Job) -> str:
    """The word that may lead to a Python; empty if only the PATH can.

    Paths of other programs are left out: a thousand scripts of a queue share a folder.
    """
    words = job.command.words[0].split(None, 1) if job.command.shell else job.command.words
    word = words[0] if words else ""
    return word if "/" not in word or os.path.basename(word).startswith("python") else ""


def place_of(job: Job, environment: Mapping[str, str]) -> Place:
    return Place(_program(job), job.spec.cwd, {**environment, **dict(job.spec.extra_env)})


class RecordedSoftware(NamedTuple):
    """A record, and since when it was true."""

    since: float
    digest: str
    software: Software


def software_at(paths: Paths, job: Job, started: float, node: str = "") -> RecordedSoftware | None:
    """The record for a job that started then; of several nodes that of this one, if it is known."""
    changes = _changes(folder_of(paths, job))
    here = [change for change in changes if change.host == node] or changes
    # The worker tells the start by a clock of its own, which may be a little behind.
    before = [change for change in here if change.since <= started] or [
        change for change in here[:1] if change.since <= started + CHECK_INTERVAL
    ]
    for change in reversed(before):
        with contextlib.suppress(*UNREADABLE):
            body = _record(paths.software, change.digest).read_bytes()
            return RecordedSoftware(change.since, change.digest, msgspec.json.decode(body, type=Software))
    return None


class _Change(NamedTuple):
    since: float
    host: str
    digest: str


def _changes(folder: Path) -> list[_Change]:
    """The changes of an environment, the oldest first."""
    changes = []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(folder):
            with contextlib.suppress(ValueError):
                since, host, digest = name.split("~")
                changes.append(_Change(float(since), host, digest))
    return sorted(changes)


def _record(software: Path, digest: str) -> Path:
    return software / f"{digest}.json"


def write(folder: Path, software: Software, at: float) -> None:
    """Record what was found at a moment, unless the last record on this host says the same."""
    body = msgspec.json.encode(software, order="sorted")
    digest = hashlib.sha256(body).hexdigest()[:32]
    before = [change for change in _changes(folder) if change.host == software.host and change.since <= at]
    if before and before[-1].digest == digest:
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = _record(folder.parent, digest)
    if record.exists():
        record.touch()  # so that it counts as young until its name is there
    else:
        replace_file(record, body)
    (folder / f"{at:.3f}~{software.host}~{digest}").touch(mode=0o600)


def forget(paths: Paths, store: Reader, now: float) -> Iterator[None]:
    """Remove the records of environments that no job has any more, in steps."""
    for place in paths.everywhere:
        used = set[str]()
        for name in _names(place.software):
            digest = name.rpartition("-")[0]
            if name.endswith(".json"):
                continue
            if store.has_environment(digest):
                used.update(change.digest for change in _changes(place.software / name))
            else:
                shutil.rmtree(place.software / name, ignore_errors=True)
            yield
        for name in _names(place.software):
            record = place.software / name
            with contextlib.suppress(FileNotFoundError):
                if name.endswith(".json") and record.stem not in used and now - record.stat().st_mtime > YOUNG_SECONDS:
                    record.unlink()
        yield


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return os.listdir(folder)
    return []


# -- looking ---------------------------------------------------------------------------------------


class SoftwareObserver:
    """Records what jobs find when they start, in a thread: a file system that hangs must not stop the engine."""

    def __init__(self, paths: Paths) -> None:
        self._folder = paths.software
        self._due: dict[tuple[str, str, tuple[tuple[str, str], ...], str], float] = {}
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def starting(self, job: Job, environment: Mapping[str, str], devices: Sequence[Device], at: float) -> None:
        """Look at the environment of a job, unless that was done a moment ago."""
        spec, program = job.spec, _program(job)
        key = spec.environment, program, spec.extra_env, spec.cwd if "/" in program else ""
        if at < self._due.get(key, 0.0) or job.spec.role == "hook":
            return
        if len(self._due) >= MOST_KNOWN:
            self._due.clear()
        self._due[key] = at + CHECK_INTERVAL
        folder = self._folder / _folder_name(spec, program)
        self._requests.put(_Request(folder, place_of(job, environment), devices, at))
        if self._thread is None:
            self._thread = threading.Thread(target=self._look, name="software", daemon=True)
            self._thread.start()

    def close(self) -> None:
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join(CLOSE_SECONDS)

    def _look(self) -> None:
        look = SoftwareLook()
        for request in iter(self._requests.get, None):
            with contextlib.suppress(*UNREADABLE):  # nothing is recorded, and the job runs all the same
                write(request.folder, look.at(request.place, request.devices), request.at)


class SoftwareLook:
    """Looks at environments; reads only directories that have changed since the last look."""

    def __init__(self) -> None:
        self._folders: dict[str, tuple[int, dict[str, str]]] = {}
        self._pythons: dict[tuple[str, int, int], dict[str, Any]] = {}

    def at(self, place: Place, devices: Sequence[Device]) -> Software:
        """The software that a program finds if it starts at a place now."""
        source, executable = find_python(place)
        facts = self._facts(executable, place) if executable else {}
        virtual = _virtual_environment(executable) if facts else None
        prefix = virtual.prefix if virtual else str(facts.get("prefix", ""))
        packages: dict[str, str] = {}
        for folder in _package_folders(facts, virtual, place.variables) if facts else ():
            packages = {**self._listed(folder, _package), **packages}  # Python takes the first, too
        return Software(
            python=str(facts.get("version", "")),
            implementation=str(facts.get("implementation", "")),
            executable=executable,
            source=source if executable else "",
            environment=prefix,
            packages=packages,
            conda=self._listed(os.path.join(prefix, "conda-meta"), _conda_package) if prefix else {},
            driver=_driver(),
            gpus={device.label: _gpu_text(device) for device in devices},
            host=host_name().partition(".")[0],
        )

    def _listed(self, folder: str, read: Any) -> dict[str, str]:
        """The packages of a directory, whose time changes when one is added or removed."""
        try:
            changed = os.stat(folder).st_mtime_ns
            if self._folders.get(folder, (-1, {}))[0] != changed:
                packages = sorted(filter(None, map(read, os.listdir(folder))))
                self._folders[folder] = changed, dict(packages)
        except OSError:
            return {}
        return self._folders[folder][1]

    def _facts(self, executable: str, place: Place) -> dict[str, Any]:
        """The answers of a Python about itself; it is asked once, and the engine's own is not started."""
        real = os.path.realpath(executable)
        if real == os.path.realpath(interpreter_here()):
            return interpreter.describe()
        try:
            status = os.stat(real)
            key = real, status.st_mtime_ns, status.st_size
            if key not in self._pythons:
                self._pythons[key] = _ask(executable, place)
        except OSError:
            return {}
        return self._pythons[key]


def interpreter_here() -> str:
    import sys

    return sys.executable


def _ask(executable: str, place: Place) -> dict[str, Any]:
    import subprocess

    words = [executable, "-E", "-s", "-S", os.path.abspath(interpreter.__file__)]
    run = partial(subprocess.run, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        answer = run(words, cwd="/", env=dict(place.variables), timeout=PROBE_SECONDS, check=False).stdout
        return msgspec.json.decode(answer, type=dict[str, Any])
    except (subprocess.SubprocessError, *UNREADABLE):
        return {}


def find_python(place: Place) -> tuple[str, str]:
    """Where the Python of a program is named, and its path; empty if there is none."""
    path = place.variables.get("PATH", os.defpath)
    if place.program:
        program = _on_path(place.program, place.cwd, path)
        if os.path.basename(place.program).startswith("python"):
            return "command", program
        if program and (named := _named_in(program)):
            return "program", named
    return "PATH", next(filter(None, (_on_path(name, place.cwd, path) for name in _PYTHONS)), "")


def _on_path(name: str, cwd: str, path: str) -> str:
    folders = [""] if "/" in name else path.split(os.pathsep)
    candidates = (os.path.join(cwd, folder, name) for folder in folders)
    return next((file for file in candidates if os.access(file, os.X_OK) and os.path.isfile(file)), "")


def _named_in(program: str) -> str:
    """The Python in the first line of a program, as pip writes it; one by `env` is found on the PATH."""
    try:
        with open(program, "rb") as file:
            first = os.fsdecode(file.readline(500))
    except OSError:
        return ""
    words = first[2:].split() if first.startswith("#!") else []
    return words[0] if words and os.path.basename(words[0]).startswith("python") else ""


class _Virtual(NamedTuple):
    prefix: str
    sees_system: bool


def _virtual_environment(executable: str) -> _Virtual | None:
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(executable)))
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8", errors="replace") as file:
            settings = dict(line.replace(" ", "").strip().lower().split("=", 1) for line in file if "=" in line)
    except OSError:
        return None
    return _Virtual(prefix, settings.get("include-system-site-packages") == "true")


def _package_folders(facts: Mapping[str, Any], virtual: _Virtual | None, variables: Mapping[str, str]) -> Iterator[str]:
    """Where a Python looks for packages, in its order."""
    yield from (folder for folder in variables.get("PYTHONPATH", "").split(os.pathsep) if folder.startswith("/"))
    if virtual is not None:
        yield os.path.join(virtual.prefix, facts["inner"])
    if virtual is None or virtual.sees_system:
        yield from [] if variables.get("PYTHONNOUSERSITE") else [facts["user"]]
        yield from facts["folders"]


def _package(name: str) -> tuple[str, str] | None:
    """`torch-2.4.1.dist-info` as name and version."""
    stem, _, kind = name.rpartition(".")
    package, _, version = stem.partition("-")
    if kind not in ("dist-info", "egg-info") or not package or not version:
        return None
    return package.lower().replace("_", "-"), version.partition("-py")[0] if kind == "egg-info" else version


def _conda_package(name: str) -> tuple[str, str] | None:
    """`cuda-nvcc-12.4.131-0.json` as name and version."""
    parts = name.removesuffix(".json").rsplit("-", 2)
    return (parts[0], parts[1]) if name.endswith(".json") and len(parts) == 3 else None


def _driver() -> str:
    """The version in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 ...`."""
    try:
        with open(NVIDIA, encoding="ascii", errors="replace") as file:
            words = file.readline().split()
    except OSError:
        return ""
    return next((word for word in words if word[:1].isdigit() and "." in word), "")


def _gpu_text(device: Device) -> str:
    return " ".join(filter(None, (device.model, size_text(device.memory) if device.memory else "")))
