"""Run a script in a process that was forked from a template, as `python script.py` would in a new one.

Standard library only: it is loaded by the user's Python, before the modules of a template.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib.machinery
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any, NoReturn

_NOT_FLUSHED = 120
"""Exit code of a Python that could not write its output."""
_TEXT_ENDINGS = (".pyc", ".pyz", ".zip")
"""Endings of what Python runs without compiling it as text."""
Stamp = tuple[int, int, int, int]


def stamp_of(path: str) -> Stamp | None:
    """Facts that change with the content of a file; None if there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def compiled(path: str) -> CodeType:
    """The code of a script."""
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def is_script(path: str) -> bool:
    """Whether Python would read a file as text; directories and archives with a `__main__` are left to it."""
    return os.path.isfile(path) and not path.endswith(_TEXT_ENDINGS) and os.access(path, os.R_OK)


def run(order: Mapping[str, Any], words: Sequence[str], codes: Mapping[tuple[str, Stamp | None], CodeType]) -> NoReturn:
    """Run what the order names as `__main__`, and end the process as Python would."""
    sys.orig_argv[:] = words
    before = set(sys.modules)
    main = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    arguments = list(order["arguments"])
    code, interrupted = 0, False
    try:
        if order["kind"] == "module":
            _run_module(order["target"], arguments)
        else:
            _run_file(main, order["target"], arguments, codes)
    except SystemExit as error:
        code = _code_of(error)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        code, interrupted = _report(error.with_traceback(trace)), isinstance(error, KeyboardInterrupt)
    new = [main, *(module for name, module in sys.modules.items() if name not in before)]
    _leave(code, new, interrupted=interrupted)


def _run_module(name: str, arguments: list[str]) -> None:
    import runpy

    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd()
    sys.argv[:] = ["-m", *arguments]
    runpy._run_module_as_main(name)  # type: ignore[attr-defined]  # what Python itself calls


def _run_file(
    main: ModuleType, target: str, arguments: list[str], codes: Mapping[tuple[str, Stamp | None], CodeType]
) -> None:
    path = os.path.join(os.getcwd(), target)
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    sys.argv[:] = [target, *arguments]
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __cached__=None, __loader__=loader)
    code = codes.get((path, stamp_of(path))) or compiled(path)
    try:
        exec(code, vars(main))  # noqa: S102
    finally:  # Python does so after a file, before it prints an error
        for stream in (sys.stderr, sys.stdout):
            with contextlib.suppress(Exception):
                stream.flush()


def _code_of(error: SystemExit) -> int:
    """The exit code; any other object than a number is printed."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    with contextlib.suppress(Exception):
        print(error.code, file=sys.stderr, flush=True)
    return 1


def _report(error: BaseException) -> int:
    """Print an error as Python does, and return the exit code."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as end:
        return _code_of(end)
    except BaseException:
        sys.__excepthook__(type(error), error, error.__traceback__)
    return 1


def _leave(code: int, modules: Sequence[object], *, interrupted: bool) -> NoReturn:
    """End the process in the order of Python, but delete only what came after the fork.

    To delete what the template has imported would take longer than most jobs, as each page would be copied. The end of
    C programs runs (`exit`), which flushes files of libraries; it holds Python's lock, since it may delete objects.
    """
    if threading := sys.modules.get("threading"):
        threading._shutdown()
    atexit._run_exitfuncs()
    is_flushed = _flush()
    for module in modules:
        _clear(module)
    gc.collect()
    is_flushed = _flush() and is_flushed
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    ctypes.PyDLL(None).exit(code if is_flushed else _NOT_FLUSHED)
    raise AssertionError("the process has ended")


def _flush() -> bool:
    """Whether all output is written."""
    is_flushed = True
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception as error:
            if stream is sys.stdout:
                is_flushed = False
                with contextlib.suppress(Exception):
                    print(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=sys.stderr)
    return is_flushed


def _clear(module: object) -> None:
    """Delete the objects of a module, private ones first, as at the end of Python."""
    with contextlib.suppress(Exception):
        variables = vars(module)
        for private in (True, False):
            for name in [name for name in variables if name.startswith("_") is private and name != "__builtins__"]:
                variables[name] = None
