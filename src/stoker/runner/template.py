"""A template: a Python of the user that has imported modules, and forks workers whose jobs start with them.

It serves as a forkserver: a worker that it forked is like any other, but can fork a process that has the modules. So
every job is a child of its worker, and no job depends on the template any more once its worker lives. This module and
those that it needs use only the standard library, since the user's environment has no other part of Stoker.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import re
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

from stoker.runner import forkserver, script
from stoker.runner.inherited import FAILED, MARKER, READY
from stoker.runner.spawn import ForkedJob, drop_half_read_input

IMPORT_SECONDS = 120
"""Seconds for the imports; then the kernel ends the template, whatever it does."""
SLOW_LOOK_SECONDS = 1.0
"""Seconds between two looks at the files of installed packages, of which there are thousands."""
MOST_SAID = 1 << 16
"""Bytes that the modules may print; each job prints them again."""
_STARTED_ONCE: Mapping[str, str] = {"mpi4py.MPI": "MPI cannot be shared by processes"}
"""Modules that no forked process can use, and why."""
_LATER: Mapping[str, str] = {"torch": "torch._dynamo"}
"""Modules that a package imports when it is first used, which takes as long: optimizers of torch do."""
_HANDLES = re.compile(r"/dev/(?:nvidia|kfd|dri/|infiniband)|socket:|anon_inode:\[eventpoll\]|anon_inode:\[io_uring\]")
"""Descriptors that two processes must not share."""
_RELIED_ON: tuple[ModuleType, ...] = (os, select, signal, socket, time, json, gc)
"""Modules whose functions the worker calls."""
_INSTALLED = re.compile(r"/(?:site|dist)-packages/")


class CannotFork(Exception):
    """Why no job can be forked from this process."""


def main() -> None:
    """Import the modules that the first message names, then fork a worker for every other message."""
    control = socket.socket(fileno=int(sys.argv[1]))
    if not (message := control.recv(1 << 20)):
        os._exit(0)  # the engine died before it could send it
    settings = json.loads(message)
    streams = [_moved(number) for number in (0, 1, 2)]
    try:
        template = _made(settings, control)
    except CannotFork as error:
        control.send(FAILED + str(error).encode(errors="replace")[:2000])
        os._exit(1)
    control.send(READY + str(len(template.files)).encode())
    job = None
    try:
        forkserver.serve(control, template, streams)
    except ForkedJob as forked:
        job = forked.job
    assert job is not None
    words = template.enter(*job)
    script.run(job[0]["warm"], words, template.codes)


def _moved(number: int) -> int:
    """A copy of a standard stream for workers; the modules get nothing to read, and a file in memory to write to."""
    import fcntl

    copy: int = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100)
    replacement = os.memfd_create("output") if number else os.open(os.devnull, os.O_RDONLY)
    os.dup2(replacement, number)
    os.close(replacement)
    return copy


def _made(settings: Mapping[str, Any], control: socket.socket) -> TemplateImage:
    """Import, and check that what is there now can be forked."""
    own = {name for name in sys.modules if name == "stoker" or name.startswith("stoker.")}
    for name in own:  # a job may import a Stoker of its own
        del sys.modules[name]
    if not sys.flags.safe_path:
        sys.path[0] = settings["search_path"]
    _reset_signals()
    before = {module: dict(vars(module)) for module in _RELIED_ON}
    mine = os.getpid()
    signal.alarm(IMPORT_SECONDS)
    for module in settings["modules"]:
        _import(module, mine)
    for package, later in _LATER.items():
        if package in sys.modules:
            with contextlib.suppress(Exception):  # another version of the package
                importlib.import_module(later)
    signal.alarm(0)
    _check_descriptors({control.fileno()})
    _check_processes()
    _check_threads()
    _check_state(before)
    for name, why in _STARTED_ONCE.items():
        if name in sys.modules:
            raise CannotFork(f"{name}: {why}")
    return TemplateImage(settings)


def _reset_signals() -> None:
    """As in a new process: the engine may ignore some."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    ignored_by_python = {signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - ignored_by_python:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _import(module: str, mine: int) -> None:
    """Import `module`, or `module:name,name` as `from module import name, name` does."""
    name, _, wanted = module.partition(":")
    try:
        imported = importlib.import_module(name)
        for attribute in filter(None, wanted.split(",")):
            if not hasattr(imported, attribute):
                importlib.import_module(f"{name}.{attribute}")
    except BaseException as error:
        if os.getpid() == mine:
            text = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
            raise CannotFork(f"{name} cannot be imported ({text})") from None
    if os.getpid() != mine:  # a copy that the module made and that came back
        os._exit(0)


def _check_descriptors(known: set[int]) -> None:
    for number, target in _descriptors():
        if number not in known and (match := _HANDLES.match(target)):
            what = "a GPU or another device" if match[0].startswith("/dev") else "a socket or an event queue"
            raise CannotFork(f"the modules opened {what} ({target})")


def _check_processes() -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        raise CannotFork("the modules started a process")


def _check_threads() -> None:
    """Refuse threads that a fork does not end; OpenBLAS, for example, ends its own and starts them again."""
    if len(os.listdir("/proc/self/task")) > 1:
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
    if (count := len(os.listdir("/proc/self/task"))) > 1:
        names = sorted({_thread_name(task) for task in os.listdir("/proc/self/task")})
        raise CannotFork(f"the modules started {count - 1} threads ({', '.join(names)})")


def _thread_name(task: str) -> str:
    with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
        return file.read().strip()
    return "?"


