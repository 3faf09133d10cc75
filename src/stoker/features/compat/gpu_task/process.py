"""The script's side of its instances: pack each for a process of its own, and start the process that runs them all."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from stoker.app.jobs.installation import how_to_add_extra
from stoker.core.errors import StokerError
from stoker.features.compat.gpu_task.instance import MAGIC

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the script passes on to the process."""
PICKLE_PROTOCOL = 4
"""The newest that Python 3.6 reads, as it may read instances (the key `python`)."""

_INSTANCE_PROGRAM = str(Path(__file__).with_name("instance.py").resolve())


class Instance(NamedTuple):
    """One test instance to run."""

    place: int
    """In the order of the configuration."""
    text: str
    """Its name in the logs."""
    folder: str
    words: tuple[str, ...]
    """The command of its process."""
    log: str


class InstanceRequest(NamedTuple):
    """All that the process has to do."""

    label: str
    """The batch as users see it."""
    slots: tuple[str, ...]
    """GPU entries, as values of CUDA_VISIBLE_DEVICES."""
    instances: Sequence[Instance]
    cluster: str = ""
    """Name of the cluster that they run on; empty is this machine."""


class Note(NamedTuple):
    """A line for the scheduler's log: at a moment, an instance is received or finished on a slot."""

    at: float
    slot: str
    verb: str
    instance: Instance


class InstanceFailure(NamedTuple):
    """An instance that did not succeed."""

    text: str
    folder: str
    outcome: str
    log: str
    last_line: str
    """Of its log."""


class InstanceResult(NamedTuple):
    """How the run ended; the last message."""

    failures: tuple[InstanceFailure, ...] = ()
    left: tuple[Instance, ...] = ()
    """Not started, because a signal stopped the run."""
    elsewhere: tuple[Instance, ...] = ()
    """Not started, because another scheduler runs them."""
    stopped_by: int = 0
    """A signal, or 0."""


Message = str | Note | InstanceResult | StokerError
"""A line of the process: a sentence for the user, an event, or the end."""

_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    # The forkserver starts while the rest is imported.
    "from stoker.runner.forkserver_client import Forkserver; forkserver = Forkserver(); "
    "from stoker.features.compat.gpu_task.engine import main; main(forkserver)"
)

_PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])


class SignalRelay:
    """Passes signals to the process instead of letting them end the script; in the main thread only.

    There the process has a session of its own, so that it does not get Ctrl-C twice. In another thread no signal
    handler can be set; the process stays in the group of the script and gets Ctrl-C from the terminal.
    """

    def __init__(self) -> None:
        self.possible = threading.current_thread() is threading.main_thread()
        self.caught: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalRelay:
        for signal_number in SIGNALS if self.possible else ():
            if signal.getsignal(signal_number) not in (signal.SIG_IGN, None):
                self._before[signal_number] = signal.signal(signal_number, self._pass_on)
        return self

    def __exit__(self, *_: object) -> None:
        for signal_number, handler in self._before.items():
            signal.signal(signal_number, handler)

    def connect(self, process: subprocess.Popen[bytes]) -> None:
        """Send the process the signals that were caught so far, and all later ones."""
        self._process = process
        for signal_number in self.caught:
            process.send_signal(signal_number)

    def _pass_on(self, signal_number: int, _: FrameType | None) -> None:
        self.caught.append(signal_number)
        if self._process is not None:
            self._process.send_signal(signal_number)


def run_instances(
    request: InstanceRequest, on_note: Callable[[Note], None], say: Callable[[str], None], relay: SignalRelay
) -> InstanceResult:
    """Returns when no instance runs any more."""
    with _started(own_session=relay.possible) as process:
        try:
            relay.connect(process)
            for message in _messages(process, request):
                match message:
                    case Note():
                        on_note(message)
                    case InstanceResult():
                        return message
                    case StokerError():
                        raise message
                    case str():
                        say(message)
        except BaseException:
            process.terminate()
            raise
    raise StokerError(
        "the process that runs the instances was killed; started instances continue",
        "call start() again to wait for them and run the others",
    )


