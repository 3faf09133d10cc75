"""The program of a job that runs a submitted Python function, in a fresh interpreter.

It imports nothing of Stoker and little of the standard library, so that a call costs little more than a Python start.
"""

from __future__ import annotations

import os
import sys

try:
    from _pickle import Unpickler, dump, loads  # the C part of pickle, which itself imports enum and re
except ImportError:  # a Python without the C part
    from pickle import Unpickler, dump, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType, TracebackType
    from typing import Any, BinaryIO

CALLS = "calls"
"""The file with the function and its arguments. It ends with a table of their offsets and the length of that table."""
LENGTH = 8
"""Bytes of the length of the table."""
RAISED = 1
UNWRITTEN = 74
"""Exit code where the result could not be written, as on a full disk."""
_CALL = "STOKER_FUNCTION_CALL"
"""Variable that names the call to processes that the function spawns."""
_MAKERS = ("_make_function", "_make_skeleton_class", "_make_skeleton_enum")
"""Functions by which cloudpickle rebuilds functions and classes that were sent by value."""


class Unreadable(Exception):
    """The function or its arguments cannot be loaded here."""


class _Reader(Unpickler):
    """Unpickles, and collects the functions and classes that were sent by value."""

    def __init__(self, file: BinaryIO, script: ModuleType) -> None:
        super().__init__(file)
        self._script = script
        self._made: list[Any] = []

    def find_class(self, module: str, name: str, /) -> Any:
        """Wrap the makers to collect what they build."""
        thing = super().find_class(module, name)
        if name not in _MAKERS or not module.startswith("cloudpickle"):
            return thing

        def make(*arguments: Any, **keywords: Any) -> Any:
            self._made.append(thing(*arguments, **keywords))
            return self._made[-1]

        return make

    def load(self) -> Any:
        """Load the object. The script module gets those parts of the original script that were sent."""
        loaded = super().load()
        variables = vars(self._script)
        for made in self._made:
            if made.__module__ == "__main__":
                variables.setdefault(made.__qualname__, made)
        for made in self._made:
            if getattr(made, "__globals__", {}).get("__name__") == "__main__":
                variables.update(made.__globals__)
        variables["__file__"] = __file__  # spawned processes run this file, not the whole script
        return loaded


class _InPlace:
    """Makes the script `__main__` while its function runs; else pools could not pickle its functions."""

    def __init__(self, script: ModuleType) -> None:
        self._script = script
        self._own = sys.modules["__main__"]

    def __enter__(self) -> None:
        sys.modules["__main__"] = self._script

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.modules["__main__"] = self._own


def main() -> int:
    """Run the call that the variables of this job name, and return the exit code."""
    task, member = os.environ.get("STOKER_ARRAY_INDEX"), os.environ.get("STOKER_TRIAL")
    owner = "STOKER_SWEEP" if member else "STOKER_ARRAY_ID" if task else "STOKER_JOB_ID"
    folder = os.path.join(sys.argv[1], os.environ[owner])
    del sys.argv[1:]
    _prepare_output()
    number, process = int(member or task or 0), os.getpid()
    call = 0 if member else number  # all members of a batch make the same call, which reads their parameters
    os.environ[_CALL] = f"{call} {os.path.join(folder, CALLS)}"
    header, body, code = _run(os.path.join(folder, CALLS), call)
    if os.getpid() != process:  # a fork that returned from the function; the original process writes the result
        return code
    try:
        return _write(result_path(folder, number), header, body) or code
    except OSError as error:
        _say(f"stoker: the result could not be written: {error}\n")
        return UNWRITTEN


def result_path(folder: str, task: int) -> str:
    return os.path.join(folder, f"{task}.result")


