"""One instance: its class, its result folder, and the program that runs it in a process of its own.

The program runs under any Python from 3.6 on, also one without Stoker (the key `python` of scheduler_config). So this
file uses nothing but the standard library, and little of that: the process of every instance waits for it.
"""

import fcntl
import importlib.machinery
import os
import sys
import time
from types import ModuleType

try:
    from _pickle import dump, load, loads  # a third of the time that the whole of pickle takes
except ImportError:
    from pickle import dump, load, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    FolderState = Literal["absent", "done", "unfinished", "running"]

MAGIC = b"stoker gpu task 2\n"
"""A file that begins like this is an instance of our scheduler: a pickled dictionary, see Packer."""
MARKER = ".stoker-unfinished"
"""In the folder from before a run starts until it has succeeded; the process that runs it locks this file."""
GLANCE_SECONDS = 0.25
"""Seconds for which folder_state() of other processes may hold the lock."""
USAGE = "usage: start_gpu_task PICKLE MODULE_NAME MODULE_PATH DIRECTORY\n"
BUSY = 75
"""Exit code of an instance that another process runs: EX_TEMPFAIL."""
_BEGAN = "STOKER_GPU_TASK"
"""Set in a process that was started over with the variables that its task requires."""
_CARRIED = "carried"
"""Its value if the pickled task is loaded again."""
_DEFINING = "__stoker_defining__"
"""Set in the main module while the script runs only to define what instances need of it."""
_TEXT = b"This run was not finished. GPUTaskScheduler runs it again the next time.\n"


class GPUTask:
    """One test instance with its parameters and its folder; test code inherits from it."""

    def __init__(self, config: "dict[str, Any]", work_dir: str) -> None:
        self._config = config
        self._work_dir = work_dir

    def required_env(self) -> "dict[str, str]":
        """Variables of the instance besides its GPUs; they are set before its process starts."""
        return {}

    def main(self) -> None:
        """The test code."""


GPUTask.__module__ = "gpu_task_scheduler.gpu_task"  # the name that every Python knows when it unpickles a task


# -- the folder ------------------------------------------------------------------------------------