def _started(*, own_session: bool) -> subprocess.Popen[bytes]:
    """The process inherits blocked signals, and gets those that came meanwhile when it unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, _PACKAGE_PARENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=_standard_error(),
            start_new_session=own_session,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _standard_error() -> int | None:
    """Inherited, unless the script closed it and another file has its number."""
    try:
        return None if os.get_inheritable(2) else subprocess.DEVNULL
    except OSError:
        return subprocess.DEVNULL


def _messages(process: subprocess.Popen[bytes], request: InstanceRequest) -> Iterator[object]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        pickle.dump(request, process.stdin)
        process.stdin.flush()  # it stays open: when it closes, the process knows that the script is gone
        while True:
            yield pickle.load(process.stdout)  # noqa: S301
    except (EOFError, BrokenPipeError, pickle.UnpicklingError):
        return


# -- packing -----------------------------------------------------------------------------------------


class Packer:
    """Packs the instances of one start()."""

    def __init__(self, task_class: type, scheduler_config: dict[str, Any]) -> None:
        self._class = task_class
        self._cwd = os.getcwd()
        self._temp = os.path.abspath(scheduler_config["temp_folder"])
        self._log_name: str | None = scheduler_config["log_file"]
        python = scheduler_config.get("python")
        self._python = sys.executable if python is None else _find_python(python)
        self._alone = python is not None
        """Whether instances run under another Python, which need not have Stoker."""
        self._search_path = [*dict.fromkeys(os.path.abspath(entry) for entry in sys.path)]
        if self._alone:
            self._search_path = [entry for entry in self._search_path if not _is_of_this_python(entry)]
        self._script = _script()
        self._module_path = _source_of(task_class.__module__)

    def pack(self, given: dict[str, Any], place: int, turn: int) -> Instance:
        """Write the file of an instance; `turn` tells apart those that share a folder."""
        folder = os.path.abspath(given["work_dir"])
        if "\0" in folder:
            raise StokerError(f"no folder can be named {folder!r}", "leave NUL bytes out of the values to test")
        task, needs_script = self._pickled(given)
        content = {
            "folder": folder,
            "work_dir": given["work_dir"],
            "search_path": self._search_path,
            "alone": self._alone,
            "script": self._script if needs_script else (),
            "task": task,
        }
        name = hashlib.sha256(f"{folder}\0{turn}".encode(errors="surrogateescape")).hexdigest()[:16]
        path = os.path.join(self._temp, f"task-{name}.pkl")
        self._write(path, MAGIC + pickle.dumps(content, PICKLE_PROTOCOL))
        words = (self._python, _INSTANCE_PROGRAM, path, self._class.__module__, self._module_path, self._cwd)
        log = os.devnull if self._log_name is None else os.path.join(folder, self._log_name)
        return Instance(place, given["test_config_string"], folder, words, log)

    def _write(self, path: str, data: bytes) -> None:
        try:
            os.makedirs(self._temp, exist_ok=True)
            new = Path(f"{path}.new")
            new.write_bytes(data)
            new.replace(path)
        except OSError as error:
            hint = "free some space there, or name another temp_folder"
            raise StokerError(f"cannot write to temp_folder {self._temp}: {error.strerror}", hint) from error

    def _pickled(self, given: dict[str, Any]) -> tuple[bytes, bool]:
        """Class and configuration, and whether they can be loaded only after the script was read."""
        content = (self._class, given["config"])
        try:
            data = pickle.dumps(content, PICKLE_PROTOCOL)
        except Exception as error:  # a value's own code may raise anything
            return self._by_value(content, given, str(error)), False
        needs_script = b"__main__" in data
        if needs_script and not self._script:
            return self._by_value(content, given, "it is not defined in a file that another process can read"), False
        return data, needs_script

    def _by_value(self, content: object, given: dict[str, Any], why: str) -> bytes:
        what = f"instance {given['test_config_string']!r} cannot be sent to another process"
        hint = "define class and parameters at the top of a file that is imported"
        if self._alone:
            raise StokerError(f"{what}: {why}", f"{hint}: another Python can read only that")
        try:
            cloudpickle = importlib.import_module("cloudpickle")
        except ImportError:
            raise StokerError(f"{what}: {why}", f"{hint}, or: {how_to_add_extra('python')}") from None
        try:
            data: bytes = cloudpickle.dumps(content)
        except Exception as error:  # a value's own code may raise anything
            hint = "give it numbers, text and names of files instead, and open or load them in main()"
            raise StokerError(f"{what}: {error}", hint) from error
        return data


def _find_python(name: Any) -> str:
    """The interpreter that the key `python` names."""
    path = shutil.which(os.path.expanduser(name)) if isinstance(name, str) else None
    if path is None:
        hint = 'write the path of an interpreter, as "python": "/opt/py37/bin/python"'
        raise StokerError(f"there is no program {name!r}, which scheduler_config names as python", hint)
    return os.path.abspath(path)


def _is_of_this_python(entry: str) -> bool:
    """Whether a directory holds modules that only this Python, or an environment with Stoker, can use."""
    if os.path.basename(entry) in ("site-packages", "dist-packages"):
        return True
    standard = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return entry.startswith(standard) or os.path.isfile(os.path.join(entry, "stoker", "__init__.py"))


def _script() -> tuple[str, ...]:
    """The running script, its package and its arguments; empty if it is no file, as in a notebook."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if not path or not os.path.isfile(path):
        return ()
    return (os.path.abspath(path), getattr(main, "__package__", None) or "", *sys.argv)


def _source_of(module_name: str) -> str:
    """The source file of a module; empty if it must be imported by its name, as from an archive."""
    path = getattr(sys.modules.get(module_name), "__file__", None) or ""
    path = os.path.abspath(path.removesuffix("c") if path.endswith(".pyc") else path) if path else ""
    return path if os.path.isfile(path) and path.endswith(".py") else ""
