"""Run a script in a process that was forked from a template, as `python script.py` would in a new one.

Standard library only: it is loaded by the user's Python, before the modules of a template.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

_TEXT_ENDINGS = (".pyc", ".pyz", ".zip")
"""Endings of what Python runs without compiling it as text."""
Stamp = tuple[int, int, int, int]


def stamp_of(path: str) -> Stamp | None:
    """What changes with the content of a file; None if there is none."""
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


def run(order: Mapping[str, Any], words: Sequence[str], codes: Mapping[tuple[str, Stamp | None], CodeType]) -> None:
    """Run what the order names as `__main__`; returns, or raises SystemExit, for Python to end the process."""
    sys.orig_argv[:] = words
    main = ModuleType("__main__")
    vars(main).update(__builtins__=builtins, __annotations__={})
    sys.modules["__main__"] = main
    arguments = list(order["arguments"])
    try:
        if order["kind"] == "module":
            _run_module(order["target"], arguments)
        else:
            _run_file(main, order["target"], arguments, codes)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        _report(error.with_traceback(trace))


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
    exec(code, vars(main))  # noqa: S102


def _report(error: BaseException) -> None:
    """Print the error as Python does, and end as it does: by SIGINT after a KeyboardInterrupt, else with 1."""
    if isinstance(error, KeyboardInterrupt):
        _interrupted.append(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit:
        raise
    except BaseException:
        sys.__excepthook__(type(error), error, error.__traceback__)
    raise SystemExit(1)


_interrupted: list[KeyboardInterrupt] = []


def end_if_interrupted() -> None:
    """End by SIGINT; called at the exit of Python, after all else."""
    if not _interrupted:
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
