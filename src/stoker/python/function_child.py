"""Runs one function that an Executor submitted: the program of such a job, started in a fresh interpreter.

It imports nothing of Stoker and little of Python, so that a call costs little more than a start of Python.
"""

from __future__ import annotations

import os
import sys

try:
    from _pickle import Unpickler, dump, loads  # what is behind pickle, which brings enum and re along
except ImportError:  # a Python without that
    from pickle import Unpickler, dump, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType, TracebackType
    from typing import Any, BinaryIO

CALLS = "calls"
"""The file with the function and its arguments..."""
LENGTH = 8
"""... which ends with a table of where each begins, and with the length of that in so many bytes."""
RAISED = 1
UNWRITTEN = 74
"""Exit code where the result could not be written, as on a full disk: what else could tell of that?"""


_CALL = "STOKER_FUNCTION_CALL"
"""Tells processes that the function spawns which call they belong to."""
_MAKERS = ("_make_function", "_make_skeleton_class", "_make_skeleton_enum")
"""What cloudpickle makes functions and classes with that it has sent by value."""


class Unreadable(Exception):
    """The function or its arguments cannot be had here."""


class _Reader(Unpickler):
    """Reads what cloudpickle wrote, and remembers the functions and classes that were sent by value."""

    def __init__(self, file: BinaryIO, script: ModuleType) -> None:
        super().__init__(file)
        self._script = script
        self._made: list[Any] = []

    def find_class(self, module: str, name: str, /) -> Any:
        """As ever, but for the makers."""
        found = super().find_class(module, name)
        if name not in _MAKERS or not module.startswith("cloudpickle"):
            return found

        def make(*arguments: Any, **keywords: Any) -> Any:
            self._made.append(found(*arguments, **keywords))
            return self._made[-1]

        return make

    def load(self) -> Any:
        """The thing; the script has all of itself that came along, under the names that it had there."""
        thing = super().load()
        variables = vars(self._script)
        for made in self._made:
            if made.__module__ == "__main__":
                variables.setdefault(made.__qualname__, made)
        for made in self._made:
            if getattr(made, "__globals__", {}).get("__name__") == "__main__":
                variables.update(made.__globals__)
        variables["__file__"] = __file__  # processes that it spawns come here, and do not run the whole script
        return thing


class _InPlace:
    """Has the script where it was while its function runs, or nothing of it could be pickled there, as pools do."""

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
    """Run the call that the variables of this job mean, and return the exit code."""
    task = os.environ.get("STOKER_ARRAY_INDEX")
    folder = os.path.join(sys.argv[1], os.environ["STOKER_ARRAY_ID" if task else "STOKER_JOB_ID"])
    del sys.argv[1:]
    _watch_output()
    number, process = int(task or 0), os.getpid()
    os.environ[_CALL] = f"{number} {os.path.join(folder, CALLS)}"
    header, body, code = _run(os.path.join(folder, CALLS), number)
    if os.getpid() != process:  # a fork that came out of the function; the result is that of the process it left
        return code
    try:
        return _write(result_path(folder, number), header, body) or code
    except OSError as error:
        _say(f"stoker: the result could not be written: {error}\n")
        return UNWRITTEN


def result_path(folder: str, task: int) -> str:
    """Where the result of a call is."""
    return os.path.join(folder, f"{task}.result")


def run_chunk(function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Several calls in one job."""
    return [function(*arguments) for arguments in calls]


def _watch_output() -> None:
    """Let output be seen line by line, and a crash of C code leave a trace."""
    import faulthandler

    faulthandler.enable()
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure:
        reconfigure(line_buffering=True)


def _run(path: str, task: int) -> tuple[dict[str, Any], tuple[Any, ...], int]:
    """What is told of the call, its result or exception where there is one, and the exit code."""
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
            raise Unreadable(f"it was submitted by Python {wrote}, and {sys.executable} is {reads} now")
        sys.path[:] = table["path"]
        file.seek(table["starts"][0])
        function = _Reader(file, script).load()
        file.seek(table["starts"][1 + task])
        arguments, keywords = _Reader(file, script).load()
    return function, arguments, keywords


def _stand_in() -> None:
    """In a process that multiprocessing has spawned: have what it would find in the script that it is not to run."""
    script = type(sys)("__main__")
    task, _, path = os.environ.get(_CALL, "").partition(" ")
    if path:
        _read(path, int(task), script)
        globals().update(vars(script))


def _header(outcome: str, error: BaseException) -> dict[str, Any]:
    import traceback

    text = "".join(traceback.format_exception(error))
    _say(text)
    return {"outcome": outcome, "type": _name(type(error)), "message": _words(error), "traceback": text}


def _say(text: str) -> None:
    """Add something to the log; where that is on a full disk, it is given up, lest it change the exit code."""
    try:
        sys.stdout.flush()
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)


def _portable(error: BaseException) -> tuple[Any, ...]:
    """The exception, or its parts where it takes other arguments than it passes on; nothing where neither arrives."""
    if not isinstance(error, Exception):
        return ()
    parts = (type(error), error.args, vars(error))
    return next(((each,) for each in (error, parts) if _arrives(each)), ())


def _arrives(value: Any) -> bool:
    from io import BytesIO

    try:
        with BytesIO() as file:
            _dump(value, file)
            loads(file.getvalue())
    except Exception:
        return False
    return True


def _write(path: str, header: dict[str, Any], body: tuple[Any, ...]) -> int:
    """Write all of it or nothing; an exit code where the result cannot be written as it is."""
    header |= {"attempt": int(os.environ.get("STOKER_ATTEMPT") or 1), "python": sys.version_info[:2]}
    if not body:
        _replace(path, [header])
        return 0
    try:
        _replace(path, [header, *body])
    except OSError:
        raise
    except Exception as error:
        said = {"outcome": "unpicklable", "type": _name(type(body[0])), "message": _words(error)}
        _say(f"stoker: a result of type {said['type']} cannot be sent back: {said['message']}\n")
        _replace(path, [header | said])
        return RAISED
    return 0


def _replace(path: str, values: list[Any]) -> None:
    """A new file in the place of the old one, which is there in full, or not at all, even if the machine goes down."""
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
    """By reference where that does; else by value, as what a function or a class of `__main__` needs."""
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
    return (
        kind.__qualname__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"
    )


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""


if __name__ == "__main__":
    sys.exit(main())
elif __name__ == "__mp_main__":
    _stand_in()