def run_chunk(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> list[Any]:
    return [function(*arguments) for arguments in calls]


class Prepared:
    """A function with an initializer, which is called before it in the same process."""

    def __init__(
        self, func: Callable[..., Any], initializer: Callable[..., object], initargs: tuple[Any, ...] = ()
    ) -> None:
        self.func = self.__wrapped__ = func
        self._initializer = initializer
        self._initargs = initargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._initializer(*self._initargs)
        return self.func(*args, **kwargs)


def _prepare_output() -> None:
    """Flush output line by line, and print a traceback when C code crashes."""
    import faulthandler

    faulthandler.enable()
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure:
        reconfigure(line_buffering=True)


def _run(path: str, task: int) -> tuple[dict[str, Any], tuple[Any, ...], int]:
    """The header of the result file, the result or exception if any, and the exit code."""
    script = type(sys)("__main__")
    try:
        function, arguments, keywords = _read(path, task, script)
    except Exception as error:
        return _header("unreadable", error), (), RAISED
    try:
        with _InPlace(script):
            value = function(*arguments, **keywords)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else RAISED
        return _header("raised", error), (), code or RAISED
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this frame
        return _header("raised", error), _portable(error), RAISED
    return {"outcome": "returned", "type": _name(type(value))}, (value,), 0


def _read(path: str, task: int, script: ModuleType) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    with open(path, "rb") as file:
        file.seek(-LENGTH, os.SEEK_END)
        length = int.from_bytes(file.read(LENGTH), "little")
        file.seek(-LENGTH - length, os.SEEK_END)
        table = loads(file.read(length))
        version = sys.version_info[:2]
        if table["python"] != version:
            wrote, reads = ("{}.{}".format(*each) for each in (table["python"], version))
            raise Unreadable(f"it was submitted by Python {wrote}, but {sys.executable} is {reads}")
        sys.path[:] = table["path"]
        _remember_sources(table.get("sources"))
        file.seek(table["starts"][0])
        function = _Reader(file, script).load()
        file.seek(table["starts"][1 + task])
        arguments, keywords = _Reader(file, script).load()
    return function, arguments, keywords


def _remember_sources(sources: dict[str, list[str]] | None) -> None:
    """Let tracebacks quote lines of a notebook, which are in no file."""
    if sources:
        import linecache

        for name, lines in sources.items():
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)


def _define_script() -> None:
    """In a process spawned by multiprocessing: define what the script would, without running it."""
    script = type(sys)("__main__")
    task, _, path = os.environ.get(_CALL, "").partition(" ")
    if path:
        _read(path, int(task), script)
        globals().update(vars(script))


def _header(outcome: str, error: BaseException) -> dict[str, Any]:
    import traceback

    text = "".join(traceback.format_exception(error))
    _say(text)
    return {"outcome": outcome, "type": _name(type(error)), "message": _message(error), "traceback": text}


def _say(text: str) -> None:
    """Write to the log. On a full disk give up, so that the exit code does not change."""
    try:
        sys.stdout.flush()
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)


def _portable(error: BaseException) -> tuple[Any, ...]:
    """The exception, or its parts where its constructor does not accept its own args; empty where neither unpickles."""
    if not isinstance(error, Exception):
        return ()
    parts = (type(error), error.args, vars(error))
    return next(((each,) for each in (error, parts) if _survives_pickle(each)), ())


def _survives_pickle(value: Any) -> bool:
    from io import BytesIO

    try:
        with BytesIO() as file:
            _dump(value, file)
            loads(file.getvalue())
    except Exception:
        return False
    return True


def _write(path: str, header: dict[str, Any], body: tuple[Any, ...]) -> int:
    """Write the result file atomically; a non-zero exit code where the value cannot be pickled."""
    header |= {"attempt": int(os.environ.get("STOKER_ATTEMPT") or 1), "python": sys.version_info[:2]}
    if not body:
        _replace(path, [header])
        return 0
    try:
        _replace(path, [header, *body])
    except OSError:
        raise
    except Exception as error:
        problem = {"outcome": "unpicklable", "type": _name(type(body[0])), "message": _message(error)}
        _say(f"stoker: a result of type {problem['type']} cannot be sent back: {problem['message']}\n")
        _replace(path, [header | problem])
        return RAISED
    return 0


def _replace(path: str, values: list[Any]) -> None:
    """Replace a file atomically and durably, also if the machine crashes."""
    new = f"{path}.new"
    try:
        with open(os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            for value in values:
                _dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)  # noqa: PTH105
    except BaseException:
        if os.path.exists(new):
            os.unlink(new)
        raise


def _dump(value: Any, file: BinaryIO) -> None:
    """By reference where possible; else by value, as functions and classes of `__main__` need."""
    start = file.tell()
    try:
        dump(value, file, 5)
    except OSError:
        raise
    except Exception:
        file.seek(start)
        file.truncate()
        import cloudpickle

        cloudpickle.dump(value, file)


def _name(kind: type) -> str:
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


if __name__ == "__main__":
    sys.exit(main())
elif __name__ == "__mp_main__":
    _define_script()
