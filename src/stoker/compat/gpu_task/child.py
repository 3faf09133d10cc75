"""Runs one instance of GPUTaskScheduler in a process of its own, on GPUs that were set before it started.

It imports next to nothing: every instance waits for it.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from types import ModuleType

from stoker.compat.gpu_task.bundle import Bundle, read_bundle, read_up_to_the_scheduler
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
"""Exit code of an instance that another process runs: the system's word for "try again later"."""
_BEGAN = "STOKER_GPU_TASK"
"""Set in a process that was started over with the variables that its task requires."""
_CARRIED = "carried"
"""Its value where the task goes on as it was."""


def main() -> int:
    """Run the instance that the command line names, and return the exit code."""
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
    """Let the instance do its work; whatever ends it otherwise than well passes on."""
    try:
        task.main()
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    return 0


def _task(bundle: Bundle, path: str) -> Any:
    """The task, in a process that has all the variables it requires."""
    began = os.environ.pop(_BEGAN, "")
    if began == _CARRIED:
        return _carried_over(f"{path}.task")
    task_class, config = loads(bundle.task)  # noqa: S301
    task = task_class(config, bundle.work_dir)
    if not began:
        required = {str(name): str(value) for name, value in (task.required_env() or {}).items()}
        if any(os.environ.get(name) != value for name, value in required.items()):
            _start_over(task, required, f"{path}.task")
    return task


def _start_over(task: Any, required: Mapping[str, str], carried: str) -> None:
    """Start anew with the variables: libraries and CUDA look at them only when a process begins."""
    began = _CARRIED
    try:
        with open(carried, "wb") as file:
            dump(task, file)
    except Exception:  # it holds something that cannot travel, and is made anew
        began = "anew"
        remove(carried)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **required, _BEGAN: began})  # noqa: S606


def _carried_over(path: str) -> Any:
    """The task as required_env left it."""
    with open(path, "rb") as file:
        data = file.read()
    os.unlink(path)
    return loads(data)  # noqa: S301


def _extend_search_path(*directories: str) -> None:
    """Behind all that is there, so that nothing of Python's own is hidden."""
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
    """Run the script that called the scheduler as far as that call, under the name that keeps its main part out."""
    module = ModuleType("__mp_main__")
    module.__file__, module.__package__ = path, package
    sys.argv = list(arguments)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    loader = importlib.machinery.SourceFileLoader("__mp_main__", path)
    read_up_to_the_scheduler(lambda: loader.exec_module(module))
