"""Pack an instance so that a process of its own can run it."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from stoker.compat.gpu_task.child import Bundle, write_bundle
from stoker.compat.gpu_task.process import Instance
from stoker.core.errors import StokerError

_STARTER = str(Path(__file__).resolve().parents[3] / "gpu_task_scheduler" / "start_gpu_task.py")


class Packer:
    """Packs the instances of one start()."""

    def __init__(self, task_class: type, scheduler_config: dict[str, Any]) -> None:
        self._class = task_class
        self._cwd = os.getcwd()
        self._temp = os.path.abspath(scheduler_config["temp_folder"])
        self._log_name: str | None = scheduler_config["log_file"]
        self._search_path = tuple(dict.fromkeys(os.path.abspath(entry) for entry in sys.path))
        self._script = _script()
        self._module_path = _source_of(task_class.__module__)

    def pack(self, given: dict[str, Any], place: int, turn: int) -> Instance:
        """Write the bundle of an instance; `turn` tells apart those that share a folder."""
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
        """Class and configuration, and whether they can be loaded only after the script was read."""
        content = (self._class, given["config"])
        try:
            data = pickle.dumps(content)
        except Exception as error:  # a value's own code may raise anything
            return _by_value(content, given, str(error)), False
        needs_script = b"__main__" in data
        if needs_script and not self._script:
            return _by_value(content, given, "it is defined in no file that another process could read"), False
        return data, needs_script


def _script() -> tuple[str, ...]:
    """The running script, its package and its arguments; empty where it is no file, as in a notebook."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if not path or not os.path.isfile(path):
        return ()
    return (os.path.abspath(path), getattr(main, "__package__", None) or "", *sys.argv)


def _source_of(module_name: str) -> str:
    """The source file of a module; empty where it must be imported by its name, as from an archive."""
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
    except Exception as error:  # a value's own code may raise anything
        hint = "give it numbers, text and names of files instead, and open or load them in main()"
        raise StokerError(f"{what}: {error}", hint) from error
    return data
