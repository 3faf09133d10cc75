"""Write a function and its calls to a folder of the queue, and build the command that runs one."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple

from stoker.app.jobs.installation import how_to_add_extra
from stoker.core.errors import StokerError, UsageError
from stoker.core.spec import Command
from stoker.core.text import shown_value
from stoker.python import function_child
from stoker.python.function_child import CALLS, LENGTH
from stoker.store.paths import UNFINISHED, Paths

MOST_SHOWN = 20
"""Arguments that are shown in the command, at most."""
LONGEST_SHOWN = 60
"""Characters of a text argument that are shown, at most."""
_CHILD = os.path.abspath(function_child.__file__)


class NotPicklable(UsageError):
    """A function or an argument cannot be sent to another process."""


class Call(NamedTuple):
    """The arguments of one call."""

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any] = {}


def command_of(paths: Paths, function: Callable[..., Any], call: Call) -> Command:
    """The command that runs a call. Words after the folder are for users, and identify the work for learning."""
    words = (sys.executable, "-P", _CHILD, str(paths.functions), _full_name(function))
    return Command((*words, *_shown(function, call)))


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function or of another callable."""
    inner = _inner(function)
    return str(getattr(inner, "__name__", type(inner).__name__))


def _inner(function: Callable[..., Any]) -> Any:
    """The function of a partial, or of one with an initializer."""
    return getattr(function, "func", function)


def _full_name(function: Callable[..., Any]) -> str:
    inner = _inner(function)
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    return f"{inner.__module__}.{name}" if getattr(inner, "__module__", None) else str(name)


@contextlib.contextmanager
def written(paths: Paths, function: Callable[..., Any], calls: Sequence[Call]) -> Iterator[Path]:
    """A folder with the function and its calls; it is removed unless it was renamed by then."""
    folder = paths.functions / f"{UNFINISHED}{os.getpid()}-{os.urandom(6).hex()}"
    try:
        _fill(folder, function, calls)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def settle(folder: Path, paths: Paths, job_id: int) -> Path:
    """Rename the folder after its job; an existing one is left from a submit that failed at its end."""
    place = paths.function(job_id)
    shutil.rmtree(place, ignore_errors=True)
    folder.rename(place)
    return place


def _fill(folder: Path, function: Callable[..., Any], calls: Sequence[Call]) -> None:
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        descriptor = os.open(folder / CALLS, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            _write(file, function, calls)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise StokerError(
            f"{name_of(function)} cannot be written to {folder.parent}: {error.strerror}",
            "nothing was submitted; free some space there",
        ) from error


def _write(file: BinaryIO, function: Callable[..., Any], calls: Sequence[Call]) -> None:
    """The function, every call, and a table of their offsets."""
    cloudpickle = _cloudpickle()
    starts = []
    for part in (function, *((call.arguments, dict(call.keywords)) for call in calls)):
        starts.append(file.tell())
        try:
            cloudpickle.dump(part, file)
        except OSError:
            raise
        except Exception as error:  # pickling runs code of the objects
            call = calls[len(starts) - 2] if len(starts) > 1 else None
            raise NotPicklable(*_blame(cloudpickle, function, call, error)) from error
    path = [os.path.abspath(entry) for entry in sys.path]  # "" is the current directory
    sources = _sources(function)
    table = pickle.dumps({"python": sys.version_info[:2], "path": path, "starts": starts, "sources": sources})
    file.write(table + len(table).to_bytes(LENGTH, "little"))


def pickled(value: object) -> bytes:
    """A function or arguments as they are written; empty if they cannot be, which `written` reports."""
    cloudpickle = _cloudpickle()
    try:
        return bytes(cloudpickle.dumps(value))
    except Exception:  # pickling runs code of the objects
        return b"N."


def _sources(function: Callable[..., Any]) -> dict[str, list[str]]:
    """The lines of notebook cells that define the function and the functions it uses; tracebacks quote them."""
    import linecache

    used = [_inner(function), *(value for _, value in _reached(function))]
    files = {member.__code__.co_filename for member in used if hasattr(member, "__code__")}
    return {file: linecache.getlines(file) for file in files if not os.path.exists(file)}


def _cloudpickle() -> ModuleType:
    try:
        import cloudpickle
    except ImportError as error:
        text = "sending functions needs cloudpickle, which is not installed"
        raise StokerError(text, how_to_add_extra("python")) from error
    return cloudpickle  # type: ignore[no-any-return]


def _blame(
    cloudpickle: ModuleType, function: Callable[..., Any], call: Call | None, error: Exception
) -> tuple[str, str]:
    """Name the value that cannot be pickled, and what to do about it."""
    if call is not None:
        things: Iterator[tuple[str, Any]] = iter(_named(function, call))
        what, kind = f"an argument of {name_of(function)}", "argument"
        hint = "pass something it can be recreated from, such as a path"
    else:
        things = _reached(function)
        what, kind = f"the function {name_of(function)}", "variable"
        hint = "create it inside the function, or pass what it is made from"
    for name, value in things:
        with contextlib.suppress(Exception):
            cloudpickle.dumps(value)
            continue
        what = f"the {kind} {name!r} of {name_of(function)}, a {type(value).__qualname__},"
        break
    return f"{what} cannot be sent to a job: {error}", hint


def _reached(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Variables that are pickled with a function: of its closure, and globals of a module that is not importable."""
    function = _inner(function)
    code = getattr(function, "__code__", None)
    if code is None:
        return
    for name, cell in zip(code.co_freevars, getattr(function, "__closure__", None) or (), strict=True):
        with contextlib.suppress(ValueError):  # not set yet
            yield name, cell.cell_contents
    variables = getattr(function, "__globals__", {})
    yield from ((name, variables[name]) for name in code.co_names if name in variables)


def _named(function: Callable[..., Any], call: Call) -> list[tuple[str, Any]]:
    """The arguments by parameter name."""
    import inspect

    try:
        return list(inspect.signature(function).bind(*call.arguments, **call.keywords).arguments.items())
    except (TypeError, ValueError):  # no signature, or it refuses these arguments
        return [*((str(place), value) for place, value in enumerate(call.arguments)), *call.keywords.items()]


def _shown(function: Callable[..., Any], call: Call) -> Iterator[str]:
    """The arguments that are short as text, without secrets."""
    for name, value in _named(function, call)[:MOST_SHOWN]:
        if _is_short(value):
            yield f"{name}={shown_value(name, str(value))}"


def _is_short(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_SHOWN and value.isprintable()
    return isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() < 64)
