"""Pack the task class of a script so that another process can load it."""

from __future__ import annotations

import hashlib
import importlib
import marshal
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from stoker.compat.gpu_task.process import Instance
from stoker.core.errors import StokerError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


_MAGIC = b"stoker gpu task 1\n"


class Bundle:
    """One instance as it travels; only the last field needs the user's code to be understood."""

    __slots__ = ("folder", "script", "search_path", "task", "work_dir")

    def __init__(
        self, work_dir: str, folder: str, search_path: tuple[str, ...], script: tuple[str, ...], task: bytes
    ) -> None:
        """`folder` is the work_dir whatever the current directory is, `search_path` the scheduler's own.

        `script` is the program that called the scheduler, where something of it is needed: its file, its package and
        its arguments. `task` is the class and the configuration, pickled.
        """
        self.work_dir = work_dir
        self.folder = folder
        self.search_path = search_path
        self.script = script
        self.task = task


def write_bundle(path: str, bundle: Bundle) -> None:
    """Put it into a file, whole or not at all."""
    fields = (bundle.work_dir, bundle.folder, bundle.search_path, bundle.script, bundle.task)
    with open(f"{path}.new", "wb") as file:
        file.write(_MAGIC + marshal.dumps(fields))
    os.replace(f"{path}.new", path)  # noqa: PTH105


def read_bundle(path: str) -> Bundle | None:
    """What is in a file; None where it is a pickled task, as the older library wrote them."""
    with open(path, "rb") as file:
        data = file.read()
    return Bundle(*marshal.loads(data[len(_MAGIC) :])) if data.startswith(_MAGIC) else None  # noqa: S302


_STARTER = str(Path(__file__).resolve().parents[3] / "gpu_task_scheduler" / "start_gpu_task.py")


class Packer:
    """Packs the instances of one start; the scheduler's surroundings are the same for all of them."""

    def __init__(self, task_class: type, scheduler_config: dict[str, Any]) -> None:
        self._class = task_class
        self._cwd = os.getcwd()
        self._temp = os.path.abspath(scheduler_config["temp_folder"])
        self._log_name: str | None = scheduler_config["log_file"]
        self._search_path = tuple(dict.fromkeys(os.path.abspath(entry) for entry in sys.path))
        self._script = _script()
        self._module_path = _source_of(task_class.__module__)

    def pack(self, given: dict[str, Any], place: int, turn: int) -> Instance:
        """Write what the process of an instance needs; `turn` tells apart those that share a folder."""
        folder = os.path.abspath(given["work_dir"])
        if "\0" in folder:
            raise StokerError(f"no folder can be named {folder!r}", "leave NUL bytes out of the values to test")
        task, needs_script = self._pickled(given)
        name = hashlib.sha256(f"{folder}\0{turn}".encode(errors="surrogateescape")).hexdigest()[:16]
        path = os.path.join(self._temp, f"task-{name}.pkl")
        script = self._script if needs_script else ()
        self._write(path, Bundle(given["work_dir"], folder, self._search_path, script, task))
        words = (sys.executable, "-P", _STARTER, path, self._class.__module__, self._module_path, self._cwd)
        log = os.devnull if self._log_name is None else os.path.join(folder, self._log_name)
        return Instance(place, given["test_config_string"], folder, words, log)

    def _write(self, path: str, bundle: Bundle) -> None:
        try:
            os.makedirs(self._temp, exist_ok=True)
            write_bundle(path, bundle)
        except OSError as error:
            hint = "free some space there, or name another temp_folder"
            raise StokerError(f"cannot write to temp_folder {self._temp}: {error.strerror}", hint) from error

    def _pickled(self, given: dict[str, Any]) -> tuple[bytes, bool]:
        """Class and configuration, and whether the script that called us must be read to understand them."""
        content = (self._class, given["config"])
        try:
            data = pickle.dumps(content)
        except Exception as error:  # whatever a value's own code raises
            return _by_value(content, given, str(error)), False
        needs_script = b"__main__" in data
        if needs_script and not self._script:
            return _by_value(content, given, "it is defined in no file that another process could read"), False
        return data, needs_script


def _script() -> tuple[str, ...]:
    """The program that calls us, its package and its arguments; empty where it is no file, as in a notebook."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if not path or not os.path.isfile(path):
        return ()
    return (os.path.abspath(path), getattr(main, "__package__", None) or "", *sys.argv)


def _source_of(module_name: str) -> str:
    """The file that a module is read from; empty where its name must be enough, as for one in an archive."""
    path = getattr(sys.modules.get(module_name), "__file__", None) or ""
    path = os.path.abspath(path.removesuffix("c") if path.endswith(".pyc") else path) if path else ""
    return path if os.path.isfile(path) and path.endswith(".py") else ""


def _by_value(content: object, given: dict[str, Any], why: str) -> bytes:
    what = f"instance {given['test_config_string']!r} cannot be sent to a process of its own"
    try:
        cloudpickle = importlib.import_module("cloudpickle")
    except ImportError:
        hint = "define class and parameters at the top of a file that is imported, or pip install 'stoker[python]'"
        raise StokerError(f"{what}: {why}", hint) from None
    try:
        data: bytes = cloudpickle.dumps(content)
    except Exception as error:  # whatever a value's own code raises
        hint = "give it numbers, text and names of files instead, and open or load them in main()"
        raise StokerError(f"{what}: {error}", hint) from error
    return data


_reading = False


class FarEnough(BaseException):
    """A script has come to the scheduler's start: all that instances need of it is defined."""


def read_up_to_the_scheduler(script: Callable[[], None]) -> None:
    """Run a script to its end, or until it starts a scheduler."""
    global _reading
    _reading = True
    try:
        script()
    except FarEnough:
        pass
    finally:
        _reading = False


def stop_if_only_read() -> None:
    """Called by a scheduler that is to start."""
    if _reading:
        raise FarEnough