def folder_state(folder: str) -> "FolderState":
    """A folder without a marker counts as done: the older library made none."""
    if not os.path.exists(folder):
        return "absent"
    try:
        descriptor = os.open(os.path.join(folder, MARKER), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # no marker, or not readable
        return "done"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return "running"
    finally:
        os.close(descriptor)
    return "unfinished"


def begin(folder: str) -> None:
    """Create the folder with the marker, or raise OSError and create neither."""
    fresh = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    try:
        mark(folder)
    except OSError:
        if fresh:  # without the marker it would count as done
            os.rmdir(folder)  # noqa: PTH106
        raise


def mark(folder: str) -> None:
    descriptor = os.open(os.path.join(folder, MARKER), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:  # noqa: SIM105
        os.pwrite(descriptor, _TEXT, 0)
    except OSError:  # the disk is full; an empty marker will do
        pass
    os.close(descriptor)


def finish(folder: str) -> None:
    """Remove the marker: the run has succeeded."""
    _remove(os.path.join(folder, MARKER))


def _remove(path: str) -> None:
    try:  # noqa: SIM105
        os.unlink(path)
    except FileNotFoundError:
        pass


def occupy(folder: str) -> "int | None":
    """Lock the folder until the descriptor is closed; None if another process runs it."""
    os.makedirs(folder, exist_ok=True)
    descriptor = os.open(os.path.join(folder, MARKER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    deadline = time.monotonic() + GLANCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                return None
        time.sleep(0.01)


# -- the program -----------------------------------------------------------------------------------


def main() -> int:
    """The program start_gpu_task."""
    words = sys.argv[1:]
    if len(words) != 4:
        sys.stderr.write(USAGE)
        return 2
    try:
        with open(words[0], "rb") as file:
            data = file.read()
    except FileNotFoundError:
        gone = f"start_gpu_task: {words[0]} does not exist: this run has succeeded, or temp_folder was emptied\n"
        sys.stderr.write(gone)
        return 2
    if _BEGAN not in os.environ:  # else the task may have required another backend
        os.environ["MPLBACKEND"] = "Agg"  # as matplotlib.use("Agg"), without the time that importing it takes
    if data.startswith(MAGIC):
        return _run(loads(data[len(MAGIC) :]), words)  # noqa: S301
    _, module_name, module_path, directory = words  # a pickled task, as the older library wrote it
    _extend_search_path(directory)
    _load(module_name, module_path)
    loads(data).main()  # noqa: S301
    return 0


def _run(instance: "dict[str, Any]", words: "list[str]") -> int:
    path, module_name, module_path, directory = words
    folder = instance["folder"]
    lock = occupy(folder)
    if lock is None:
        sys.stderr.write(f"start_gpu_task: another process is running {folder}\n")
        return BUSY
    _extend_search_path(directory, *instance["search_path"])
    if instance["alone"]:
        _provide_library()
    if instance["script"]:
        _load_script(*instance["script"])
    if module_path and module_name != "__main__":
        _load(module_name, module_path)
    task = _task(instance, words)
    try:
        task.main()
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    finish(folder)
    _remove(path)
    os.close(lock)
    return 0


def _task(instance: "dict[str, Any]", words: "list[str]") -> "Any":
    """The task, in a process that has all variables that it requires."""
    began, carried = os.environ.pop(_BEGAN, ""), f"{words[0]}.task"
    if began == _CARRIED:
        with open(carried, "rb") as file:
            task = load(file)  # noqa: S301
        os.unlink(carried)
        return task
    task_class, config = loads(instance["task"])  # noqa: S301
    task = task_class(config, instance["work_dir"])
    if not began:
        required = {str(name): str(value) for name, value in (task.required_env() or {}).items()}
        if any(os.environ.get(name) != value for name, value in required.items()):
            _start_over(task, required, carried, words)
    return task


def _start_over(task: "Any", required: "dict[str, str]", carried: str, words: "list[str]") -> None:
    """Execute Python again with the variables: libraries and CUDA read them only when a process starts."""
    began = _CARRIED
    try:
        with open(carried, "wb") as file:
            dump(task, file)
    except Exception:  # it cannot be pickled, and is created again
        began = "anew"
        _remove(carried)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, os.path.abspath(__file__), *words]
    os.execve(sys.executable, command, {**os.environ, **required, _BEGAN: began})  # noqa: S606


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
    module = ModuleType("__mp_main__")
    module.__file__, module.__package__ = path, package
    sys.argv = list(arguments)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    setattr(module, _DEFINING, SchedulerReached)
    try:
        importlib.machinery.SourceFileLoader("__mp_main__", path).exec_module(module)
    except SchedulerReached:
        pass
    finally:
        delattr(module, _DEFINING)


class SchedulerReached(BaseException):
    """A script has reached start(): all that instances need of it is defined."""


def stop_if_script_only_defines() -> None:
    """Called by start()."""
    reached = getattr(sys.modules["__main__"], _DEFINING, None)
    if reached is not None:
        raise reached


def _provide_library() -> None:
    """Stand in for the package gpu_task_scheduler: this Python has none, or the older one."""
    package = ModuleType("gpu_task_scheduler")
    package.__path__ = []
    for name, member in (("gpu_task", GPUTask), ("gpu_task_scheduler", GPUTaskScheduler)):
        module = ModuleType(f"{package.__name__}.{name}")
        setattr(module, member.__name__, member)
        setattr(package, name, module)
        sys.modules[module.__name__] = module
    sys.modules[package.__name__] = package


class GPUTaskScheduler:
    """The stand-in for a script that defines its own task class and runs under another Python."""

    def __init__(self, config: "Any", gpu_task_class: "Any") -> None:
        """Accept anything: the scheduler's own process has checked it."""

    def start(self, raise_on_failure: "Any" = None) -> None:
        stop_if_script_only_defines()
        raise RuntimeError("a scheduler cannot be started under another Python than its own")


if __name__ == "__main__":
    if sys.path[:1] == [os.path.dirname(os.path.abspath(__file__))]:
        del sys.path[0]  # Python put it there; its modules would hide those of the task
    sys.exit(main())