def _check_state(before: Mapping[ModuleType, Mapping[str, object]]) -> None:
    """Refuse modules that replace functions the worker needs, and directories that the first job would remove."""
    for module, names in before.items():
        for name, value in names.items():
            if vars(module).get(name) is not value and not name.startswith("__"):
                raise CannotFork(f"the modules replace {module.__name__}.{name}")
    if "weakref" in sys.modules:
        finalizers = sys.modules["weakref"].finalize._registry
        for info in list(finalizers.values()):
            if "TemporaryDirectory" in getattr(info.func, "__qualname__", ""):
                raise CannotFork("the modules made a temporary directory, which ends with the first job")


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            yield int(name), os.readlink(f"/proc/self/fd/{name}")


class TemplateImage:
    """All that a worker needs to fork jobs: it is the same in the template and in its workers."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.key: str = settings["key"]
        path = settings["script"]
        self.codes: dict[tuple[str, script.Stamp | None], CodeType] = {}
        if path and script.is_script(path):
            with contextlib.suppress(Exception):  # each job reports what is wrong with it
                self.codes[path, script.stamp_of(path)] = script.compiled(path)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        self._said = {number: os.pread(number, MOST_SAID, 0) for number in (1, 2)}
        self._variables = _changed_variables()
        self._handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._kept = {number for number, _ in _descriptors() if not os.get_inheritable(number)}
        paths = {file for module in list(sys.modules.values()) if (file := _file_of(module))}
        stamps = {file: script.stamp_of(file) for file in [*paths, os.path.realpath(sys.executable)]}
        self.files = stamps
        self._fast = {file: stamp for file, stamp in stamps.items() if not _is_installed(file)}
        self._looked = time.monotonic()
        self._outdated = ""
        gc.collect()
        gc.freeze()

    def outdated(self) -> str:
        """The file that has changed since its import; empty if none has."""
        if not self._outdated:
            now = time.monotonic()
            is_due = now - self._looked >= SLOW_LOOK_SECONDS
            self._looked = now if is_due else self._looked
            files = self.files if is_due else self._fast
            self._outdated = next((file for file, stamp in files.items() if script.stamp_of(file) != stamp), "")
        return self._outdated

    def refusal(self, order: Mapping[str, Any]) -> str:
        """Why an order's process cannot be forked here; empty if it can."""
        warm = order["warm"]
        if warm["template"] != self.key:
            return "its worker has the modules of other jobs"
        if order.get("terminal"):
            return "it has a terminal of its own"
        if warm["kind"] == "file" and not script.is_script(os.path.join(order["cwd"], warm["target"])):
            return f"{warm['target']} is not a readable script"
        return ""

    def enter(self, order: Mapping[str, Any], environment: Mapping[str, str], words: Sequence[str]) -> Sequence[str]:
        """Become the process of a job: what a program inherits from the one that starts it."""
        for number, _ in list(_descriptors()):
            if number > 2 and number not in self._kept and not os.get_inheritable(number):
                with contextlib.suppress(OSError):
                    os.close(number)
        os.setsid()
        os.environ.clear()
        os.environ.update(environment)
        for name, (before, after) in self._variables.items():
            if environment.get(name) == before:
                os.environ.pop(name, None) if after is None else os.environ.update({name: after})
        os.chdir(order["cwd"])
        drop_half_read_input(order)
        _show(words, environment.get(MARKER, ""))
        for number, handler in self._handlers.items():
            if handler is not None and signal.getsignal(number) is not handler:
                with contextlib.suppress(OSError, ValueError):  # SIGKILL and SIGSTOP
                    signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        time.tzset()
        _reseed()
        for number, text in self._said.items():
            if text:
                os.write(number, text)
        sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
        return words


def _changed_variables() -> dict[str, tuple[str | None, str | None]]:
    """Variables that Python (LC_CTYPE) and the modules have set or removed: the values before and after."""
    with open("/proc/self/environ", "rb") as file:
        lines = [os.fsdecode(line).partition("=") for line in file.read().split(b"\0") if line]
    before = {name: value for name, _, value in lines}
    names = before.keys() | os.environ.keys()
    changed = {name: (before.get(name), os.environ.get(name)) for name in names}
    return {name: pair for name, pair in changed.items() if pair[0] != pair[1]}


def _file_of(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and not file.startswith("<") else ""


def _is_installed(file: str) -> bool:
    return bool(_INSTALLED.search(file)) or file.startswith(f"{sys.base_prefix}/")


def _reseed() -> None:
    """Give the process random numbers of its own; `random` does so at each fork."""
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if process := sys.modules.get("multiprocessing.process"):
        process.current_process().authkey = os.urandom(32)


def _show(words: Sequence[str], worker: str) -> None:
    """Let `ps` show the command of the job, and let its worker's name stand among its variables."""
    with contextlib.suppress(OSError, ValueError, LookupError):
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        first, last, variables = int(fields[45]), int(fields[46]), int(fields[47])
        with open("/proc/self/environ", "rb") as file:
            place = file.read().index(f"{MARKER}= ".encode()) + len(MARKER) + 1
        room = last - first
        line = b" ".join(word.encode(errors="surrogateescape") for word in words)[: room - 2]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(first)
            memory.write(line.ljust(room - 1, b"\0") + b".")  # no zero at the end: the kernel shows one text
            memory.seek(variables + place)
            memory.write(worker.encode() + b"\0")


if __name__ == "__main__":
    main()
