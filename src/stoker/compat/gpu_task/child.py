"""Run one instance in a process of its own, on GPUs that were set before it started.

It imports next to nothing: every instance waits for it.
"""

from __future__ import annotations

import importlib.machinery
import marshal
import os
import sys
from types import ModuleType

from stoker.compat.gpu_task.folder import finish, occupy, remove

try:
    from _pickle import dump, load, loads  # a third of the time that the whole of pickle takes
except ImportError:
    from pickle import dump, load, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

USAGE = "usage: start_gpu_task PICKLE MODULE_NAME MODULE_PATH DIRECTORY\n"
BUSY = 75
"""Exit code of an instance that another process runs: EX_TEMPFAIL."""
_BEGAN = "STOKER_GPU_TASK"
"""Set in a process that was started over with the variables that its task requires."""
_CARRIED = "carried"
"""Its value where the pickled task is loaded again."""
_MAGIC = b"stoker gpu task 1\n"

_only_defines = False
"""Whether the script runs only to define what instances need of it."""


class Bundle:
    """One instance as a file. Only `task` needs the user's code to be loaded."""

    __slots__ = ("folder", "script", "search_path", "task", "work_dir")

    def __init__(
        self, work_dir: str, folder: str, search_path: tuple[str, ...], script: tuple[str, ...], task: bytes
    ) -> None:
        """`folder` is the absolute work_dir, `search_path` the sys.path of the scheduler.

        `script` is the file, package and arguments of the program that called the scheduler, where class or
        configuration need it. `task` is class and configuration, pickled.
        """
        self.work_dir = work_dir
        self.folder = folder
        self.search_path = search_path
        self.script = script
        self.task = task


def write_bundle(path: str, bundle: Bundle) -> None:
    """Write the file atomically."""
    fields = (bundle.work_dir, bundle.folder, bundle.search_path, bundle.script, bundle.task)
    with open(f"{path}.new", "wb") as file:
        file.write(_MAGIC + marshal.dumps(fields))
    os.replace(f"{path}.new", path)  # noqa: PTH105


def read_bundle(path: str) -> Bundle | None:
    """None where the file is a pickled task, as the older library wrote it."""
    with open(path, "rb") as file:
        data = file.read()
    return Bundle(*marshal.loads(data[len(_MAGIC) :])) if data.startswith(_MAGIC) else None  # noqa: S302


def main() -> int:
    """The program start_gpu_task."""
    if len(sys.argv) != 5:
        sys.stderr.write(USAGE)
        return 2
    pickled, module_name, module_path, directory = sys.argv[1:]
    try:
        bundle = read_bundle(pickled)
    except FileNotFoundError:
        sys.stderr.write(
            f"start_gpu_task: {pickled} is gone: this run has succeeded, or somebody emptied temp_folder\n"
        )
        return 2
    os.environ["MPLBACKEND"] = "Agg"  # as matplotlib.use("Agg"), without the time that importing it takes
    _extend_search_path(directory, *(bundle.search_path if bundle else ()))
    if bundle is not None:
        return _run(bundle, pickled, module_name, module_path)
    _load(module_name, module_path)
    with open(pickled, "rb") as file:
        load(file).main()  # noqa: S301
    return 0


def _run(bundle: Bundle, path: str, module_name: str, module_path: str) -> int:
    lock = occupy(bundle.folder)
    if lock is None:
        sys.stderr.write(f"start_gpu_task: another process is running {bundle.folder}\n")
        return BUSY
    if bundle.script:
        _load_script(*bundle.script)
    if module_path and module_name != "__main__":
        _load(module_name, module_path)
    code = _succeeded(_task(bundle, path))
    finish(bundle.folder)
    remove(path)
    os.close(lock)
    return code


def _succeeded(task: Any) -> int:
    """0 where the task succeeds; its exceptions pass on."""
    try:
        task.main()
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    return 0


def _task(bundle: Bundle, path: str) -> Any:
    """The task, in a process that has all variables that it requires."""
    began = os.environ.pop(_BEGAN, "")
    if began == _CARRIED:
        with open(f"{path}.task", "rb") as file:
            carried = loads(file.read())  # noqa: S301
        os.unlink(f"{path}.task")
        return carried
    task_class, config = loads(bundle.task)  # noqa: S301
    task = task_class(config, bundle.work_dir)
    if not began:
        required = {str(name): str(value) for name, value in (task.required_env() or {}).items()}
        if any(os.environ.get(name) != value for name, value in required.items()):
            _start_over(task, required, f"{path}.task")
    return task


def _start_over(task: Any, required: Mapping[str, str], carried: str) -> None:
    """Execute Python again with the variables: libraries and CUDA read them only when a process starts."""
    began = _CARRIED
    try:
        with open(carried, "wb") as file:
            dump(task, file)
    except Exception:  # it cannot be pickled, and is created again
        began = "anew"
        remove(carried)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **required, _BEGAN: began})  # noqa: S606


def _extend_search_path(*directories: str) -> None:
    """Append, so that no module of Python's own is hidden."""
    sys.path.extend([name for name in dict.fromkeys(directories) if name not in sys.path])


def _load(name: str, path: str) -> None:
    """Import a module from its file, under the name that it has in the scheduler's process."""
    loader = importlib.machinery.SourceFileLoader(name, path)
    spec = importlib.machinery.ModuleSpec(name, loader, origin=path, is_package=loader.is_package(name))
    spec.has_location = True
    module = ModuleType(name)
    module.__spec__, module.__loader__, module.__file__ = spec, loader, path
    module.__package__ = spec.parent
    if spec.submodule_search_locations is not None:
        spec.submodule_search_locations.append(os.path.dirname(path))
        module.__path__ = spec.submodule_search_locations
    sys.modules[name] = module
    loader.exec_module(module)


def _load_script(path: str, package: str, *arguments: str) -> None:
    """Run the script up to the start of its scheduler, under a name that keeps its main part out."""
    global _only_defines
    module = ModuleType("__mp_main__")
    module.__file__, module.__package__ = path, package
    sys.argv = list(arguments)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    loader = importlib.machinery.SourceFileLoader("__mp_main__", path)
    _only_defines = True
    try:
        loader.exec_module(module)
    except SchedulerReached:
        pass
    finally:
        _only_defines = False


class SchedulerReached(BaseException):
    """A script has reached start(): all that instances need of it is defined."""


def stop_if_script_only_defines() -> None:
    """Called by start()."""
    if _only_defines:
        raise SchedulerReached
